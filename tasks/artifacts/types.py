"""The types on the arrows between stages.

In: a stage's result. Out: a frozen reference: repository, immutable revision, key, a few counts. Never data, never a
path: the next stage may run on another machine and fetches its inputs from the store.

The record beside every artifact: its stage, its inputs, its code, and the hash of each file.

In: a running stage. Out: artifact.json. Two parts: the content and its making enter the revision, so that the
same work has the same revision on any machine; the circumstances (code, recipe, time, place) and the card do not.
"""

import hashlib
import json
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_serializer

from apprentice.tasks.reporting.errors import Stop

KEY_LENGTH = 20
NAME = r"^\w[\w.-]*$"
"""Of keys and tags: they become names of files, and records may come from strangers."""
REPOSITORY = r"^\w[\w.-]*/\w[\w.-]*$"
LONGEST_NAME = 200
Count = Annotated[int, Field(ge=0, le=10**15)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Usd = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class Artifact(BaseModel):
    """A published result of one stage."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    repo_type: ClassVar[Literal["dataset", "model"]] = "dataset"
    suffix: ClassVar[str]

    repository: str = Field(pattern=REPOSITORY, max_length=LONGEST_NAME)
    """`namespace/name`, as on the Hub."""
    revision: str = Field(pattern=NAME, max_length=LONGEST_NAME)
    """Names the content for ever: a digest of every file."""
    key: str = Field(pattern=NAME, max_length=LONGEST_NAME)
    """Names what made it: stage, version, settings, inputs' revisions."""

    @property
    def figure(self) -> str:
        """Its result in a few words, for the terminal; empty where a number would not help."""
        return ""


class Questions(Artifact):
    """Questions of seed windows, as text."""

    suffix = "questions"
    collect: Count
    grpo: Count
    evaluate: Count
    dropped_from_grpo: Count
    """GRPO seeds whose question stands in the evaluation set."""

    @property
    def figure(self) -> str:
        return f"{self.collect + self.grpo + self.evaluate:,} questions"


class Rollouts(Artifact):
    """Every episode the teacher played, failed ones included."""

    suffix = "rollouts"
    episodes: Count
    failed: Count
    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count
    """Of the prompt tokens."""
    reasoning_tokens: Count
    """Of the completion tokens."""
    cost_usd: Usd

    @property
    def figure(self) -> str:
        return f"{self.episodes:,} episodes" + (f", {self.failed:,} failed" if self.failed else "")


class RescoredRollouts(Rollouts):
    """Rollouts that exist, with the rewards of another version of their environment."""

    suffix = "rescored-rollouts"
    changed: Count
    """Episodes with another reward than before."""
    left_out: Count
    """Episodes in which the environment answers otherwise than was recorded."""


class RolloutShard(Rollouts):
    """The episodes of a part of the collect window."""

    suffix = "rollout-shards"


class KeptRollouts(Artifact):
    """The episodes that the student learns from."""

    suffix = "kept-rollouts"
    episodes: Count
    kept: Count
    dropped: dict[str, Count]
    """How many were dropped for which cause."""

    @property
    def figure(self) -> str:
        return f"{self.kept:,} of {self.episodes:,} kept"


class LengthStats(Artifact):
    """Token lengths of the training texts, and the max_length that follows."""

    suffix = "lengths"
    p50: Count
    p95: Count
    p99: Count
    longest: Count
    max_length: Count
    truncated: Count

    @property
    def figure(self) -> str:
        return f"max_length {self.max_length:,}"


class ModelName(StrEnum):
    """The models that every run may have, and those that they are measured against. Each training names its own."""

    BASE = "base"
    SFT = "sft"
    CONTROL = "control"
    GRPO = "grpo"
    CHAMPION = "champion"


class Checkpoint(Artifact):
    """A model with its tokenizer."""

    repo_type = "model"
    place: ClassVar[int | None] = None
    """Of its training among those of a run; 0 before any. None for a model that is no step of a run."""
    parameters: Count
    stage: str

    @property
    def figure(self) -> str:
        return f"{self.parameters:,} parameters"


class BaseStudent(Checkpoint):
    """The student before it learned anything."""

    suffix = "base"
    place = 0
    stage: Literal["base"] = "base"  # type: ignore[assignment]


class SftCheckpoint(Checkpoint):
    """The student after supervised fine-tuning."""

    suffix = "sft"
    place = 1
    stage: Literal["sft"] = "sft"  # type: ignore[assignment]
    loss: Number | None = None
    """As last logged; None where it was not, or older code trained."""

    @property
    def figure(self) -> str:
        return super().figure if self.loss is None else f"last loss {self.loss:.3g}"


class GrpoCheckpoint(Checkpoint):
    """The student after GRPO."""

    suffix = "grpo"
    place = 2
    stage: Literal["grpo"] = "grpo"  # type: ignore[assignment]
    reward: Number | None = None
    """Mean of the rollouts, as last logged; None where it was not, or older code trained."""

    @property
    def figure(self) -> str:
        return super().figure if self.reward is None else f"last reward {self.reward:.3g}"


class Evaluation(Artifact):
    """One model's results on the held-out questions."""

    suffix = "evaluation"
    model: str
    protocol: Literal["parity", "tutorial"]
    n: Count
    """Episodes: questions times samples."""
    broken: Count = 0
    """Of those, how many the environment broke on."""
    unfinished: Count = 0
    """Of those, how many the model ended before the environment did."""
    format_compliance: Share
    accuracy: Share
    mean_score: Number
    cost_usd: Usd
    questions: Count | None = None
    """Of several samples each; None where each question has one."""
    worth: Number | None = None
    """With several samples: to how many questions one answer each would be worth as much, see `worth` in
    tasks/analysis/comparison.py; None in evaluations of older code as well."""

    @model_serializer(mode="wrap")
    def _without_samples(self, dump: Any) -> dict[str, Any]:
        """Where each question has one sample, the counts, which enter the revision, are those of older code."""
        several = {"questions": self.questions, "worth": self.worth}
        return {name: value for name, value in dump(self).items() if several.get(name, value) is not None}

    @property
    def figure(self) -> str:
        return f"{self.accuracy:.1%} of {self.n:,}"


class Decision(Artifact):
    """Whether a challenger becomes the champion, and why."""

    suffix = "decisions"
    promoted: bool
    metric: str
    delta: Number | None
    """Of the metric, challenger less baseline; None when nothing was left to compare."""
    reasons: list[str]

    @property
    def figure(self) -> str:
        return "promoted" if self.promoted else "not promoted"


class Release(Checkpoint):
    """A trained model with its results and the gate's verdict on its card."""

    suffix = "model"
    stage: Literal["champion"] = "champion"  # type: ignore[assignment]
    weights: str
    """Digest of the weights."""
    promoted: bool

    @property
    def figure(self) -> str:
        return "champion" if self.promoted else "kept beside the champion"


class Verdict(Artifact):
    """The models compared, the GRPO curves read, and the advice that follows."""

    suffix = "verdict"
    diagnosis: str
    contaminated: bool
    """The evaluation shares more with training than the recipe allows: nothing was compared."""

    @property
    def figure(self) -> str:
        return "contaminated" if self.contaminated else self.diagnosis


@runtime_checkable
class InKey(Protocol):
    """A setting that says itself what of it identifies content."""

    def in_key(self) -> dict[str, Any]: ...


def models_by_kind() -> dict[type[Checkpoint], str]:
    """The kinds of a run's models and their names, each trained from the one before, the untrained one first."""
    placed = [kind for kind in kinds() if issubclass(kind, Checkpoint) and kind.place is not None]
    return {kind: kind.model_fields["stage"].default for kind in sorted(placed, key=lambda kind: kind.place or 0)}


def models_of_a_run() -> list[str]:
    """The names of a run's models, in their order."""
    return [*models_by_kind().values()]


def make_key(stage: str, version: int, settings: dict[str, Any], inputs: dict[str, str]) -> str:
    """The key of what `stage` makes from `settings` (JSON-able, whole) and `inputs` (argument name to revision)."""
    made_by = {"stage": stage, "version": version, "settings": settings, "inputs": inputs}
    canonical = json.dumps(made_by, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:KEY_LENGTH]


def kinds() -> list[type[Artifact]]:
    """Every kind that has repositories."""
    found, waiting = [], [Artifact]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        found += [kind] if "suffix" in vars(kind) else []
    return found


def kind_or_none(name: str) -> type[Artifact] | None:
    """The kind of that name, if it is one that has repositories."""
    return next((kind for kind in kinds() if kind.__name__ == name), None)


def artifact_type(repo_type: str, repository: str) -> type[Artifact] | None:
    """The kind whose repositories are named like this one: `-kept-rollouts` before `-rollouts`."""
    fit = [kind for kind in kinds() if kind.repo_type == repo_type and repository.endswith(f"-{kind.suffix}")]
    return max(fit, key=lambda kind: len(kind.suffix), default=None)


RECORD = "artifact.json"
CARD = "README.md"
LARGEST = 4 * 2**20
"""Bytes of a record that are read; ours are some thousand."""
A = TypeVar("A", bound=Artifact)


class BadRecord(Stop):
    """What stands where a record should stand is none, or not the one that is meant."""


def _within(name: str) -> str:
    """A file's path below its artifact: relative, without detours."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or str(path) != name or name == "." or {"\\", "\0"} & set(name):
        raise ValueError("a file's path leads out of the artifact")
    return name


FileName = Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_within)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Parent(BaseModel):
    """An artifact from which another one was made. An unknown field is empty."""

    model_config = ConfigDict(frozen=True)

    kind: str
    repository: str = Field(pattern=f"^$|{REPOSITORY}")
    revision: str = Field(pattern=f"^$|{NAME}")
    key: str = Field(pattern=f"^$|{NAME}")


class Provenance(BaseModel):
    """The circumstances of one making."""

    model_config = ConfigDict(frozen=True)

    stage: str = ""
    """Where the stage is defined: `module:name`."""
    code: str = ""
    """The version of this code, see `code_version` in tasks/engine/stage.py."""
    recipe: dict[str, Any] = {}
    """The run's recipe, without where its servers and its store were."""
    made_at: str = ""
    """UTC, ISO 8601."""
    pool: str = ""
    worker: str = ""
    inputs: dict[str, Parent] = {}
    """By the argument's name."""


UNKNOWN = Provenance()


class ArtifactRecord(BaseModel):
    """artifact.json."""

    model_config = ConfigDict(frozen=True)

    kind: str = ""
    """Name of the artifact's class."""
    key: str = Field(pattern=NAME, max_length=LONGEST_NAME)
    counts: dict[str, Any]
    made_by: dict[str, Any]
    """Stage, its version, settings, inputs' revisions, packages' versions."""
    files: dict[FileName, Sha256]
    """SHA-256 by path."""
    provenance: Provenance = Provenance()

    @field_validator("made_by")
    @classmethod
    def _is_a_making(cls, made_by: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(made_by.get("settings", {}), dict):
            raise ValueError("settings are no mapping")
        inputs = made_by.get("inputs", {})
        if not isinstance(inputs, dict) or not all(isinstance(revision, str) for revision in inputs.values()):
            raise ValueError("inputs are no revisions by name")
        return made_by

    @property
    def revision(self) -> str:
        """40 hex digits over the artifact and its inputs, with the hash of every file but the card."""
        named = self.model_dump(mode="json", exclude={"provenance": True, "files": {CARD}})
        canonical = json.dumps(named, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:40]


def read_record(folder: Path) -> ArtifactRecord:
    """The record of an artifact's folder. Raises FileNotFoundError; BadRecord where it is none."""
    file = folder / RECORD
    if file.is_symlink() or file.is_dir():
        raise BadRecord(f"{file} is no file.", _REMEDY)
    with file.open("rb") as opened:
        return record_from(opened.read(LARGEST + 1), str(file))


def record_from(content: bytes, where: str) -> ArtifactRecord:
    """The record that a file holds. Raises BadRecord."""
    if len(content) > LARGEST:
        raise BadRecord(f"{where} is no record of an artifact: it is larger than {LARGEST:,} bytes.", _REMEDY)
    try:
        return ArtifactRecord.model_validate_json(content)
    except (ValidationError, RecursionError) as error:
        raise BadRecord(f"{where} is no record of an artifact: {_first(error)}.", _REMEDY) from None


def artifact_of(kind: type[A], repository: str, revision: str, record: ArtifactRecord, key: str | None = None) -> A:
    """The artifact that a record describes. Raises BadRecord where it is of another kind or revision, or of another key
    than what pointed to it."""
    where = f"{repository}@{key or record.key}"
    if record.kind != kind.__name__:
        raise BadRecord(f"{where} is recorded as {record.kind[:40] or 'nothing'}, not as {kind.__name__}.", _REMEDY)
    if record.revision != revision:
        raise BadRecord(f"{where} is not what its revision {revision[:12]} names: its record was changed.", _REMEDY)
    if key not in (None, record.key):
        raise BadRecord(f"{where} leads to the artifact of another key, {record.key[:40]}.", _REMEDY)
    try:
        return kind(repository=repository, revision=revision, key=record.key, **record.counts)
    except (ValidationError, TypeError) as error:
        raise BadRecord(f"{where} has counts that cannot be: {_first(error)}.", _REMEDY) from None


_REMEDY = "Somebody or something changed it: delete its tag (in a folder: its file in refs/) to have it made anew."


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        mistake = error.errors(include_input=False, include_url=False)[0]
        at = ".".join(str(part)[:40] for part in mistake["loc"])
        return f"{at + ': ' if at else ''}{mistake['msg'].removeprefix('Value error, ')}"[:200]
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error).partition("\n")[0][:200]


def parent(artifact: Artifact) -> Parent:
    """An input, as its name in a record."""
    return Parent(
        kind=type(artifact).__name__,
        repository=artifact.repository,
        revision=artifact.revision,
        key=artifact.key,
    )
