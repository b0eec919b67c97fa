"""The turns of a GRPO step: the model speaks, all environments of the turn answer at once, until each episode is over.

In: a GRPOTrainer of TRL 1.16, the rollouts, and what the model said first. Out: token ids, and a mask of what is its
own. An episode ends when the environment says so: no turn is generated after that, and nothing that the model did not
write stands at a completion's end.
"""

from typing import Any, NamedTuple

from apprentice.envs.base import tool_schemas
from apprentice.tasks.episodes.episode import Message, problems
from apprentice.tasks.episodes.rendering import parse
from apprentice.tasks.training import trl_internals
from apprentice.tasks.training.rollouts import Rollouts


class Played(NamedTuple):
    """One entry a rollout."""

    completion_ids: list[list[int]]
    mask: list[list[int]]
    """1 for the model's tokens, 0 for those of the tools' replies."""
    logprobs: list[list[float]] | None
    messages: list[list[Message]]
    calls: int
    wrong_calls: int


def play_turns(
    trainer: Any,
    rollouts: Rollouts,
    max_turns: int,
    prompt_ids: list[list[int]],
    completion_ids: list[list[int]],
    logprobs: list[list[float]] | None,
) -> Played:
    """Plays every rollout to its end, from the model's first turns on.

    `max_turns` is the same in all processes, whoever plays in them. Lengths are cut as TRL cuts them: a reply that
    would make a completion longer than `max_completion_length` ends it.
    """
    from accelerate.utils import gather_object

    tokenizer = trl_internals.tokenizer_of(trainer)
    tools = [tool_schemas(environment) for environment in rollouts.environments]
    written = [list(ids) for ids in completion_ids]
    mask = [[1] * len(ids) for ids in written]
    logprobs = [list(each) for each in logprobs] if logprobs is not None else None
    said = {n: parse(tokenizer, ids, prompt_ids[n], tools[n]) for n, ids in enumerate(written)}
    messages = [[said[n]] for n in said]
    calls = wrong = 0
    for turn in range(1, max_turns + 1):
        calls += sum(len(message.get("tool_calls") or []) for message in said.values())
        wrong += sum(len(problems(message, tools[n])) for n, message in said.items() if message.get("tool_calls"))
        rollouts.step(said)
        if turn == max_turns:
            break  # every episode is over; what the environment says to that is not needed before the rewards
        rollouts.wait()
        heard = {n: replies for n in said if (replies := rollouts.replies(n))}
        suffixes = {n: trl_internals.tool_reply_ids(trainer, replies) for n, replies in heard.items()}
        going_on = [n for n, suffix in suffixes.items() if _fits(trainer, prompt_ids[n], written[n] + suffix)]
        everyone: list[int] = gather_object([len(going_on)])
        if not any(everyone):
            break
        contexts = [prompt_ids[n] + written[n] + suffixes[n] for n in going_on]
        contexts += [prompt_ids[0]] * (max(everyone) - len(contexts))  # all processes generate as many, or none does
        new_ids, new_logprobs = trl_internals.generate(trainer, contexts, 1)
        said = {}
        for place, n in enumerate(going_on):
            ids = new_ids[place][: trainer.max_completion_length - len(written[n]) - len(suffixes[n])]
            if not ids:
                continue
            written[n] += suffixes[n] + ids
            mask[n] += [0] * len(suffixes[n]) + [1] * len(ids)
            if logprobs is not None:
                logprobs[n] += [0.0] * len(suffixes[n]) + new_logprobs[place][: len(ids)]
            said[n] = parse(tokenizer, ids, contexts[place], tools[n])
            messages[n] += [*heard[n], said[n]]
    return Played(written, mask, logprobs, messages, calls, wrong)


def _fits(trainer: Any, prompt: list[int], completion: list[int]) -> bool:
    """Whether a completion leaves the model something to say."""
    longest = trainer.model.config.max_position_embeddings
    if trainer.use_vllm and trainer.vllm_mode == "colocate":
        longest = trainer.vllm_generation.llm.llm_engine.model_config.max_model_len
    return len(completion) <= trainer.max_completion_length and len(prompt) + len(completion) < longest
