"""The episodes of one GRPO step, played in the environment while the model generates.

In: rows with seed and question, then the model's messages turn by turn. Out: rewards, when they are read.
Why: TRL resets environments and calls tools sequentially, two round trips per rollout. Here all rollouts of a turn are
stepped concurrently. Resets overlap with generation, because the row has the question's text, and the last step of an
episode is awaited only when its reward is read.

The tool loop of a GRPO step: generates a turn, steps all environments concurrently, until every episode has ended.

The two rollout modes of TRL's GRPOTrainer, `environment_factory` and `rollout_func`. Both play the same turns.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from apprentice.envs.player import Player, facade_of
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.envs.wire.waiting import spawn, start
from apprentice.tasks.episodes.episode import Episode, problems, prompt
from apprentice.tasks.episodes.record import Message
from apprentice.tasks.episodes.rendering import parse, prompt_ids
from apprentice.tasks.models import trl_internals
from apprentice.tasks.models.configuration import context_length
from apprentice.tasks.models.trl_internals import Ids
from apprentice.tasks.reporting.errors import Stop


class LiveRollouts:
    """Up to as many concurrent episodes as the pool has environments. Use it as a context manager.

    Attributes:
        environments: One per rollout, in order; read the reward of a finished episode from it after `wait`.
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


class PlayedTurns(NamedTuple):
    """The result, with one entry per rollout; `calls` and `wrong_calls` are totals."""

    completion_ids: list[list[int]]
    mask: list[list[int]]
    """1 for the model's tokens, 0 for tool replies; same shape as `completion_ids`."""
    logprobs: list[list[float]] | None
    messages: list[list[Message]]
    calls: int
    wrong_calls: int


def play_turns(
    trainer: Any,
    rollouts: LiveRollouts,
    max_turns: int,
    prompt_ids: list[list[int]],
    completion_ids: list[list[int]],
    logprobs: list[list[float]] | None,
) -> PlayedTurns:
    """Plays every rollout to its end, starting with the model's first turns.

    `max_turns` must be the same in all processes. Lengths are limited as in TRL: a reply that would exceed
    `max_completion_length` ends the completion.
    """
    from accelerate.utils import gather_object

    tokenizer = trl_internals.tokenizer_of(trainer)
    tools = [environment.schemas for environment in rollouts.players]
    written = [list(ids) for ids in completion_ids]
    mask = [[1] * len(ids) for ids in written]
    logprobs = [list(each) for each in logprobs] if logprobs is not None else None
    turns = dict(enumerate(_parsed(tokenizer, written, prompt_ids, tools)))
    messages = [[turns[n]] for n in turns]
    calls = wrong = 0
    for turn in range(1, max_turns + 1):
        calls += sum(len(message.get("tool_calls") or []) for message in turns.values())
        wrong += _wrong_calls(turns, tools)
        rollouts.step(turns)
        if turn == max_turns:
            break  # every episode has ended; the last replies are not needed before the rewards
        rollouts.wait()
        answered = {n: replies for n in turns if (replies := rollouts.replies(n))}
        suffixes = {n: trl_internals.reply_ids(tokenizer, replies, trainer) for n, replies in answered.items()}
        unfinished = [n for n, suffix in suffixes.items() if _fits(trainer, prompt_ids[n], written[n] + suffix)]
        everyone: list[int] = gather_object([len(unfinished)])
        if not any(everyone):
            break
        contexts = [prompt_ids[n] + written[n] + suffixes[n] for n in unfinished]
        contexts += [prompt_ids[0]] * (max(everyone) - len(contexts))  # all processes must generate the same number
        new_ids, new_logprobs = trl_internals.generate(trainer, contexts, 1)
        turns = {}
        for index, n in enumerate(unfinished):
            ids = new_ids[index][: trainer.max_completion_length - len(written[n]) - len(suffixes[n])]
            if not ids:
                continue
            written[n] += suffixes[n] + ids
            mask[n] += [0] * len(suffixes[n]) + [1] * len(ids)
            if logprobs is not None:
                logprobs[n] += [0.0] * len(suffixes[n]) + new_logprobs[index][: len(ids)]
            turns[n] = parse(tokenizer, ids, contexts[index], tools[n])
            messages[n] += [*answered[n], turns[n]]
    return PlayedTurns(written, mask, logprobs, messages, calls, wrong)


