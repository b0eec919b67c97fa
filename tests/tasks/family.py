"""An artifact of every kind, as one toy run would leave them in a store, each with its card; nothing is trained."""

import json
import shutil
from pathlib import Path
from typing import Any

from huggingface_hub import DatasetCard, ModelCard

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.tools import tools_text
from apprentice.tasks.analysis.comparison import compare_all
from apprentice.tasks.artifacts.local import LocalStore
from apprentice.tasks.artifacts.provenance import Provenance, parent
from apprentice.tasks.artifacts.types import (
    Artifact,
    BaseStudent,
    Decision,
    Evaluation,
    GrpoCheckpoint,
    KeptRollouts,
    LengthStats,
    Questions,
    Release,
    Rollouts,
    SftCheckpoint,
    Verdict,
)
from apprentice.tasks.cards.card import write_card
from apprentice.tasks.engine.run import RunContext, StandingServers
from apprentice.tasks.engine.stage import StageContext
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.record import Record
from apprentice.tasks.judgement.rules import GateSpec
from apprentice.tasks.release import release
from apprentice.tasks.settings.endpoint import TeacherSpec
from apprentice.tasks.settings.grpo_settings import GrpoSpec
from apprentice.tasks.settings.sft_settings import SftSpec
from apprentice.tasks.settings.spec import BuiltStudent, CollectSpec, EvaluateSpec, StudentSpec
from apprentice.tasks.statistics.rates import with_intervals
from apprentice.tasks.student import student
from tests.tasks.evaluations import episodes

BUILT = StudentSpec(build=BuiltStudent(hidden_size=16, intermediate_size=16, layers=1, heads=1, max_positions=256))
CLEAN = {
    "questions": 4,
    "shared_with_training": 0,
    "share": 0.0,
    "limit": 0.0,
    "shared_seeds": 0,
    "clean": True,
}
HELD_OUT = "12 + 34 = | `?`\n"
REWARDS = {"base": [0.0, 0.0, 0.0, 0.5], "sft": [1.0, 0.0, 0.0, 0.5], "grpo": [1.0, 1.0, 1.0, 0.5]}
WINDOW = {"start": 0, "size": 3}


def in_record(value: Any) -> Any:
    """A setting as a stage's record has it."""
    return value.in_made_by() if hasattr(value, "in_made_by") else value.in_key() if hasattr(value, "in_key") else value


