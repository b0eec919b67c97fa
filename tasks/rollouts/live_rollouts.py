"""The episodes of one GRPO step, played in the environment while the model generates.

In: rows with seed and question, then the model's messages turn by turn. Out: rewards, when they are read.
Why: TRL resets environments and calls tools sequentially, two round trips per rollout. Here all rollouts of a turn are
stepped concurrently. Resets overlap with generation, because the row has the question's text, and the last step of an
episode is awaited only when its reward is read.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from apprentice.envs.player import Player
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.envs.wire.waiting import spawn, start
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.episodes.record import Message
from apprentice.tasks.episodes.thinking import CUT_OFF
from apprentice.tasks.reporting.errors import Stop


class LiveRollouts:
    """Up to as many concurrent episodes as the pool has environments. Use it as a context manager.

    Attributes:
        players: One per rollout, in order; read the reward of a finished episode from it after `wait`.
        waited_s: Seconds that the model has waited for the environment so far.
    """

    def __init__(self, pool: EnvironmentPool):
        self._pool = pool
        self._questions: list[str] = []
        self._seeds: list[int] = []
        self._episode_tasks: list[asyncio.Task[Episode | None]] = []
        self._running: list[Future[Any]] = []
        self.players: list[Player] = []
        self.waited_s = 0.0

    def __enter__(self) -> "LiveRollouts":
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._running:
            each.cancel()

    @property
    def gave_up(self) -> str | None:
        """Why the pool has given up waiting for the server; None while it has not."""
        return self._pool.breaker.gave_up

    def begin(self, rows: Sequence[dict[str, Any]]) -> None:
        """Starts an episode for every row without waiting."""
        self.wait()
        assert len(rows) <= len(self._pool.players)
        pairs = zip(self._pool.players, rows)  # noqa: B905 (a pool may have more environments than a step needs)
        self.players = [environment.part(row["seed"]) for environment, row in pairs]
        self._questions = [row["question"] for row in rows]
        self._seeds = [row["seed"] for row in rows]
        self._running = [start(self._begin_all())]

    def step(self, messages: dict[int, Message]) -> None:
        """Steps episodes with the model's messages, by rollout index, without waiting."""
        self._running.append(start(self._step_all(messages)))

    def wait(self) -> None:
        """Waits until the environment has answered all messages. Raises Stop when a question has changed.

        A rollout lost to infrastructure has the reward None; its environment's `failure` is the reason.
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

    def replies(self, index: int) -> list[Message] | None:
        """The tool messages of a rollout's last turn; None when its episode has ended or is lost. Call after `wait`."""
        episode = self._episode_tasks[index].result()
        if episode is None or episode.done or self.players[index].failure:
            return None
        last = max(n for n, message in enumerate(episode.messages) if message["role"] == "assistant")
        return episode.messages[last + 1 :]

    def finish(self) -> int:
        """Ends the episodes that had no token left for another turn; returns how many the environment did not end. Call
        after `wait`."""
        episodes = [episode for each in self._episode_tasks if (episode := each.result()) is not None]
        for episode in episodes:
            episode.give_up()
        _lower_cut_off(episodes)
        return sum(episode.unfinished for episode in episodes)

    def broken(self) -> int:
        """The number of rollouts on which the environment failed, and again on a new connection. Call after `wait`."""
        episodes = (each.result() for each in self._episode_tasks)
        return sum(bool(episode.broken) for episode in episodes if episode is not None)

    def first_group(self, size: int) -> list[dict[str, Any]]:
        """At most `size` rollouts of the first question: seed, question, messages, reward. Call after `wait`."""
        group = [index for index, seed in enumerate(self._seeds) if seed == self._seeds[0]][:size]
        episodes = [self._episode_tasks[index].result() for index in group]
        return [
            {
                "seed": self._seeds[index],
                "question": self._questions[index],
                "messages": episode.messages[2:] if episode else [],
                "reward": self.players[index].reward,
            }
            for index, episode in zip(group, episodes, strict=True)
        ]

    def played(self) -> Iterator[tuple[int, list[Message], Player]]:
        """Yield seed, messages with the prompt, and environment of each rollout that has an episode. Call after
        `wait`."""
        for seed, task, environment in zip(self._seeds, self._episode_tasks, self.players, strict=True):
            if (episode := task.result()) is not None:
                yield seed, episode.messages, environment

    async def _begin_all(self) -> None:
        """Starts all episodes on the loop at once: waking it for each costs more than its work then."""
        self._episode_tasks = [
            asyncio.create_task(self._begin(environment, seed))
            for environment, seed in zip(self.players, self._seeds, strict=True)
        ]
        await asyncio.gather(*self._episode_tasks)

    async def _step_all(self, messages: dict[int, Message]) -> None:
        await asyncio.gather(*(self._step(index, message) for index, message in messages.items()))

    async def _begin(self, player: Player, seed: int) -> Episode | None:
        try:
            return await spawn(Episode, player, seed)
        except SessionLost:  # the environment's reward stays None
            return None

    async def _step(self, index: int, message: Message) -> None:
        episode = await self._episode_tasks[index]
        if episode is None:
            return
        episode.check_question(self._questions[index])
        try:
            await spawn(episode.step, message)
        except SessionLost:  # as above
            return


def _lower_cut_off(episodes: Sequence[Episode]) -> None:
    """Gives those with a thought that is cut off the lowest reward of their group, where the environment has none."""
    known = [(episode.seed, episode.reward) for episode in episodes if episode.reward is not None]
    for episode in episodes:
        if episode.messages[-1].get(CUT_OFF):
            episode.player.lower(min((reward for seed, reward in known if seed == episode.seed), default=0.0))
