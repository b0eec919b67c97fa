"""Conversations that end with a text are verified by saying it, where the environment scores one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.wire.session import Session
from apprentice.tasks.analysis.outcomes import why_dropped
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.dataset import take_rollouts
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.record import Record
from apprentice.tasks.files.json_lines import as_line, read_rows
from apprentice.tasks.formats.exports import export
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rescore import replay
from apprentice.tasks.settings.spec import DatasetSpec
from tests.served_desk import NEW, OLD, REFUSAL, ServedDesk, served_desk
from tests.tasks.evaluations import published

SEEDS = (5, 3, 7, 8)


@pytest.fixture(scope="module")
def desk() -> Iterator[ServedDesk]:
    with served_desk() as running:
        yield running


class Taking:
    """The stage that takes rows, on the desk's server."""

    def __init__(self, desk: ServedDesk, folder: Path):
        self.task, self.out, self.rows = desk.task, folder / "out", folder / "rows"
        self.out.mkdir()
        self.rows.mkdir()
        store = LocalStore(folder / "artifacts", "toy")
        servers = StandingServers({"desk": desk.server}, None)
        self.context = StageContext(RunContext(store, servers), "0" * 20, self.out, self.out)
        asked = [{"purpose": "collect", "seed": n, "question": desk.question(n), "used": True} for n in SEEDS]
        counts = {"collect": len(SEEDS), "grpo": 0, "evaluate": 0, "dropped_from_grpo": 0}
        text = b"".join(map(as_line, asked)).decode()
        self.questions = published(store, Questions, "a" * 20, {"questions.jsonl": text}, counts)

    def __call__(self, *rows: dict[str, Any], unverified: str = "drop") -> list[Record]:
        (self.rows / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        take_rollouts.body(self.context, DatasetSpec(path=str(self.rows)), self.task, self.questions, unverified)
        return [Record.model_validate(each) for each in read_rows(self.out / "rollouts.jsonl")]


@pytest.fixture
def take(desk: ServedDesk, tmp_path: Path) -> Taking:
    return Taking(desk, tmp_path)


def foreign(record: Record) -> dict[str, Any]:
    """An episode as somebody else's log has it, without prompt and seed."""
    return {"messages": record.messages[1:]}


def test_a_log_that_ends_with_a_text_is_verified_by_saying_it(desk: ServedDesk, take: Taking):
    (taken,) = take(foreign(desk.record(OLD)))
    assert (taken.seed, taken.reward, taken.takes_text) == (OLD, 1.0, True)
    assert taken.messages[-1]["content"] == REFUSAL
    assert why_dropped(taken.model_dump(), set()) is None


def test_a_wrong_text_of_a_log_has_the_environments_reward(desk: ServedDesk, take: Taking):
    row = foreign(desk.record(OLD))
    row["messages"][-1]["content"] = "I cannot refund it: it is 6 weeks old."
    (taken,) = take(row | {"reward": 1.0})
    assert taken.reward == 0.0


def test_a_text_that_answers_another_reply_is_left_out(desk: ServedDesk, take: Taking):
    row = foreign(desk.record(OLD))
    row["messages"][-2]["content"] = "It is 6 weeks old."
    with pytest.raises(Stop, match="another answer in turn"):
        take(row)


def test_a_text_after_the_call_that_ended_the_episode_is_a_closing_turn(desk: ServedDesk, take: Taking):
    row = foreign(desk.record(NEW))
    row["messages"] += [{"role": "assistant", "content": "You have your money back."}]
    row["messages"][-2]["content"] = "Refunded. (as another tool words it)"
    (taken,) = take(row)
    assert (taken.reward, taken.messages[-1]["role"]) == (1.0, "tool")


def test_a_row_that_is_taken_at_its_word_keeps_its_last_text(desk: ServedDesk, take: Taking):
    row = foreign(desk.record(OLD))
    row["messages"][0]["content"] = "Order zzzzzz: please refund me."
    (taken,) = take(row, unverified="keep")
    assert (taken.verified, taken.messages[-1]["content"]) == ("no", REFUSAL)


def test_a_rollout_that_claims_to_be_scored_is_believed_only_of_an_environment_that_scores(
    desk: ServedDesk, take: Taking
):
    row = json.loads(desk.record(NEW).line()) | {"takes_text": False}
    (taken,) = take(row)
    assert taken.takes_text


def test_an_episode_is_scored_again_with_its_text(desk: ServedDesk):
    record = desk.record(OLD).model_copy(update={"reward": 0.0})
    player = desk.task.make(Session(desk.server))
    after, differs = replay(player, record, desk.task)
    player.close()
    assert (after.reward, after.takes_text, differs) == (1.0, True, "")


@pytest.mark.parametrize("form", ["trl", "atif", "openenv"])
def test_an_export_is_read_back_as_the_same_rollout(desk: ServedDesk, take: Taking, form: Any, tmp_path: Path):
    record = desk.record(OLD)
    export([record], form, take.rows, "toy")
    (take.rows / "metadata.json").unlink(missing_ok=True)
    take_rollouts.body(take.context, DatasetSpec(path=str(take.rows)), take.task, take.questions, "drop")
    (taken,) = [Record.model_validate(each) for each in read_rows(take.out / "rollouts.jsonl")]
    assert taken == record
