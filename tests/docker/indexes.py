"""Where images are built from: the package indexes of this machine's pip, as build arguments."""

import ast
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote


def pip_settings() -> dict[str, str]:
    """pip's settings without their sections; a variable of the environment is listed first and wins."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    found: dict[str, str] = {}
    for line in listed.stdout.splitlines():
        name, _, value = line.partition("=")
        found.setdefault(name.rpartition(".")[2], ast.literal_eval(value))
    return found


@contextmanager
def torch_index(version: str) -> Iterator[str | None]:
    """The URL of an index with torch's CPU build where a folder of pip's `find-links` has its wheel, else None."""
    folders = [Path(each.removeprefix("file://")) for each in pip_settings().get("find-links", "").split()]
    wheels = {wheel.name: wheel for folder in folders for wheel in folder.glob(f"torch-{version}+cpu-*.whl")}
    if not wheels:
        yield None
        return

    class Index(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wheel = wheels.get(unquote(self.path.rpartition("/")[2]))
            if wheel is None and self.path != "/torch/":
                self.send_error(404)
                return
            links = "".join(f'<a href="/{quote(name)}">{name}</a>' for name in wheels).encode()
            self.send_response(200)
            self.send_header("content-type", "application/octet-stream" if wheel else "text/html")
            self.send_header("content-length", str(wheel.stat().st_size if wheel else len(links)))
            self.end_headers()
            self.wfile.write(wheel.read_bytes() if wheel else links)

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def pip_index() -> dict[str, str]:
    """The build argument that names pip's index where one is set; the Dockerfile's own is PyPI."""
    url = pip_settings().get("index-url", "")
    return {"PIP_INDEX_URL": url} if re.match("https?://", url) else {}