class Family:
    """The artifacts of one run.

    Args:
        began: What the student's settings are; weights are built whatever they say. It thinks as they say.
        contamination: What the verdict says of it.
        level: In what GRPO trained; the environment when left out.
    """

    def __init__(
        self,
        store: LocalStore,
        folder: Path,
        environment: EnvironmentSpec,
        teacher: TeacherSpec | None = None,
        began: StudentSpec = BUILT,
        contamination: dict[str, Any] = CLEAN,
        level: EnvironmentSpec | None = None,
    ):
        self.store, self.folder = store, folder
        store.describe = write_card
        self.environment = environment
        self.work = RunContext(store, StandingServers({}, None))
        self.task = environment.model_dump(mode="json")
        self.level = (level or environment).model_dump(mode="json")
        self.questions = self._questions()
        self.rollouts, self.kept = self._rollouts(teacher or TeacherSpec(scripted_error_rate=0.1))
        self.base = self._base(began)
        counts = {name: 1 for name in ("p50", "p95", "p99", "longest", "max_length", "truncated")}
        inputs = {"kept": self.kept, "student": self.base}
        self.lengths = self.make(LengthStats, "lengths", {"lengths.json": json.dumps(counts)}, counts, {}, inputs)
        self.sft = self._trained(SftCheckpoint, SftSpec(), student=self.base, kept=self.kept)
        self.trained_on = self._level_questions() if level else self.questions
        self.grpo = self._trained(GrpoCheckpoint, GrpoSpec(), checkpoint=self.sft, questions=self.trained_on)
        self.evaluations = {name: self._evaluation(name) for name in REWARDS}
        self.verdict = self._verdict(contamination)
        decision = {
            "rival": "base",
            "promoted": True,
            "metric": "accuracy",
            "comparison": {"delta": 0.5, "ci": (0.4, 0.6), "questions_for_5_points": 800},
            "floor": {"at_least": 0.2, "why": "gate.at_least, by default", "holds": True},
            "unseen_by_both": 1000,
            "rules": [{"rule": "better", "holds": True, "found": "50%"}],
        }
        counts = {"promoted": True, "metric": "accuracy", "delta": 0.5, "reasons": []}
        inputs = {"challenger": self.grpo, "rival": self.base, "judged": self.verdict}
        text = json.dumps(decision)
        self.decision = self.make(Decision, "gate", {"decision.json": text}, counts, {"spec": GateSpec()}, inputs)
        self.release = self._release()

    def make(
        self,
        kind: type[Artifact],
        stage: str,
        files: dict[str, str] | Path,
        counts: dict[str, Any],
        settings: dict[str, Any],
        inputs: dict[str, Any],
    ) -> Any:
        """Publishes files, or those of a folder, with the card of a stage that made them."""
        settings = {name: in_record(value) for name, value in settings.items()}
        revisions = {name: each.revision for name, each in inputs.items()}
        made_by = {"stage": stage, "version": 1, "settings": settings, "inputs": revisions, "packages": {}}
        provenance = Provenance(
            code="apprentice 0.1.0, commit c0ffee",
            made_at="2026-11-21T18:00:00+00:00",
            worker="machine-of-mine",
            inputs={name: parent(each) for name, each in inputs.items()},
        )
        key = f"{stage:-<20}"[:19] + str(len(json.dumps(made_by)) % 10)
        with self.store.staging() as out:
            if isinstance(files, Path):
                shutil.copytree(files, out, dirs_exist_ok=True)
            else:
                for name, text in files.items():
                    (out / name).write_text(text)
            return self.store.publish(kind, key, out, counts, made_by, provenance)

    def _questions(self) -> Questions:
        questions = {"collect": "1 + 2 =", "grpo": "3 + 4 =", "evaluate": HELD_OUT}
        rows = [
            {"purpose": why, "seed": seed, "question": text, "used": True}
            for seed, (why, text) in enumerate(questions.items())
        ]
        counts = {"collect": 1, "grpo": 1, "evaluate": 1, "dropped_from_grpo": 0}
        windows = {why: {"start": seed, "size": 1} for seed, why in enumerate(questions)}
        settings = {"environment": self.task, "windows": windows, "examined": 1}
        return self.make(Questions, "questions", {"questions.jsonl": _lines(rows)}, counts, settings, {})

    def _level_questions(self) -> Questions:
        text = _lines([{"purpose": "grpo", "seed": 1, "question": "30 + 40 + 50 =", "used": True}])
        counts = {"collect": 0, "grpo": 1, "evaluate": 0, "dropped_from_grpo": 0}
        settings = {"environment": self.level, "window": {"start": 1, "size": 1}}
        inputs = {"kept_out.held_out": self.questions}
        return self.make(Questions, "rung_questions", {"questions.jsonl": text}, counts, settings, inputs)

    def _rollouts(self, teacher: TeacherSpec) -> tuple[Rollouts, KeptRollouts]:
        call = {"id": "1", "type": "function", "function": {"name": "answer", "arguments": '{"answer": "3"}'}}
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        instance = self.environment.make()
        about: dict[str, Any] = {"environment": "reasoning_gym 1", "tools": tools_text(instance.tools)}
        about["messages"] = [
            *prompt(instance, "1 + 2 ="),
            said,
            {"role": "tool", "content": "OK.", "tool_call_id": "1"},
        ]
        lost = {"reward": None, "failed_at": "environment", "cause": "http://10.0.0.7:8000 is gone"}
        played = [Record(seed=0, reward=1.0, **about), Record(seed=1, reward=0.0, **about)]
        played.append(Record(seed=2, **about, **lost))
        text = "".join(record.line().decode() for record in played)
        counts = {"episodes": 3, "failed": 1, "prompt_tokens": 1000, "completion_tokens": 20, "cached_tokens": 0}
        counts |= {"reasoning_tokens": 0, "cost_usd": 0.25}
        settings = {"spec": CollectSpec(), "teacher": teacher, "environment": self.task, "window": WINDOW}
        rollouts = self.make(Rollouts, "collect", {"rollouts.jsonl": text}, counts, settings, {})
        dropped = {"episodes": 3, "kept": 1, "dropped": {"wrong answer": 1, "failed at the environment": 1}}
        files = {"kept.jsonl": played[0].line().decode(), "samples.md": "one\n"}
        inputs = {"rollouts": rollouts, "questions": self.questions}
        return rollouts, self.make(KeptRollouts, "filter_rollouts", files, dropped, {}, inputs)

    def _base(self, began: StudentSpec) -> BaseStudent:
        model = self.folder / "model"
        model.mkdir()
        built = BUILT.model_copy(update={"thinking": began.thinking})
        counts = student.body(
            StageContext(self.work, "k", model, self.folder), built, self.environment, self.questions, 0
        )
        files = model
        if began.build is None:  # the weights stay where they are
            files = self.folder / "reference"
            shutil.copytree(model, files, ignore=shutil.ignore_patterns("*.safetensors"))
            (files / "source.json").write_text(json.dumps({"model": began.model, "revision": began.revision}))
        settings = {"spec": began, "environment": self.task, "seed": 0}
        return self.make(BaseStudent, "student", files, counts, settings, {"questions": self.questions})

    def _trained(self, kind: Any, spec: Any, **inputs: Artifact) -> Any:
        model = self.folder / kind.suffix
        shutil.copytree(self.folder / "model", model)
        (model / "curves.png").write_bytes(b"a picture")
        (model / "learned.jsonl").write_text(_lines([{"stage": kind.suffix, "seed": 0, "question": "1 + 2 ="}]))
        counts = {"parameters": self.base.parameters, "stage": kind.suffix}
        settings = {"spec": spec, "seed": 0} | ({"environment": self.level} if kind is GrpoCheckpoint else {})
        return self.make(kind, kind.suffix, model, counts, settings, inputs)

    def _evaluation(self, name: str) -> Evaluation:
        text = b"".join(record.line() for record in episodes(REWARDS[name])).decode()
        rates = {"format_compliance": 1.0, "accuracy": 0.75, "mean_score": 0.875}
        counts = {"model": name, "protocol": "parity", "n": 4, "cost_usd": 0.0} | rates
        settings = {"spec": EvaluateSpec(questions=4), "environment": self.task, "seed": 0}
        inputs = {"checkpoint": getattr(self, name), "questions": self.questions}
        return self.make(Evaluation, f"evaluate-{name}", {"episodes.jsonl": text}, counts, settings, inputs)

    def _verdict(self, contamination: dict[str, Any]) -> Verdict:
        played = {name: episodes(rewards) for name, rewards in REWARDS.items()}
        models = {name: with_intervals(records) for name, records in played.items()}
        report = {"models": models, **compare_all(played, {}), "contamination": contamination}
        report["grpo"] = {"diagnosis": "learning", "advice": "Go on."}
        inputs = {f"evaluations.{name}": each for name, each in self.evaluations.items()} | {"trained": self.grpo}
        counts = {"diagnosis": "learning", "contaminated": not contamination["clean"]}
        settings = {"environment": self.task}
        return self.make(Verdict, "verdict", {"verdict.json": json.dumps(report)}, counts, settings, inputs)

    def _release(self) -> Release:
        out = self.folder / "release"
        out.mkdir()
        counts = release.body(StageContext(self.work, "k", out, self.folder), self.grpo, self.verdict, self.decision)
        inputs = {"trained": self.grpo, "judged": self.verdict, "decision": self.decision}
        return self.make(Release, "release", out, counts, {}, inputs)

    def all(self) -> list[Artifact]:
        found = [*vars(self).values(), *self.evaluations.values()]
        return [each for each in found if isinstance(each, Artifact)]


def _lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def card(store: LocalStore, artifact: Artifact) -> Any:
    """A card as the Hub's own client reads it."""
    reader = ModelCard if type(artifact).repo_type == "model" else DatasetCard
    return reader.load(store.fetch(artifact) / "README.md")