def _parsed(tokenizer: Any, completions: Ids, prompts: Ids, tools: list[list[dict[str, Any]]]) -> list[Message]:
    """The first turns. Equal ones of one prompt, of which a group has many, are parsed once and are one object."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], Message] = {}
    keys = [(tuple(prompt), tuple(ids)) for prompt, ids in zip(prompts, completions, strict=True)]
    for key, ids, before, offered in zip(keys, completions, prompts, tools, strict=True):
        if key not in found:
            found[key] = parse(tokenizer, ids, before, offered)
    return [found[key] for key in keys]


def _wrong_calls(turns: dict[int, Message], tools: list[list[dict[str, Any]]]) -> int:
    """Calls of a turn that do not fit their schema; a message that several rollouts share is checked once."""
    counts = Counter(id(message) for message in turns.values())
    first = {id(message): n for n, message in turns.items() if message.get("tool_calls")}
    return sum(counts[each] * len(problems(turns[n], tools[n])) for each, n in first.items())


def _fits(trainer: Any, prompt: list[int], completion: list[int]) -> bool:
    """Whether the limits leave room for more tokens after a completion."""
    longest = context_length(trainer.model.config)
    if trainer.use_vllm and trainer.vllm_mode == "colocate":
        longest = trainer.vllm_generation.llm.llm_engine.model_config.max_model_len
    return len(completion) <= trainer.max_completion_length and len(prompt) + len(completion) < longest


def by_factory(instance: Player, rollouts: LiveRollouts) -> tuple[type, dict[str, Any]]:
    """A trainer class with our tool loop, and its arguments; TRL renders prompts and tools, and generates."""

    def play(trainer: Any, *first: Any) -> Any:
        return play_turns(trainer, rollouts, instance.max_turns, *first)

    trainer_class = trl_internals.episode_trainer(rollouts.begin, play)
    of_parts = {part.label: partial(facade_of, part) for part in instance.parts()}
    return trainer_class, {"environment_factory": of_parts.get("") or of_parts}  # of a mixture by label


def by_rollout_func(instance: Player, rollouts: LiveRollouts) -> tuple[type, dict[str, Any]]:
    """TRL's trainer and its arguments; our rollout function renders the prompts, plays, and masks the tool replies."""
    turns = instance.max_turns

    def rollout(prompts: list[list[Message]], trainer: Any) -> dict[str, Any]:
        rows = [messages[-1] for messages in prompts]
        rollouts.begin(rows)
        tokenizer, parts = trl_internals.tokenizer_of(trainer), [instance.part(row["seed"]) for row in rows]
        rendered = [
            prompt_ids(tokenizer, prompt(part, row["question"]), part.schemas)
            for part, row in zip(parts, rows, strict=True)
        ]
        mode = "num_generations" if trainer.model.training else "num_generations_eval"
        first_ids, logprobs = trl_internals.generate(trainer, rendered, getattr(trainer, mode))
        played = play_turns(trainer, rollouts, turns, rendered, first_ids, logprobs)
        return {
            "prompt_ids": rendered,
            "completion_ids": played.completion_ids,
            "logprobs": played.logprobs,
            "env_mask": played.mask,
            "seed": [row["seed"] for row in rows],
            "question": [row["question"] for row in rows],
        }

    return trl_internals.online_trainer(), {"rollout_func": rollout}


ROLLOUT_MODES: dict[str, Callable[[Player, LiveRollouts], tuple[type, dict[str, Any]]]] = {
    "environment_factory": by_factory,
    "rollout_func": by_rollout_func,
}


def row_of(mode: str, instance: Player, seed: int, question: str) -> dict[str, Any]:
    """A dataset row. A rollout function receives only the prompt, so its last message includes seed and question."""
    part = instance.part(seed)
    opening = prompt(part, "")
    named: dict[str, Any] = {"seed": seed, "question": question}
    if mode == "rollout_func":
        return {"prompt": [*opening[:-1], opening[-1] | named]}
    return {"prompt": opening} | named | ({"environment": part.label} if part.label else {})
