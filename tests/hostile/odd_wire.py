"""Echo on OpenEnv's wire, but for one thing that is odd about what it answers.

Run: `python -m tests.hostile.odd_wire KIND MESSAGE [TIMES]` (prints its URL; ends with its standard input), or use
`odd_wire` in a test. KIND is a key of ODD, MESSAGE what it spoils: reset, step or state.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from apprentice.envs.echo.game import EchoAction, EchoEnvironment

Data = dict[str, Any]


def raw(text: str | bytes) -> Callable[[Data], Any]:
    """A message that is `text`, whatever it should have been."""
    return lambda message: text


def data(**spoilt: Any) -> Callable[[Data], Any]:
    return lambda message: json.dumps(message | {"data": message["data"] | spoilt})


def text(value: Any) -> Callable[[Data], Any]:
    return data(observation={"text": value})


def error(code: str, words: str) -> Callable[[Data], Any]:
    return raw(json.dumps({"type": "error", "data": {"message": words, "code": code}}))


ODD: dict[str, Callable[[Data], Any]] = {
    "html": raw("<html><body><h1>502 Bad Gateway</h1></body></html>"),
    "a list": raw("[1, 2, 3]"),
    "null": raw("null"),
    "binary": raw(b"\xff\xfe\x00"),
    "brackets": raw("[" * 200_000),
    "no data": raw('{"type": "observation"}'),
    "null data": raw('{"type": "observation", "data": null}'),
    "another type": raw('{"type": "state", "data": {"step_count": 1}}'),
    "an error without data": raw('{"type": "error"}'),
    "a list for observation": data(observation=[1]),
    "no observation": data(observation=None),
    "timeout": error("TIMEOUT", "temporarily overloaded"),
    "broken": error("EXECUTION_ERROR", "invalid literal for int() with base 10: 'two'\nTraceback"),
    "no reward": data(reward=None),
    "a word for reward": data(reward="good"),
    "a list for reward": data(reward=[1.0]),
    "1e308": data(reward=1e308),
    "7.0": data(reward=7.0),
    "-5.0": data(reward=-5.0),
    "NaN": data(reward=float("nan")),
    "infinity": data(reward=float("inf")),
    "a number of 400 digits": data(reward=10**400),
    "a word for done": data(done="yes"),
    "no text": data(observation={}),
    "null text": text(None),
    "a number for text": text(7),
    "a list for text": text(["a"]),
    "half a surrogate": text("a\ud800b"),
    "a huge text": text("x" * 300_000),
    "rounded": data(reward=1.0000000000000002),
    "a little below nothing": data(reward=-1e-12),
    "true for reward": data(reward=True),
}


class Game:
    """One session."""

    def __init__(self, kind: str, spoils: str, left: list[int]):
        self._game = EchoEnvironment()
        self._odd = ODD[kind]
        self._spoils = spoils
        self._left = left

    def answer(self, message: Data) -> Any:
        kind = message["type"]
        reply = self._honest(kind, message.get("data") or {})
        if kind != self._spoils or not self._left[0]:
            return json.dumps(reply)
        self._left[0] -= 1
        return self._odd(reply)

    def _honest(self, kind: str, given: Data) -> Data:
        if kind == "state":
            return {"type": "state", "data": {"step_count": 0}}
        seen = self._game.reset(**given) if kind == "reset" else self._game.step(EchoAction(**given))
        observation = {"text": seen.text}
        return {"type": "observation", "data": {"observation": observation, "reward": seen.reward, "done": seen.done}}


@contextmanager
def odd_wire(kind: str, spoils: str, times: int = -1) -> Iterator[str]:
    """Its URL. The first `times` messages of all sessions are spoilt; by default all."""
    left = [times]

    def play(connection: ServerConnection) -> None:
        game = Game(kind, spoils, left)
        try:
            for message in connection:
                if (read := json.loads(message))["type"] == "close":
                    break
                connection.send(game.answer(read))
        except ConnectionClosed:
            pass  # the client leaves whenever it has had enough

    def health(connection: ServerConnection, request: Any) -> Any:
        if request.path == "/ws":
            return None
        response = connection.respond(200, '{"status": "healthy"}')
        response.headers["Content-Type"] = "application/json"
        return response

    with serve(play, "127.0.0.1", 0, process_request=health, compression=None) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"


def main() -> None:
    with odd_wire(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else -1) as url:
        print(url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
