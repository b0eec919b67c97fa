"""An echo server with a fault, for whoever looks at servers.

The kinds: `forgetful` asks anything under any seed, `stubborn` the same under all, `counting` the next one at each
reset, `sudoku` is a Sudoku that draws its puzzles, `generous` rewards with 7, `strict` rewards whole texts only,
`sound` has no fault, `page` is no OpenEnv server, `asleep` answers 503, `deaf` has a health and no sessions.
"""

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse
from openenv.core.env_server.http_server import create_app

from apprentice.envs.echo.game import EchoAction, EchoEnvironment, EchoObservation
from apprentice.envs.serving.process import server_settings


class Forgetful(EchoEnvironment):
    def reset(self, seed: int | None = None, episode_id: str | None = None, words: int = 3, **_: Any):
        return super().reset(random.SystemRandom().randrange(10**9), episode_id, words)


class Stubborn(EchoEnvironment):
    def reset(self, seed: int | None = None, episode_id: str | None = None, words: int = 3, **_: Any):
        return super().reset(1, episode_id, words)


class Counting(EchoEnvironment):
    """As a server that goes through its dataset, whatever seed is named."""

    resets = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, words: int = 3, **_: Any):
        self.resets += 1
        return super().reset(self.resets, episode_id, words)


class Generous(EchoEnvironment):
    def step(self, action: EchoAction, timeout_s: float | None = None, **_: Any) -> EchoObservation:
        return super().step(action).model_copy(update={"reward": 7.0})


class Strict(EchoEnvironment):
    def step(self, action: EchoAction, timeout_s: float | None = None, **_: Any) -> EchoObservation:
        whole = super().step(action)
        return whole.model_copy(update={"reward": float(whole.reward == 1.0)})


def sudoku() -> FastAPI:
    """A Sudoku that ignores seeds."""
    from apprentice.envs.sudoku.game import SudokuAction, SudokuEnvironment, SudokuObservation

    class Drawn(SudokuEnvironment):
        def reset(self, seed: int | None = None, *given: Any, **named: Any) -> SudokuObservation:
            return super().reset(random.SystemRandom().randrange(10**9), *given, **named)

    return create_app(Drawn, SudokuAction, SudokuObservation, env_name="sudoku", max_concurrent_envs=99)


def plain(kind: str) -> FastAPI:
    """No OpenEnv server."""
    app = FastAPI()

    @app.get("/{path:path}")
    def answer(path: str) -> Response:
        if kind == "deaf":
            return Response('{"status": "healthy"}', media_type="application/json")
        return HTMLResponse("<h1>Spaces</h1>", status_code=503 if kind == "asleep" else 200)

    return app


def app_of(kind: str) -> FastAPI:
    games = {"forgetful": Forgetful, "stubborn": Stubborn, "counting": Counting, "generous": Generous}
    games |= {"strict": Strict, "sound": EchoEnvironment}
    if kind == "sudoku":
        return sudoku()
    if kind in games:
        return create_app(games[kind], EchoAction, EchoObservation, env_name="echo", max_concurrent_envs=99)
    return plain(kind)


@contextmanager
def odd_server(kind: str) -> Iterator[str]:
    """Serve that kind in a thread of this process until the block ends; yield its URL."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    server = uvicorn.Server(server_settings(app_of(kind)))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
