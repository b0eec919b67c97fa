"""A refusal is final once the endpoint has answered a question that was asked later, and no sooner."""

from pathlib import Path
from typing import Any

import pytest

from apprentice.tasks.episodes.journal import Journal
from apprentice.tasks.episodes.record import Record
from apprentice.tasks.players.refused_episodes import RefusedEpisodes
from apprentice.tasks.reporting.errors import EndpointStop, TeacherUnavailable


def record(seed: int, failed_at: str = "teacher's endpoint") -> Record:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Play."}, {"role": "user", "content": f"{seed}?"}]
    return Record(seed=seed, environment="toy 1", messages=messages, tools="[]", reward=None, failed_at=failed_at)


class Answers:
    """A teacher's endpoint that answers, or fails with an error."""

    def __init__(self, error: Exception | None = None):
        self.error = error
        self.questions: list[Any] = []

    def say(self, messages: list[dict[str, Any]], *_: Any) -> None:
        self.questions.append(messages[1]["content"])
        if self.error:
            raise self.error


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "episodes.jsonl", "seed", print)


def test_only_an_answer_that_was_asked_for_later_makes_a_refusal_final(journal: Journal):
    refused = RefusedEpisodes(journal)
    refused.hold(5, record(50), is_understood=False)
    refused.answered(3)
    assert journal.done() == set()
    refused.answered(6)
    assert journal.done() == {50}


@pytest.mark.parametrize("answers", [True, False])
def test_at_the_end_a_question_that_was_answered_before_decides(journal: Journal, answers: bool):
    journal.append(record(1, failed_at=""))
    refused, teacher = RefusedEpisodes(journal), Answers(None if answers else TeacherUnavailable("402"))
    refused.hold(2, record(2), is_understood=False)
    if answers:
        refused.settle(teacher)  # type: ignore[arg-type]
        assert journal.done() == {1, 2}
    else:
        with pytest.raises(
            EndpointStop, match=r"refused the last 1 questions .*and then one that it had answered: 402"
        ):
            refused.settle(teacher)  # type: ignore[arg-type]
        assert journal.done() == {1}
    assert teacher.questions == ["1?"]


def test_a_filters_refusal_is_final_without_asking_again(journal: Journal):
    refused, teacher = RefusedEpisodes(journal), Answers()
    refused.hold(2, record(2), is_understood=True)
    refused.settle(teacher)  # type: ignore[arg-type]
    assert (journal.done(), teacher.questions) == ({2}, [])
