"""A window that grows asks for the new seeds alone, and what reads the same is not built twice."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.serving.process import local_server
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.tasks.artifacts.alike import first_alike
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.collect import collect
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.evaluate import evaluate
from apprentice.tasks.files.json_lines import read_rows
from apprentice.tasks.filter import filter_rollouts
from apprentice.tasks.questions import exam, questions
from apprentice.tasks.reporting import announce
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.spec import (
    BuiltStudent,
    CollectSpec,
    EvaluateSpec,
    SeedWindows,
    StudentSpec,
    Window,
)
from apprentice.tasks.student import built_alike, student

TEACHER = TeacherSpec(scripted_error_rate=0.2)
TINY = StudentSpec(build=BuiltStudent(hidden_size=16, intermediate_size=16, layers=1, heads=1, max_positions=256))
SAMPLED = EvaluateSpec(questions=4, decoding="sampled", max_new_tokens=4, batch_size=4)


@pytest.fixture(scope="module")
def scripted() -> Any:
    given = "--environment", "reasoning_gym", "--settings", '{"dataset": "chain_sum"}'
    with local_server("apprentice.envs.serving.scripted_teacher", *given) as url:
        yield f"{url}/v1"


@pytest.fixture
def run(work: RunContext, scripted: str, server: EnvironmentServer) -> RunContext:
    work.servers = StandingServers({"reasoning_gym": server}, scripted)
    return work


@pytest.fixture
def counted(run: RunContext, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], tuple[Any, int]]:
    """Calls, and counts the episodes that were begun on the environment."""
    from apprentice.envs.player import Player

    begun: list[int] = []
    ask = Player.ask

    def counting(player: Player, seed: int) -> str:
        begun.append(seed)
        return ask(player, seed)

    monkeypatch.setattr(Player, "ask", counting)

    def call(make: Callable[[], Any]) -> tuple[Any, int]:
        begun.clear()
        return make(), len(begun)

    return call


def windows(collected: int, evaluated: int = 10) -> SeedWindows:
    return SeedWindows.model_validate(
        {
            "collect": Window(start=0, size=collected),
            "grpo": Window(start=1000, size=5),
            "evaluate": Window(start=2000, size=evaluated),
        }
    )


def rows(run: RunContext, artifact: Any, name: str) -> list[dict[str, Any]]:
    return read_rows(run.store.fetch(artifact) / name)


def published(run: RunContext, lines: list[dict[str, Any]], environment: EnvironmentSpec) -> Questions:
    """Questions as a stage of an earlier run would have them."""
    made_by = {"stage": "questions", "version": 2, "settings": {"environment": environment.in_key()}}
    with run.store.staging() as folder:
        (folder / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        counts = {"collect": len(lines), "grpo": 0, "evaluate": 0, "dropped_from_grpo": 0}
        return run.store.publish(Questions, "others", folder, counts, made_by)


def test_the_teacher_is_asked_for_the_new_episodes_only(run: RunContext, chain_sum: EnvironmentSpec, counted: Any):
    def window(start: int, size: int) -> tuple[Any, int]:
        return counted(lambda: collect(run, CollectSpec(), TEACHER, chain_sum, Window(start=start, size=size)))

    small, asked = window(0, 8)
    assert asked == 8
    large, asked = window(0, 12)
    assert asked == 4
    assert rows(run, large, "rollouts.jsonl")[:8] == rows(run, small, "rollouts.jsonl")
    assert [row["seed"] for row in rows(run, large, "rollouts.jsonl")] == list(range(12))
    _, asked = window(4, 10)
    assert asked == 2, "a window that moved asks for what no other had"


def test_another_teacher_plays_every_episode(run: RunContext, chain_sum: EnvironmentSpec, counted: Any):
    collect(run, CollectSpec(), TEACHER, chain_sum, Window(start=0, size=4))
    other = TEACHER.model_copy(update={"temperature": 0.5})
    _, asked = counted(lambda: collect(run, CollectSpec(), other, chain_sum, Window(start=0, size=6)))
    assert asked == 6


def test_an_earlier_collection_that_is_damaged_is_said_and_played_again(
    run: RunContext, chain_sum: EnvironmentSpec, counted: Any
):
    collect(run, CollectSpec(), TEACHER, chain_sum, Window(start=0, size=4))
    (shard,) = run.store.root.glob("datasets/local/toy-rollout-shards/snapshots/*/rollouts.jsonl")
    shard.chmod(0o644)
    shard.write_text("{}\n")
    with announce.console.capture() as said:
        _, asked = counted(lambda: collect(run, CollectSpec(), TEACHER, chain_sum, Window(start=0, size=6)))
    assert asked == 6
    assert "An earlier result is not used" in said.get()


def test_questions_of_seeds_that_are_known_are_not_asked_again(
    run: RunContext, chain_sum: EnvironmentSpec, counted: Any
):
    _, asked = counted(lambda: questions(run, chain_sum, windows(8), 4))
    assert asked == 8 + 5 + 10
    found, asked = counted(lambda: questions(run, chain_sum, windows(12), 4))
    assert asked == 4 + 1, "and one of the known ones, as a check"
    assert len(rows(run, found, "questions.jsonl")) == 12 + 5 + 10


def test_a_server_that_asks_something_else_now_is_asked_for_all(
    run: RunContext, chain_sum: EnvironmentSpec, counted: Any
):
    published(run, [{"purpose": "collect", "seed": 0, "question": "Another one?", "used": True}], chain_sum)
    _, asked = counted(lambda: questions(run, chain_sum, windows(9), 4))
    assert asked == (1 + 8 + 5 + 10) + (9 + 5 + 10)


@pytest.mark.long
def test_an_evaluation_that_grows_gives_what_a_whole_one_gives(
    run: RunContext, chain_sum: EnvironmentSpec, counted: Any, tmp_path: Path
):
    asked_of = questions(run, chain_sum, windows(8), 4)
    model = student(run, TINY, chain_sum, asked_of, 0)
    window = Window(start=2000, size=10)

    def evaluated(seed: int, number: int, samples: int = 1) -> tuple[Any, int]:
        spec = SAMPLED.model_copy(update={"questions": number, "samples": samples})
        asked = exam(run, chain_sum, window, number)
        return counted(lambda: evaluate(run, spec, model, chain_sum, asked, seed))

    small, asked = evaluated(0, 4)
    assert asked == 4
    large, asked = evaluated(0, 7)
    assert asked == 3
    assert rows(run, large, "episodes.jsonl")[:4] == rows(run, small, "episodes.jsonl")
    assert evaluated(1, 7)[1] == 7, "another seed draws other answers"
    several, asked = evaluated(0, 3, samples=2)
    assert asked == 3, "the first sample of each is known"
    assert [(row["place"], row["sample"]) for row in rows(run, several, "episodes.jsonl")] == [
        (0, 0), (1, 1), (2, 0), (3, 1), (4, 0), (5, 1),
    ]  # fmt: skip


def test_a_student_is_built_once_for_all_that_it_reads_alike(run: RunContext, chain_sum: EnvironmentSpec):
    first = questions(run, chain_sum, windows(8), 4)
    built = student(run, TINY, chain_sum, first, 0)
    more = questions(run, chain_sum, windows(8, 12), 6)
    assert built_alike(run, TINY, chain_sum, more, 0) == built
    dearer = chain_sum.model_copy(update={"version": f"{chain_sum.version}.1"})
    assert built_alike(run, TINY, dearer, more, 0) == built
    assert built_alike(run, TINY, chain_sum, more, 1) is None
    wider = TINY.model_copy(update={"build": BuiltStudent(hidden_size=32, heads=1, layers=1)})
    assert built_alike(run, wider, chain_sum, more, 0) is None


def test_a_student_that_reads_other_tokens_is_another_one(run: RunContext, chain_sum: EnvironmentSpec):
    student(run, TINY, chain_sum, questions(run, chain_sum, windows(8), 4), 0)
    lines = [{"purpose": "collect", "seed": seed, "question": f"{seed}?", "used": True} for seed in (0, 1)]
    others = published(run, lines, chain_sum)
    assert built_alike(run, TINY, chain_sum, others, 0) is None


@pytest.mark.long
def test_rows_that_are_kept_alike_are_the_ones_that_were_trained_on(run: RunContext, chain_sum: EnvironmentSpec):
    rollouts = collect(run, CollectSpec(), TEACHER, chain_sum, Window(start=0, size=8))
    first = filter_rollouts(run, rollouts, questions(run, chain_sum, windows(8), 4))
    second = filter_rollouts(run, rollouts, questions(run, chain_sum, windows(8), 3))
    assert second.revision != first.revision
    assert first_alike(run.store, second) == first_alike(run.store, first), (
        "made in one second, either may be the first"
    )
    larger = collect(run, CollectSpec(), TEACHER, chain_sum, Window(start=0, size=12))
    other = filter_rollouts(run, larger, questions(run, chain_sum, windows(12), 4))
    assert first_alike(run.store, other) == other
