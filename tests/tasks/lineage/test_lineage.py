"""A lineage leads back to every episode, also where the folder is empty, and shows what there is of older artifacts."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from apprentice.tasks.artifacts.hub import HubStore
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import Provenance, parent
from apprentice.tasks.artifacts.types import (
    Artifact,
    BaseStudent,
    Decision,
    Evaluation,
    GrpoCheckpoint,
    KeptRollouts,
    Questions,
    Release,
    Rollouts,
    SftCheckpoint,
    make_key,
)
from apprentice.tasks.lineage.lineage import Lineage, lineage_of
from apprentice.tasks.lineage.lineage_tree import as_tree
from apprentice.tasks.reporting.errors import Stop
from tests.hub_server import LocalHub
from tests.tasks.artifacts.test_hub import hub

assert hub  # a fixture

WORDS = {"name": "reasoning_gym", "settings": {"dataset": "spell_backward"}, "version": "1", "revision": ""}
TOKENS = dict(prompt_tokens=0, completion_tokens=0, cached_tokens=0, reasoning_tokens=0, cost_usd=0.0)
RATES = dict(model="grpo", protocol="parity", n=1, format_compliance=1.0, accuracy=1.0, mean_score=1.0, cost_usd=0.0)


def publish(
    store: LocalStore,
    kind: type[Artifact],
    counts: dict[str, Any],
    files: dict[str, list[Any]],
    inputs: dict[str, Artifact],
    code: str = "apprentice 1",
    **settings: Any,
) -> Any:
    """An artifact as a stage publishes it, with lines of JSON in its files."""
    revisions = {name: artifact.revision for name, artifact in inputs.items()}
    stage = kind.__name__.lower()
    key = make_key(stage, 1, settings, revisions)
    made_by = {"stage": stage, "version": 1, "settings": settings, "inputs": revisions, "packages": {}}
    provenance = Provenance(
        stage=f"apprentice.tasks.{stage}:{stage}",
        code=code,
        recipe={"name": "toy", "seed": 7},
        made_at="2026-01-02T03:04:05+00:00",
        inputs={name: parent(artifact) for name, artifact in inputs.items()},
    )
    with store.staging() as folder:
        for name, lines in files.items():
            (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return store.publish(kind, key, folder, counts, made_by, provenance)


class Toys:
    """A small run: five episodes of which seed 2 was dropped, SFT, GRPO on one question, an examination, a release."""

    def __init__(self, store: LocalStore, first: int = 0, rival: "Toys | None" = None):
        seeds = range(first, first + 5)
        played = [{"seed": seed, "messages": [{}, {"content": f"word {seed}"}]} for seed in seeds]
        kept = [row for row in played if row["seed"] != first + 2]
        sft = [{"stage": "sft", "seed": row["seed"], "question": row["messages"][1]["content"]} for row in kept]
        grpo = [*sft, {"stage": "grpo", "seed": first + 100, "question": "a word"}]
        weights = {"model.safetensors": [first]}
        used = dict(collect=5, grpo=1, evaluate=1, dropped_from_grpo=0)
        self.questions = publish(store, Questions, used, {"questions.jsonl": []}, {}, first=first, environment=WORDS)
        self.rollouts = publish(
            store,
            Rollouts,
            {"episodes": 5, "failed": 0} | TOKENS,
            {"rollouts.jsonl": played},
            {},
            code="apprentice 0",
            window={"start": first, "size": 5},
            teacher={"scripted_error_rate": 0.1, "model": "gpt-5-mini"},
            environment=WORDS,
        )
        counts = {"episodes": 5, "kept": 4, "dropped": {"wrong answer": 1}}
        inputs = {"rollouts": self.rollouts, "questions": self.questions}
        self.kept = publish(store, KeptRollouts, counts, {"kept.jsonl": kept}, inputs)
        self.base = publish(store, BaseStudent, {"parameters": 1}, weights, {"questions": self.questions})
        inputs = {"student": self.base, "kept": self.kept}
        self.sft = publish(store, SftCheckpoint, {"parameters": 1}, weights | {"learned.jsonl": sft}, inputs)
        inputs = {"checkpoint": self.sft, "questions": self.questions}
        learned = weights | {"learned.jsonl": grpo}
        self.grpo = publish(store, GrpoCheckpoint, {"parameters": 1}, learned, inputs, environment=WORDS)
        inputs = {"checkpoint": self.grpo, "questions": self.questions}
        self.evaluation = publish(store, Evaluation, RATES, {"episodes.jsonl": []}, inputs)
        inputs = {"challenger": self.grpo, "rival": rival.release if rival else self.base}
        counts = dict(promoted=True, metric="accuracy", delta=1.0, reasons=[])
        self.decision = publish(store, Decision, counts, {"decision.json": []}, inputs)
        inputs = {"trained": self.grpo, "decision": self.decision}
        counts = dict(parameters=1, weights="w", promoted=True)
        self.release = publish(store, Release, counts, learned, inputs)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "artifacts", "toy")


def tree(lineage: Lineage) -> str:
    out = StringIO()
    Console(file=out, width=200).print(as_tree(lineage))
    return out.getvalue()


def test_a_model_is_followed_back_to_its_episodes_its_code_its_recipe_and_its_environment(store: LocalStore):
    toys = Toys(store)
    lineage = lineage_of(toys.release.key, store.root).as_json()
    assert lineage["root"] == toys.release.key
    assert lineage["artifacts"][0]["kind"] == "Release"
    everything = {each["revision"] for each in lineage["artifacts"]}
    assert everything == {each.revision for each in vars(toys).values()} - {toys.evaluation.revision}
    assert lineage["recipe"] == {"name": "toy", "seed": 7}
    assert lineage["code"] == ["apprentice 1", "apprentice 0"]
    assert lineage["environments"] == [WORDS]
    held = f"{toys.kept.repository}@{toys.kept.key}"
    sft_episodes = [
        {"stage": "sft", "seed": seed, "question": f"word {seed}", "rollouts": held} for seed in (0, 1, 3, 4)
    ]
    assert lineage["episodes"] == [*sft_episodes, {"stage": "grpo", "seed": 100, "question": "a word"}]


def test_each_artifact_stands_after_what_it_was_made_from(store: LocalStore):
    toys = Toys(store)
    nodes = list(lineage_of(toys.release.key, store.root).nodes)
    for place, node in enumerate(lineage_of(toys.release.key, store.root).nodes.values()):
        assert all(nodes.index(above.named.revision) < place for above in node.inputs.values())


def test_who_a_model_was_compared_with_taught_it_nothing(store: LocalStore):
    champion = Toys(store)
    challenger = Toys(store, first=50, rival=champion)
    lineage = lineage_of(challenger.release.key, store.root)
    assert champion.kept.revision in lineage.nodes
    assert [row["seed"] for row in lineage.episodes] == [50, 51, 53, 54, 150]


def test_an_examination_leads_to_what_its_model_learned_and_rollouts_to_themselves(store: LocalStore):
    toys = Toys(store)
    assert [row["seed"] for row in lineage_of(toys.evaluation.key, store.root).episodes] == [0, 1, 3, 4, 100]
    played = lineage_of(toys.rollouts.key, store.root).episodes
    assert played[2] == {
        "stage": "collect",
        "seed": 2,
        "question": "word 2",
        "rollouts": f"{toys.rollouts.repository}@{toys.rollouts.key}",
    }


def test_what_is_gone_is_named_and_the_rest_is_shown(store: LocalStore):
    import shutil

    toys = Toys(store)
    shutil.rmtree(store.root / "datasets" / toys.rollouts.repository)
    lineage = lineage_of(toys.release.key, store.root)
    assert f"{toys.rollouts.repository}@{toys.rollouts.key}, revision {toys.rollouts.revision[:12]}: not there" in tree(
        lineage
    )
    gone = [each for each in lineage.as_json()["artifacts"] if "gone" in each]
    assert [each["key"] for each in gone] == [toys.rollouts.key]
    assert len(lineage.episodes) == 5


def test_of_older_artifacts_there_is_shown_what_they_say(store: LocalStore):
    """They have neither kind nor provenance, and their revision is another digest."""
    made_by = {"stage": "student", "version": 1, "settings": {"seed": 3}, "inputs": {"questions": "b" * 40}}
    older(store, "toy-questions", "datasets", "b" * 40, "2" * 20, {"stage": "questions", "settings": {}, "inputs": {}})
    older(store, "toy-base", "models", "a" * 40, "1" * 20, made_by | {"inputs": {"questions": "b" * 40, "x": "c" * 40}})
    lineage = lineage_of("1" * 20, store.root)
    assert [node.named.kind for node in lineage.nodes.values()][-1] == "BaseStudent"
    text = tree(lineage)
    assert "made, nobody wrote down when by student, version 1; by which code, nobody wrote down" in text
    assert f"local/toy-questions@{'2' * 20}" in text
    assert "an input of which older code wrote down no more, revision cccccccccccc: not there" in text
    assert lineage.as_json()["episodes"] == []


def older(store: LocalStore, repository: str, folder: str, revision: str, key: str, made_by: dict[str, Any]) -> None:
    at = store.root / folder / "local" / repository
    (at / "snapshots" / revision).mkdir(parents=True)
    (at / "refs").mkdir()
    counts = {"parameters": 1} if folder == "models" else dict(collect=1, grpo=1, evaluate=1, dropped_from_grpo=0)
    record = {"key": key, "counts": counts, "made_by": made_by, "files": {}}
    (at / "snapshots" / revision / "artifact.json").write_text(json.dumps(record))
    (at / "refs" / key).write_text(revision)


RATES_OF_QUESTIONS = dict(collect=5, grpo=1, evaluate=1, dropped_from_grpo=0)
QUESTION_SETTINGS: dict[str, Any] = dict(first=0, environment=WORDS)


def test_a_lineage_is_whole_where_all_of_it_lies_on_the_hub_and_fetches_no_weights(hub: LocalHub, tmp_path: Path):
    toys = Toys(HubStore(tmp_path / "maker", "toy", "team", patience=20.0))
    here = lineage_of(toys.release.key, tmp_path / "maker", "team")
    there = lineage_of(toys.release.key[:8], tmp_path / "empty", "team")
    assert there.as_json() == here.as_json()
    assert len(there.episodes) == 5
    assert tree(there) == tree(here)
    assert not list((tmp_path / "empty").rglob("*.safetensors"))
    with pytest.raises(Stop, match="nor on the Hub under team"):
        lineage_of("0" * 20, tmp_path / "empty", "team")


def test_a_list_of_episodes_that_was_changed_on_the_hub_is_not_believed(hub: LocalHub, tmp_path: Path):
    toys = Toys(HubStore(tmp_path / "maker", "toy", "team", patience=20.0))
    for blob in (tmp_path / "hub").rglob("*"):
        if blob.is_file() and b'"stage": "grpo"' in (text := blob.read_bytes()):
            blob.write_bytes(text.replace(b"a word", b"a WORD"))
    with pytest.raises(Stop, match=r"learned\.jsonl of team/toy-model is not what its record says"):
        lineage_of(toys.release.key, tmp_path / "empty", "team").as_json()
