"""A teacher's endpoint that fails as it is told to, and notes what it was asked.

Run: `python -m tests.faults.endpoint FOLDER --latency-ms 100` (prints its URL; ends with its standard input).
In: FOLDER/mode: ok, 429, told (429 with Retry-After), 500, inside (an error in a 200), 402, 401, budget (400), hang,
cut, or `credit N`: N answers from then on, and 402 after them. Out: FOLDER/asked.jsonl, a line a request: the
question, and whether it was answered.
"""

import argparse
import asyncio
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from apprentice.envs.serving.process import SERVES_AT
from tests.bench.endpoint import Endpoint

ERRORS = {
    "429": (b"429 Too Many Requests", {}),
    "told": (b"429 Too Many Requests", {}),
    "500": (b"500 Internal Server Error", {}),
    "inside": (b"200 OK", {"choices": None, "error": {"message": "Provider returned error", "code": 502}}),
    "402": (b"402 Payment Required", {"error": {"message": "Insufficient credits. Add more."}}),
    "budget": (b"400 Bad Request", {"error": {"message": "Budget has been exceeded!", "type": "budget_exceeded"}}),
    "401": (b"401 Unauthorized", {"error": {"message": "This key was withdrawn."}}),
}


class Failing(Endpoint):
    credit = ("", 0)
    """What was last said of the account's credit, and how many answers are left of it."""

    def __init__(self, latency: float, folder: Path, dataset: str):
        super().__init__(latency, close=False, dataset=dataset)
        self._mode = folder / "mode"
        self._requests = folder / "asked.jsonl"

    def _answer(self, body: bytes) -> None:
        mode = self._charged(self._mode.read_text().strip() or "ok")  # empty for a moment while it is written
        self._note(json.loads(body)["messages"][1]["content"], mode == "ok")
        if mode == "ok":
            super()._answer(body)
        elif mode == "cut":
            self._transport.abort()
        elif mode in ERRORS:
            more = b"retry-after: 2\r\n" if mode == "told" else b""
            status, error = ERRORS[mode]
            text = json.dumps(error).encode()
            head = b"HTTP/1.1 " + status + b"\r\n" + more + b"content-length: %d\r\n\r\n" % len(text)
            self._transport.write(head + text)

    @classmethod
    def _charged(cls, mode: str) -> str:
        said, left = cls.credit
        if said != mode:
            left = int(mode.removeprefix("credit ")) if mode.startswith("credit ") else 0
        cls.credit = (mode, left - 1)
        return mode if not mode.startswith("credit ") else "ok" if left > 0 else "402"

    def _note(self, question: str, answered: bool) -> None:
        with self._requests.open("a") as file:
            file.write(json.dumps({"question": question, "answered": answered}) + "\n")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--dataset", default="chain_sum")
    given = parser.parse_args()
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()

    def protocol() -> Any:
        return Failing(given.latency_ms / 1000, given.folder, given.dataset)

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0, backlog=1024)
    print(f"{SERVES_AT}http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
