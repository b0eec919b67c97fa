"""What is made again from its record is the same, or is told to be another; a stranger's record runs nothing else."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prefect import flow

from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.reproduce import MOVED, Outcome, reproduce
from apprentice.flows.runtime.servers import RunServers
from apprentice.tasks.artifacts.lineage import lineage_of
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.types import Artifact, BaseStudent, KeptRollouts, Questions, Rollouts, RolloutShard
from apprentice.tasks.collect import collect
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.filter import filter_rollouts
from apprentice.tasks.questions import questions
from apprentice.tasks.release import weights_of
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.student import student
from tests.flows.commands import BIN, TOY, run_command

SMALL = ["windows.collect.size=8", "windows.grpo.size=8", "windows.evaluate.size=8", "evaluate.questions=4"]


class Made(NamedTuple):
    """What the first stages of the toy recipe made, and where."""

    root: Path
    server: list[str]
    """As a person names the environment's server."""
    asked: Questions
    rollouts: Rollouts
    kept: KeptRollouts
    base: BaseStudent

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.root, "toy")

    def again(
        self, key: str, deep: bool = False, yes: bool = False, overrides: list[str] | None = None
    ) -> list[Outcome]:
        return reproduce(lineage_of(key, self.root), [*self.server, *(overrides or [])], deep, yes)

    def change(
        self,
        artifact: Artifact,
        files: dict[str, str] | None = None,
        made_by: dict[str, Any] | None = None,
        **provenance: str,
    ) -> None:
        """Publishes an artifact again with something changed, under its own key."""
        record = self.store.record(type(artifact), artifact.key, artifact.revision)
        with self.store.staging() as folder:
            shutil.copytree(self.store.fetch(artifact), folder, dirs_exist_ok=True)
            (folder / "artifact.json").unlink()
            for name, text in (files or {}).items():
                (folder / name).write_text(text)
            by = record.made_by | (made_by or {})
            changed = self.store.publish(type(artifact), artifact.key, folder, record.counts, by, record.provenance)
        file = self.store.fetch(changed) / "artifact.json"  # what stands beside makes no other revision
        written = json.loads(file.read_text())
        written["provenance"] |= provenance
        file.write_text(json.dumps(written))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, server: EnvironmentServer, prefect_server: None) -> Made:
    """Questions, a collection, its filter and a student, by the stages themselves."""
    root = tmp_path_factory.mktemp("made")
    recipe = load_recipe(TOY, [*SMALL, f"server.url={server.url}"])
    store = LocalStore(root, "toy")

    @flow
    def begin() -> Made:
        with RunServers(recipe) as servers:
            work = RunContext(store, servers, recipe=recipe.for_record())
            asked = questions(work, recipe.environment, recipe.seed_windows(), recipe.evaluate.questions)
            window = recipe.seed_windows().collect
            assert recipe.teacher
            rollouts = collect(work, recipe.collect, recipe.teacher, recipe.environment, window)
            kept = filter_rollouts(work, rollouts, asked)
            base = student(work, recipe.student, recipe.environment, asked, 0)
        return Made(root, [f"server.url={server.url}"], asked, rollouts, kept, base)

    return begin()


@pytest.fixture
def made(first: Made, tmp_path: Path) -> Made:
    """A copy that a test may spoil."""
    shutil.copytree(first.root, tmp_path / "artifacts")
    return first._replace(root=tmp_path / "artifacts")


@pytest.mark.long
def test_what_is_made_again_with_all_that_it_was_made_from_is_the_same(made: Made):
    outcomes = made.again(made.kept.key, deep=True)
    assert [each.stage for each in outcomes] == ["questions", "collect", "filter_rollouts"]
    assert all(each.same and not each.differing and not each.differences for each in outcomes)
    assert {each.decided_by for each in outcomes} == {"data"}


def test_a_collection_is_played_anew_and_what_was_played_is_not_copied(made: Made):
    """Its shard lies in the store, and says something else by now."""
    [key] = (path.name for path in (made.root / "datasets/local/toy-rollout-shards/refs").iterdir())
    shard = made.store.find(RolloutShard, key)
    assert shard is not None
    made.change(shard, {"rollouts.jsonl": "{}\n"})
    before = sorted(path for path in made.root.rglob("*") if ".locks" not in path.parts and "logs" not in path.parts)
    [outcome] = made.again(made.rollouts.key)
    assert outcome.same
    after = sorted(path for path in made.root.rglob("*") if ".locks" not in path.parts and "logs" not in path.parts)
    assert after == before, "nothing is left in the store"


def test_a_model_is_the_same_by_its_weights(made: Made):
    [outcome] = made.again(made.base.key)
    assert (outcome.same, outcome.decided_by) == (True, "weights")
    assert outcome.digest == weights_of(made.store.fetch(made.base))
    made.change(made.base, {"config.json": "{}"})
    [outcome] = made.again(made.base.key)
    assert (outcome.same, outcome.differing) == (True, ["config.json"])


def test_a_file_that_was_changed_and_published_again_is_named(made: Made):
    text = (made.store.fetch(made.kept) / "kept.jsonl").read_text()
    made.change(made.kept, {"kept.jsonl": text.splitlines(keepends=True)[0]})
    [outcome] = made.again(made.kept.key)
    assert (outcome.same, outcome.differing) == (False, ["kept.jsonl"])
    assert outcome.digest != outcome.digest_again


