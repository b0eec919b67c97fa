"""What thoughts cost in a training by reward: tokens in each step's log, and optional rewards of their length.

In: the rollouts of a step, the student's tokenizer. Out: metrics; TRL's reward functions with their weights. A rollout
that infrastructure lost has no such reward either.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from apprentice.tasks.episodes.record import Message, turns_of
from apprentice.tasks.episodes.thinking import CUT_OFF, THOUGHT, tokens_of
from apprentice.tasks.rollouts.live_rollouts import LiveRollouts
from apprentice.tasks.settings.spec import ThinkingSpec

TOKENS = "thought/tokens"
"""The metric of the tokens of a rollout's thoughts, as a mean."""
TRUNCATED = "thought/cut_off"
"""The metric of the share of rollouts with a thought that was cut off or over its budget."""


class Shaping(NamedTuple):
    """A reward function of TRL beside the environment's, and its weight."""

    function: Callable[..., list[float | None]]
    weight: float


def tokens_of_thoughts(thinking: ThinkingSpec | None, turns: int) -> int:
    """The budget of the thoughts of a rollout: one for each turn."""
    return thinking.max_tokens * turns if thinking else 0


def turn_limit(thinking: ThinkingSpec, calls: int, most: int, engine: str) -> dict[str, int]:
    """The argument of generation that ends a turn where its thought and its calls have to be over.

    Without it a first turn could think through the budgets of all turns, though its own is long over.

    Args:
        calls: Tokens that a rollout has beside its thoughts.
        most: Tokens that a rollout may have.
    """
    return {"max_tokens" if engine == "vllm" else "max_new_tokens": min(most, thinking.max_tokens + calls)}


def thought_metrics(rollouts: LiveRollouts, tokenizer: Any) -> dict[str, float]:
    """The metrics of a step's rollouts; empty where infrastructure lost all of them."""
    played = [turns_of(messages) for _, messages, _ in rollouts.played()]
    if not played:
        return {}
    lengths = [sum(_length(tokenizer, turn) for turn in turns) for turns in played]
    cut_off = [any(turn.get(CUT_OFF) for turn in turns) for turns in played]
    return {TOKENS: sum(lengths) / len(played), TRUNCATED: sum(cut_off) / len(played)}


def shapings(
    thought_cost: float, soft_overlong: int, rollouts: LiveRollouts, tokenizer: Any, most: int
) -> list[Shaping]:
    """The rewards of length that are asked for.

    Args:
        thought_cost: What a hundred tokens of thought cost; 0.0 for nothing.
        soft_overlong: Tokens before the last one in which a rollout costs more and more; 0 for none.
        most: Tokens that a rollout may have.
    """
    found = []
    if thought_cost:
        found.append(Shaping(_of_rollouts(rollouts, _thought_cost(rollouts, tokenizer)), thought_cost))
    if soft_overlong:
        from trl.rewards import get_soft_overlong_punishment

        punish = get_soft_overlong_punishment(most, min(soft_overlong, most))
        found.append(Shaping(_of_rollouts(rollouts, punish), 1.0))
    return found


def _thought_cost(rollouts: LiveRollouts, tokenizer: Any) -> Callable[..., list[float]]:
    def thought_cost(**_: Any) -> list[float]:
        """Minus the tokens of thought of each rollout, in hundreds."""
        by_player = {id(player): turns_of(messages) for _, messages, player in rollouts.played()}
        turns = [by_player.get(id(player), []) for player in rollouts.players]
        return [-sum(_length(tokenizer, each) for each in own) / 100 for own in turns]

    return thought_cost


def _length(tokenizer: Any, turn: Message) -> int:
    """Tokens of a turn's thought, and of a text beside its calls."""
    beside = turn.get("content") or "" if turn.get("tool_calls") else ""
    return tokens_of(tokenizer, turn.get(THOUGHT, "")) + tokens_of(tokenizer, beside)


def _of_rollouts(rollouts: LiveRollouts, function: Callable[..., Sequence[float]]) -> Callable[..., list[float | None]]:
    """The function, with None for rollouts that infrastructure lost. TRL calls it after the environment's reward."""

    def read(completion_ids: Any = None, **_: Any) -> list[float | None]:
        values = function(completion_ids=completion_ids)
        return [
            None if player.reward is None else value for player, value in zip(rollouts.players, values, strict=True)
        ]

    read.__name__ = getattr(function, "__name__", "soft_overlong")
    return read
