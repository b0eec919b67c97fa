"""The episodes of one GRPO step, played in the environment while the model generates.

In: rows with seed and question, then what the model says turn by turn. Out: rewards, once they are asked for.
Why: TRL resets environments and calls tools one after another: two round trips a rollout. A question's text is known
from its seed and stands in the row, so a reset need not be waited for before the model reads the prompt; and the answer
that ends an episode need not be waited for before the rewards are read. All rollouts of a turn are stepped at once.
"""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.envs.wire.waiting import spawn, start
from apprentice.tasks.episodes.episode import Episode, Message
from apprentice.tasks.reporting.errors import Stop


class Rollouts:
    """As many episodes at once as the pool has environments, which is what a step takes. Use it as a context manager.

    Attributes:
        environments: One a rollout, in order; the reward of an ended episode is read off it after `wait`.
        waited_s: Seconds for which the model waited for the environment so far.
    """

    def __init__(self, pool: EnvironmentPool):
        self._pool = pool
        self._questions: list[str] = []
        self._seeds: list[int] = []
        self._begun: list[Future[Episode | None]] = []
        self._running: list[Future[Any]] = []
        self.environments: list[ToolEnvironment] = []
        self.waited_s = 0.0

    def __enter__(self) -> "Rollouts":
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._running:
            each.cancel()

    @property
    def gave_up(self) -> str | None:
        """Why the server is not waited for any more, once that is so."""
        return self._pool.breaker.gave_up

    def begin(self, rows: Sequence[dict[str, Any]]) -> None:
        """Begins an episode for every row, and returns at once."""
        self.wait()
        assert len(rows) <= len(self._pool.environments)
        seated = zip(self._pool.environments, rows)  # noqa: B905 (a pool may have more than a step takes)
        self.environments = [environment._part(row["seed"]) for environment, row in seated]
        self._questions = [row["question"] for row in rows]
        self._seeds = [row["seed"] for row in rows]
        self._begun = [
            start(self._begin(environment, row["seed"]))
            for environment, row in zip(self.environments, rows, strict=True)
        ]
        self._running = [*self._begun]

    def step(self, said: dict[int, Message]) -> None:
        """Passes on what the model said, by the rollout's place, and returns at once."""
        self._running += [start(self._step(place, message)) for place, message in said.items()]

    def wait(self) -> None:
        """Returns when the environment has answered everything. Raises Stop where it asks something else than it did.

        A rollout that infrastructure lost has the reward None, and the reason in its environment.
        """
        began = time.perf_counter()
        running, self._running = self._running, []
        try:
            for each in running:
                each.result()
        except Refused as refused:
            raise Stop(f"The environment refused the task: {refused}", "Correct environment.settings.") from refused
        finally:
            waited = time.perf_counter() - began
            self.waited_s += waited
            count("waited_s", waited)

    def replies(self, place: int) -> list[Message] | None:
        """What the tools of a rollout's last turn said; None where its episode is over, or lost. After `wait`."""
        episode = self._begun[place].result()
        if episode is None or episode.done or self.environments[place].failure:
            return None
        last = max(n for n, message in enumerate(episode.messages) if message["role"] == "assistant")
        return episode.messages[last + 1 :]

    def broken(self) -> int:
        """Rollouts on which the environment broke, and again on a new connection. After `wait`."""
        begun = (each.result() for each in self._begun)
        return sum(bool(episode.broken) for episode in begun if episode is not None)

    def first_group(self, size: int) -> list[dict[str, Any]]:
        """What was said to the first question, by at most `size` rollouts, for a person to read. After `wait`."""
        group = [place for place, seed in enumerate(self._seeds) if seed == self._seeds[0]][:size]
        return [self._told(place) for place in group]

    def _told(self, place: int) -> dict[str, Any]:
        episode = self._begun[place].result()
        return {
            "seed": self._seeds[place],
            "question": self._questions[place],
            "messages": episode.messages[2:] if episode else [],
            "reward": self.environments[place].reward,
        }

    async def _begin(self, environment: ToolEnvironment, seed: int) -> Episode | None:
        try:
            return await spawn(Episode, environment, seed)
        except SessionLost:  # the environment says so: its reward is None
            return None

    async def _step(self, place: int, message: Message) -> None:
        episode = await asyncio.wrap_future(self._begun[place])
        if episode is None:
            return
        if episode.question != self._questions[place]:
            raise Stop(
                f"Under seed {episode.seed} the server asks another question than when the questions were written "
                f"down: {episode.question[:80]!r}, not {self._questions[place][:80]!r}.",
                "Use the server's former version, or a store of its own for the new one (--set store.path=…).",
            )
        try:
            await spawn(episode.step, message)
        except SessionLost:  # as above
            return
