"""The tool loop of a GRPO step: generates a turn, steps all environments concurrently, until every episode has ended.

In: the episodes of the step, the model's first turns. Out: token ids with their mask, messages, and counts of calls.
"""

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from apprentice.tasks.episodes.episode import problems
from apprentice.tasks.episodes.record import Message
from apprentice.tasks.episodes.rendering import parse
from apprentice.tasks.models import trl_internals
from apprentice.tasks.models.configuration import context_length
from apprentice.tasks.models.trl_internals import Ids

if TYPE_CHECKING:
    from apprentice.tasks.rollouts.live_rollouts import LiveRollouts


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
    rollouts: "LiveRollouts",
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