@pytest.mark.long
def test_the_command_ends_with_3_where_the_result_is_another_one(made: Made, tmp_path: Path):
    made.change(made.kept, {"kept.jsonl": "{}\n"})
    at = ["--store", str(made.root), "--json"]
    done = run_command([str(BIN / "apprentice"), "reproduce", made.kept.key, *at], tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "NOT the same data: kept.jsonl" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["same"] is False


def test_a_file_that_was_changed_in_the_folder_stops_it(made: Made):
    (made.store.fetch(made.kept) / "kept.jsonl").write_text("{}\n")
    with pytest.raises(Stop, match=r"is not what was published: kept\.jsonl"):
        made.again(made.kept.key)


@pytest.mark.parametrize(
    ("stage", "says"),
    [
        ("os:system", "not in apprentice.tasks: it was not run"),
        ("apprentice.flows.cli.app:app", "not in apprentice.tasks"),
        ("apprentice.tasks.evil.deep:stage", "not in apprentice.tasks"),
        ("apprentice.tasks.nowhere:stage", "This code has no stage apprentice.tasks.nowhere:stage"),
        ("apprentice.tasks.grpo:train_grpo", "This code has no stage apprentice.tasks.grpo:train_grpo"),
        ("apprentice.tasks.collect:collect", "This code has no stage apprentice.tasks.collect:collect that makes Kept"),
        ("", "was made by older code, which recorded neither its stage nor its recipe"),
    ],
)
def test_nothing_but_the_stage_that_made_it_is_run(made: Made, stage: str, says: str):
    made.change(made.kept, stage=stage)
    with pytest.raises(Stop, match=says):
        made.again(made.kept.key)


def test_a_stage_is_found_under_the_module_name_of_older_code(made: Made):
    made.change(made.kept, stage="apprentice.tasks.filter:filter_rollouts")
    [outcome] = made.again(made.kept.key)
    assert outcome.same


@pytest.mark.parametrize(("before", "now"), MOVED.items())
def test_a_module_that_moved_is_where_the_table_says(before: str, now: str):
    assert find_spec(before) is None
    assert find_spec(now) is not None


def test_what_is_different_here_is_told(made: Made):
    record = made.store.record(Questions, made.asked.key, made.asked.revision)
    there = {"version": 1, "packages": record.made_by["packages"] | {"torch": "1.0"}}
    there |= {"settings": record.made_by["settings"] | {"environment": at_another_version(made)}}
    made.change(made.asked, made_by=there, code="apprentice 0")
    [outcome] = made.again(made.asked.key)
    assert outcome.same
    told = "\n".join(outcome.differences)
    assert "questions is version 2 here; version 1 made" in told
    assert "reasoning_gym is version 2 here; " in told
    assert "was made in version 0.9" in told
    assert "torch is " in told
    assert "was made by apprentice 0." in told


def test_a_script_that_erred_in_other_ways_is_told(made: Made):
    record = made.store.record(Rollouts, made.rollouts.key, made.rollouts.revision)
    teacher = record.made_by["settings"]["teacher"] | {"script": "of older code"}
    made.change(made.rollouts, made_by={"settings": record.made_by["settings"] | {"teacher": teacher}})
    [outcome] = made.again(made.rollouts.key)
    assert outcome.same
    assert any("The scripted teacher errs in other ways here than when" in told for told in outcome.differences)


def at_another_version(made: Made) -> dict[str, Any]:
    record = made.store.record(Questions, made.asked.key, made.asked.revision)
    return record.made_by["settings"]["environment"] | {"version": "0.9"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"spec": {"asks": 0}}, "The setting spec does not fit this code"),
        ({"more": 1}, "collect has no argument more here"),
    ],
)
def test_settings_that_this_code_does_not_take_are_told_with_the_code_that_does(made: Made, settings: Any, says: str):
    record = made.store.record(Rollouts, made.rollouts.key, made.rollouts.revision)
    made.change(made.rollouts, made_by={"settings": record.made_by["settings"] | settings})
    with pytest.raises(Stop, match=f"(?s){says}.*Use the code that made it: {record.provenance.code[:10]}"):
        made.again(made.rollouts.key)


def test_no_teacher_is_paid_again_unasked(made: Made):
    record = made.store.record(Rollouts, made.rollouts.key, made.rollouts.revision)
    elsewhere = {"scripted_error_rate": None, "base_url": "http://127.0.0.1:9/v1"}
    teacher = record.made_by["settings"]["teacher"] | elsewhere
    made.change(made.rollouts, made_by={"settings": record.made_by["settings"] | {"teacher": teacher}})
    with pytest.raises(Stop, match=r"buys 8 episodes again, from gpt-5-mini at http://127.0.0.1:9/v1.*\n→ Pass --yes"):
        made.again(made.rollouts.key)


def test_no_code_of_a_student_is_run_unasked(made: Made):
    record = made.store.record(BaseStudent, made.base.key, made.base.revision)
    stranger = {"model": "stranger/model", "revision": "main", "build": None, "trust_remote_code": True}
    made.change(made.base, made_by={"settings": record.made_by["settings"] | {"spec": stranger}})
    with pytest.raises(Stop, match=r"loads stranger/model@main in a way that can run its code"):
        made.again(made.base.key)


def test_what_is_set_may_say_where_servers_are_and_nothing_else(made: Made):
    with pytest.raises(Stop, match="would make a different artifact"):
        made.again(made.kept.key, overrides=["grpo.max_steps=9"])
    with pytest.raises(Stop, match="did you mean url"):
        made.again(made.kept.key, overrides=["server.urls=http://127.0.0.1:9"])


def test_what_was_made_from_something_that_is_gone_is_told_before_anything_runs(made: Made):
    shutil.rmtree(made.root / "datasets" / made.rollouts.repository)
    with pytest.raises(Stop, match=f"toy-rollouts@{made.rollouts.key}.*no longer exists"):
        made.again(made.kept.key)
