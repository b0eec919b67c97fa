"""Forms in a browser as an OpenEnv environment, with the wire of the published BrowserGym environment.

A reset names its form by a seed, and by fields, choices, buttons and texts where they are not the usual ones. `text`
and `axtree_txt` are the page's accessibility tree. The reward is the share of what was asked that was right when
the form was sent, which ends the episode.
"""

import asyncio
from typing import Any
from uuid import uuid4

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

from .browser import FormTask, Tab, next_thread

USUAL = {"fields": 2, "choices": 1, "buttons": 2, "texts": "any"}
"""The form of a reset that says nothing of it."""


class BrowserGymAction(Action):
    """One call in BrowserGym's action language, such as click('12')."""

    action_str: str


class BrowserGymObservation(Observation):
    """The page, the goal, and what was wrong with the last action."""

    text: str = ""
    axtree_txt: str = ""
    """The same: clients of the published environment read one or the other."""
    goal: str = ""
    error: str = ""
    last_action_error: bool = False


class BrowserGymEnvironment(Environment[BrowserGymAction, BrowserGymObservation, State]):
    """One form an episode. Sessions share browsers, and have a context each, which is closed with them."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._thread = next_thread()
        self._tab = Tab(self._thread)
        self._goal = ""
        self._state = State(episode_id=None, step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **given: Any) -> BrowserGymObservation:
        return self._thread.submit(self._reset, seed, episode_id, given).result()

    def step(self, action: BrowserGymAction, timeout_s: float | None = None, **_: Any) -> BrowserGymObservation:
        return self._thread.submit(self._step, action).result()

    async def reset_async(
        self, seed: int | None = None, episode_id: str | None = None, **given: Any
    ) -> BrowserGymObservation:
        """As `reset`; the server's loop goes on meanwhile."""
        return await asyncio.wrap_future(self._thread.submit(self._reset, seed, episode_id, given))

    async def step_async(
        self, action: BrowserGymAction, timeout_s: float | None = None, **_: Any
    ) -> BrowserGymObservation:
        """As `step`."""
        return await asyncio.wrap_future(self._thread.submit(self._step, action))

    def close(self) -> None:
        self._thread.submit(self._tab.close).result()

    @property
    def state(self) -> State:
        return self._state

    def _reset(self, seed: int | None, episode_id: str | None, given: dict[str, Any]) -> BrowserGymObservation:
        if not isinstance(seed, int):
            raise ValueError(
                "a reset names its form: send a seed, such as reset(seed=7, task_name='form'); fields, choices, "
                "buttons and texts may follow"
            )
        if (name := given.pop("task_name", FormTask.get_task_id())) != FormTask.get_task_id():
            raise ValueError(f"no task {name!r}; there is {FormTask.get_task_id()!r}")
        if unknown := given.keys() - USUAL.keys():
            raise ValueError(f"a form has no {', '.join(sorted(unknown))}; it has {', '.join(USUAL)}")
        self._goal, text = self._tab.start(FormTask(seed, **USUAL | given))
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return BrowserGymObservation(text=text, axtree_txt=text, goal=self._goal, done=False, reward=0.0)

    def _step(self, action: BrowserGymAction) -> BrowserGymObservation:
        if not self._goal:
            raise ValueError("no episode runs: reset first")
        text, wrong, reward, done = self._tab.act(action.action_str)
        self._state.step_count += 1
        told = BrowserGymObservation(
            text=text,
            axtree_txt=text,
            goal=self._goal,
            error=wrong,
            last_action_error=bool(wrong),
            done=done,
            reward=reward,
        )
        self._goal = "" if done else self._goal
        return told
