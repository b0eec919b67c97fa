"""Whole runs in surroundings that make their life hard: each comes to its report, or stops with cause and remedy."""

import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.hostile.endings import assert_clear_exit
from tests.hostile.test_surroundings import CLOSED, NOWHERE, shell

RUN = '"$A" run "$TOY"'
ODD_FOLDER = f'mkdir "größe & mehr" && cd "größe & mehr" && {RUN} --runs ../runs'
NO_LINKS = "import os\n\ndef link(*_, **__):\n    raise OSError(95, 'Operation not supported')\n\nos.link = link\n"
"""As file systems without hard links answer, such as exFAT."""
NO_NETWORK = 'unshare --net --map-root-user sh -c \'ip link set lo up && exec "$A" run "$TOY"\''


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        pytest.param(RUN, {"PYTHONIOENCODING": "latin-1"}, id="standard output in Latin-1"),
        pytest.param(RUN, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, id="a locale without UTF-8"),
        pytest.param(f"{RUN} >&- 2>&-", {}, id="standard output and error closed"),
        pytest.param(RUN, {"http_proxy": CLOSED, "https_proxy": CLOSED, "all_proxy": CLOSED}, id="a dead proxy"),
        pytest.param(RUN, {"HOME": NOWHERE}, id="a home that cannot be written"),
        pytest.param(f"{RUN} | head -1", {}, id="a reader that leaves after one line"),
        pytest.param(ODD_FOLDER, {"PYTHONPATH": "no_links"}, id="spaces and umlauts, no hard links, our ports taken"),
        pytest.param(NO_NETWORK, {}, id="no network at all"),
    ],
)
def test_a_run_comes_to_its_report(
    words: str, environment: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest
):
    if words == NO_NETWORK and shell("unshare --net --map-root-user ip link set lo up", tmp_path).returncode:
        pytest.skip("no network namespace can be made here")
    if environment.get("PYTHONPATH"):
        environment = environment | {"PYTHONPATH": str(tmp_path / "no_links")}
        (tmp_path / "no_links").mkdir()
        (tmp_path / "no_links/sitecustomize.py").write_text(NO_LINKS)
        for port in (4200, 7860, 8000):
            with suppress(OSError):  # taken already: as well
                request.addfinalizer(socket.create_server(("127.0.0.1", port)).close)
    ended = shell(words, tmp_path, **{"PREFECT_API_URL": ""} | environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr, ended.stdout + ended.stderr
    assert [*tmp_path.glob("runs/*/report.html")]


def test_a_run_with_a_full_standard_output_keeps_its_report_and_says_that_it_could_not_be_shown(tmp_path: Path):
    ended = shell(f"{RUN} > /dev/full", tmp_path, PREFECT_API_URL="")
    assert_clear_exit(ended)
    assert "No space left" in ended.stderr
    assert [*tmp_path.glob("runs/*/report.html")]


def test_a_store_that_cannot_be_made_is_one_line_and_leaves_no_folder(tmp_path: Path):
    ended = shell(f"{RUN} --set store.path={NOWHERE}", tmp_path, PREFECT_API_URL="")
    assert_clear_exit(ended)
    assert not [*tmp_path.glob("runs/*")]


def test_a_prefect_server_that_accepts_and_says_nothing_is_not_waited_for_long(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/api"
        ended = shell(RUN, tmp_path, PREFECT_API_URL=url)
    assert_clear_exit(ended)
    assert url in ended.stdout


def test_a_prefect_server_that_is_another_program_is_told(tmp_path: Path):
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        def log_message(self, format: str, *args: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Page) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        ended = shell(RUN, tmp_path, PREFECT_API_URL=f"http://127.0.0.1:{other.server_port}/api")
        other.shutdown()
    assert_clear_exit(ended)
    assert "another program" in ended.stdout
