"""Press the button that the goal names: a server that is called as this project's `browsergym` is, with other tasks.

In: an action as BrowserGym writes it. Out: an ASGI application.
"""

import random
from typing import Any

from fastapi import FastAPI
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

BUTTONS = ("Okay", "Submit", "Cancel", "Yes")


class Press(Action):
    action_str: str


class Page(Observation):
    text: str = ""
    goal: str = ""
    error: str = ""
    last_action_error: bool = False


class WebPages(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, task_name: str | None = None) -> Page:  # type: ignore[override]
        self._right = random.Random(seed).randrange(len(BUTTONS))
        buttons = "\n".join(f"[{13 + place}] button '{name}'" for place, name in enumerate(BUTTONS))
        self._page = f"RootWebArea 'Click Test {seed}'\n{buttons}"
        return Page(text=self._page, goal=f'Click on the "{BUTTONS[self._right]}" button.', reward=0.0, done=False)

    def step(self, action: Press, timeout_s: float | None = None, **_: Any) -> Page:
        is_right = action.action_str in (f"click('{13 + self._right}')", f'click("{13 + self._right}")')
        return Page(text=self._page, reward=float(is_right), done=action.action_str.startswith("click("))

    @property
    def state(self) -> State:
        return State(step_count=0)


def app() -> FastAPI:
    return create_app(WebPages, Press, Page, env_name="browsergym_env", max_concurrent_envs=16)
