"""What SFT learns from when several played: the teacher, the student itself, earlier rounds."""

import json
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.tools import tools_text
from apprentice.tasks.artifacts.types import COUNTED, KeptRollouts, Rollouts
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.record import EvaluatedEpisode, Record
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.mix import for_the_teacher, mix_rollouts
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.settings.spec import MixSpec
from tests.tasks.evaluations import episode, evaluation, published
from tests.tasks.test_levels import published as questions


def attempt(question: int, sample: int, reward: float, said: str = "7") -> EvaluatedEpisode:
    call = {"type": "function", "function": {"name": "answer", "arguments": json.dumps({"answer": said})}}
    found = episode(4 * question, reward, sample=sample, seed=question)
    messages = [*found.messages[:2], {"role": "assistant", "content": "", "tool_calls": [call]}, found.messages[3]]
    return found.model_copy(update={"messages": messages, "place": 4 * question + sample})


def lines(task: EnvironmentSpec, seeds: range, reward: float) -> str:
    about: dict[str, Any] = {"environment": "reasoning_gym 2", "tools": tools_text(task.make().tools), "reward": reward}
    records = [Record(seed=seed, messages=attempt(seed, 0, reward).messages, **about) for seed in seeds]
    return b"".join(record.line() for record in records).decode()


def kept(context: StageContext, task: EnvironmentSpec, key: str, seeds: range) -> KeptRollouts:
    counts = {"episodes": len(seeds), "kept": len(seeds), "dropped": {}}
    return published(context.run.store, KeptRollouts, key, {"kept.jsonl": lines(task, seeds, 1.0)}, counts)


def bought(context: StageContext, task: EnvironmentSpec, seeds: range, reward: float = 1.0) -> Rollouts:
    counts: dict[str, Any] = dict.fromkeys((*COUNTED, "failed"), 0) | {"episodes": len(seeds), "cost_usd": 0.0}
    return published(context.run.store, Rollouts, "r" * 20, {"rollouts.jsonl": lines(task, seeds, reward)}, counts)


@pytest.fixture
def mixed(context: StageContext, chain_sum: EnvironmentSpec):
    def mix(
        tries: list[EvaluatedEpisode], spec: MixSpec, rollouts=None, earlier=None, evaluation_texts=()
    ) -> list[dict]:
        own = evaluation(context.run.store, "t" * 20, tries, "champion") if tries else None
        evaluation_questions = questions(context, "q1", [("evaluate", text, True) for text in evaluation_texts])
        mix_rollouts.body(
            context, spec, chain_sum, evaluation_questions, rollouts, own, earlier or {}, "gpt at home", 0
        )
        return read_rows(context.out / "kept.jsonl")

    return mix


def test_of_a_question_the_shortest_right_tries_are_kept_and_none_that_repeats_another(mixed):
    tries = [attempt(1, 0, 1.0, "1234567"), attempt(1, 1, 1.0, "42"), attempt(1, 2, 1.0, "42"), attempt(1, 3, 0.0, "4")]
    (row,) = mixed(tries, MixSpec(keep=1))
    assert json.loads(row["messages"][2]["tool_calls"][0]["function"]["arguments"]) == {"answer": "42"}
    assert row["player"] == "the student (champion)"
    both = [
        json.loads(row["messages"][2]["tool_calls"][0]["function"]["arguments"])
        for row in mixed(tries, MixSpec(keep=3))
    ]
    assert sorted(each["answer"] for each in both) == ["1234567", "42"]


def test_each_row_tells_who_played_it(mixed, context: StageContext, chain_sum: EnvironmentSpec):
    rows = mixed([attempt(1, 0, 1.0)], MixSpec(), bought(context, chain_sum, range(10, 13)))
    assert sorted(row["player"] for row in rows) == ["gpt at home"] * 3 + ["the student (champion)"]


def test_earlier_rounds_fill_their_share_without_what_the_evaluation_asks(mixed, context, chain_sum: EnvironmentSpec):
    rollouts = bought(context, chain_sum, range(10, 16))
    earlier = {"0": kept(context, chain_sum, "l" * 20, range(20, 40))}
    rows = mixed(
        [],
        MixSpec(replay=0.4),
        rollouts,
        earlier,
        evaluation_texts=[attempt(20, 0, 1.0).question, attempt(21, 0, 1.0).question.upper()],
    )
    old = [row["seed"] for row in rows if row["player"] == "an earlier round"]
    assert (len(old), len(rows)) == (4, 10)
    assert set(old) <= set(range(22, 40))


def test_a_teacher_that_is_never_right_does_not_stop_a_student_that_is(mixed, context, chain_sum: EnvironmentSpec):
    wrong = bought(context, chain_sum, range(10, 16), reward=0.0)
    (row,) = mixed([attempt(1, 0, 1.0), attempt(2, 0, 0.0)], MixSpec(), wrong)
    assert row["player"] == "the student (champion)"
    with pytest.raises(Stop, match="7 × wrong answer"):
        mixed([attempt(2, 0, 0.0)], MixSpec(), wrong)


def test_where_nothing_is_right_the_causes_are_told(mixed):
    with pytest.raises(Stop, match="2 × wrong answer"):
        mixed([attempt(1, 0, 0.0), attempt(2, 0, 0.5)], MixSpec())


def test_only_what_every_try_got_right_needs_no_teacher():
    tries = [attempt(1, 0, 1.0), attempt(1, 1, 1.0), attempt(2, 0, 1.0), attempt(2, 1, 0.0), attempt(3, 0, 0.0)]
    assert for_the_teacher([3, 1, 2], tries, None) == [3, 2]


def test_a_teacher_that_may_be_asked_little_is_asked_what_the_student_gets_right_least():
    tries = [attempt(1, 0, 1.0), attempt(1, 1, 0.0), attempt(2, 0, 0.0), attempt(2, 1, 0.0), attempt(3, 0, 0.0)]
    assert for_the_teacher([1, 2, 3], tries, 2) == [2, 3]
    assert for_the_teacher([1, 2, 3], tries, 1) == [2]
    assert for_the_teacher([1, 2, 3], [], 2) == [1, 2], "without tries the first ones"


def test_a_row_of_a_single_teacher_has_no_column_for_the_player():
    assert b"player" not in Record(seed=1, environment="e 1", messages=[], tools="[]", reward=1.0).line()
