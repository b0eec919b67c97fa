"""Evaluation protocols: what the tutorial's submits, prompts and counts, and that parity does otherwise."""

from types import SimpleNamespace
from typing import Any

import pytest

from apprentice.envs import base
from apprentice.envs.player import Player
from apprentice.envs.reasoning_gym.env import Settings
from apprentice.tasks.players.protocols import PROTOCOLS, TUTORIAL_TOKENS
from apprentice.tasks.reporting.errors import Stop
from tests.tasks.episodes.test_episode import Guess


class TutorialGuess(Guess):
    """Takes a text as the answer, and keeps it."""

    given = ""

    def answer(self, answer: str) -> str:
        """Give the answer.

        Args:
            answer: The answer.

        Returns:
            Nothing.
        """
        self.given, self.done, self.reward = answer, True, 0.5
        return "OK."


@pytest.mark.parametrize(
    ("text", "given", "found"),
    [
        ('{"answer": "12"} and 7', "12", True),
        ('{"answer" : 12}', "12", True),
        ('{"answer": "x"} 3 or 45', "45", False),
        ("a1 then 6 ", "6", False),
        ("nothing", "0", False),
    ],
)
def test_the_tutorial_submits_the_digits_that_its_regular_expression_finds(
    text: str, given: str, found: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(base, "tool_names", lambda kind: ["answer"])
    tutorial, environment = PROTOCOLS["tutorial"], TutorialGuess(Settings(dataset="chain_sum"))
    episode = tutorial.begin(Player(environment), 3)
    assert episode.tools == []
    episode.step({"role": "assistant", "content": text})
    assert (environment.given, episode.done) == (given, True)
    assert episode.causes == ([] if found else ["the regular expression found no answer"])
    assert (tutorial.tokens(7), PROTOCOLS["parity"].tokens(7)) == (TUTORIAL_TOKENS, 7)


def test_the_tutorial_is_for_environments_with_the_one_tool_answer():
    with pytest.raises(Stop, match=r"only environments with the single tool `answer`; this one has .*guess\."):
        PROTOCOLS["tutorial"].begin(Player(Guess(Settings(dataset="chain_sum"))), 3)


def test_the_tutorial_prompts_without_tools_and_reads_text_without_special_tokens():
    class Tokenizer:
        def apply_chat_template(self, *given: Any, **how: Any) -> Any:
            return given, how

        def decode(self, *given: Any, **how: Any) -> Any:
            return given, how

    tutorial: Any = PROTOCOLS["tutorial"]
    episode: Any = SimpleNamespace(messages=["asked"])
    how = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
    assert tutorial.prompt_ids(Tokenizer(), episode) == ((["asked"],), how)
    said = (([1, 2],), {"skip_special_tokens": True})
    assert tutorial.read(Tokenizer(), [1, 2], [0], episode) == {"role": "assistant", "content": said}
    records: Any = [SimpleNamespace(score=each, is_right=each == 1.0) for each in (1.0, 0.5, 0.0)]
    assert (tutorial.accuracy(records), PROTOCOLS["parity"].accuracy(records)) == (0.5, pytest.approx(1 / 3))
