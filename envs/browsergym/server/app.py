"""The server's application. In a Space: `uvicorn server.app:app`; here `apprentice env serve browsergym`."""

import os

from fastapi import FastAPI
from openenv.core.env_server.http_server import create_app

from .game import BrowserGymAction, BrowserGymEnvironment, BrowserGymObservation


def make_app(max_sessions: int) -> FastAPI:
    """`max_sessions` episodes at once."""
    return create_app(
        BrowserGymEnvironment,
        BrowserGymAction,
        BrowserGymObservation,
        env_name="browsergym",
        max_concurrent_envs=max_sessions,
    )


app = make_app(int(os.environ.get("MAX_CONCURRENT_ENVS", "64")))


def main(host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serves until it is stopped."""
    import uvicorn

    uvicorn.run(app, host=host, port=port)


if __name__ == "__main__":
    main()
