"""Serves forms on 127.0.0.1 to the browsers of this process, and keeps what they send.

In: forms. Out: an address each, and what was sent from there. It is the browsers' proxy besides, and one that refuses:
so nothing beyond these pages can be reached.
"""

import secrets
import threading
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

from .forms import Form

LONGEST = 1_000_000
"""Bytes of a form that are read."""


class Sheet:
    """A form at an address.

    Attributes:
        sent: What was sent from it, once `arrived` is set.
    """

    def __init__(self, form: Form):
        self.form = form
        self.sent: dict[str, str] = {}
        self.arrived = threading.Event()


class Pages(ThreadingHTTPServer):
    """Forms at addresses that nobody guesses."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.sheets: dict[str, Sheet] = {}
        threading.Thread(target=self.serve_forever, daemon=True, name="pages").start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def add(self, form: Form) -> tuple[str, Sheet]:
        """The address of a form, and where what is sent from it will be found."""
        path = f"/{secrets.token_urlsafe(16)}"
        self.sheets[path] = Sheet(form)
        return f"http://{self.host}{path}", self.sheets[path]

    def remove(self, url: str) -> None:
        self.sheets.pop(url.removeprefix(f"http://{self.host}"), None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that hangs up is none."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _sheet(self) -> Sheet | None:
        assert isinstance(self.server, Pages)
        return self.server.sheets.get(self.path)

    def do_GET(self) -> None:
        sheet = self._sheet
        if sheet is None:  # also what the proxy is asked for, http://elsewhere/…
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        page = sheet.form.page.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def do_POST(self) -> None:
        sheet, length = self._sheet, int(self.headers.get("Content-Length") or 0)
        if sheet is None or length > LONGEST:
            self.close_connection = True  # its body is not read
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        sheet.sent = dict(parse_qsl(self.rfile.read(length).decode(), keep_blank_values=True))
        sheet.arrived.set()
        self.send_response(HTTPStatus.NO_CONTENT)  # the browser stays where it is: a third of an episode's time saved
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


@cache
def _made() -> Pages:
    return Pages()


_making = threading.Lock()


def pages() -> Pages:
    """Those of this process."""
    with _making:  # browsers in several threads ask for them at once
        return _made()
