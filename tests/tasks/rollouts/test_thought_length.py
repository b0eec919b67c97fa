"""What is written beside a call costs as much as what is thought before it."""

from collections.abc import Iterator
from typing import Any

import pytest

from apprentice.envs.player import Player
from apprentice.tasks.episodes.episode import turn_of
from apprentice.tasks.episodes.record import Message
from apprentice.tasks.episodes.thinking import THOUGHT
from apprentice.tasks.models.tokenizer import prepare_tokenizer
from apprentice.tasks.rollouts.thought_length import TOKENS, shapings, thought_metrics
from tests.students_page import templates, toy_tokenizer
from tests.tasks.rollouts.test_rewards import Ended, plain

CALL = turn_of("answer", {"answer": "85"})


class Played(Ended):
    """One rollout with this turn."""

    def __init__(self, turn: Message):
        super().__init__([plain(1.0)])
        self.turn = turn

    def played(self) -> Iterator[tuple[int, list[Message], Player]]:
        yield 1, [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, self.turn], self.players[0]


@pytest.mark.parametrize(
    ("turn", "tokens"),
    [
        (CALL | {THOUGHT: "85."}, 3),
        (CALL | {THOUGHT: "85.", "content": "So: 85"}, 9),
        (CALL | {"content": None}, 0),
        ({"role": "assistant", "content": "It is 85.", THOUGHT: "85."}, 3),
    ],
)
def test_a_text_beside_a_call_counts_as_thought_and_an_answer_in_words_does_not(turn: dict[str, Any], tokens: int):
    tokenizer = prepare_tokenizer(toy_tokenizer(templates()["qwen3"]))  # a token a character
    assert thought_metrics(Played(turn), tokenizer)[TOKENS] == tokens
    (cost,) = shapings(0.5, 0, Played(turn), tokenizer, 100)
    assert cost.function(completion_ids=[[1]]) == [-tokens / 100]
