"""The types on the arrows between stages.

In: a stage's result. Out: a frozen reference: repository, immutable revision, key, a few counts. Never data, never a
path: the next stage may run on another machine and fetches its inputs from the store.
"""

import hashlib
import json
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

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


COUNTED = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "cost_usd")
"""Fields of `Rollouts` that are sums over its episodes."""


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


class RelabelledRollouts(Rollouts):
    """Rows of a dataset, judged by a teacher where no environment could. Tokens and cost are those of the teacher."""

    suffix = "judged-rollouts"
    confirmed: Count
    """Unverified rows whose answer is the teacher's as well."""
    replaced: Count
    """Rows that have the teacher's answer now, which it gave twice."""
    undecided: Count
    """Rows that are left out, failed ones included."""

    @property
    def figure(self) -> str:
        return f"{super().figure}; a teacher confirmed {self.confirmed:,} and replaced {self.replaced:,}"


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


class LossCheckpoint(Checkpoint):
    """A model that was trained on rows."""

    loss: Number | None = None
    """As last logged; None where it was not, or older code trained."""

    @property
    def figure(self) -> str:
        return super().figure if self.loss is None else f"last loss {self.loss:.3g}"


class SftCheckpoint(LossCheckpoint):
    """The student after supervised fine-tuning."""

    suffix = "sft"
    place = 1
    stage: Literal["sft"] = "sft"  # type: ignore[assignment]


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
    questions: Count | None = Field(default=None, exclude_if=lambda count: count is None)
    """Of several samples each; None where each question has one: then the counts, which enter the revision, are those
    of older code."""
    worth: Number | None = Field(default=None, exclude_if=lambda number: number is None)
    """With several samples: to how many questions one answer each would be worth as much, see `worth` in
    tasks/statistics/intervals.py; None in evaluations of older code as well."""

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
    """A trained model with its results and the gate's decision on its card."""

    suffix = "model"
    stage: Literal["champion"] = "champion"  # type: ignore[assignment]
    weights: str
    """Digest of the weights."""
    promoted: bool

    @property
    def figure(self) -> str:
        return "champion" if self.promoted else "kept beside the champion"


class Exported(Artifact):
    """A model in files for llama.cpp, each measured against it."""

    repo_type = "model"
    suffix = "gguf"
    forms: list[str]
    """Of the files, such as q8_0."""
    worse: list[str]
    """Those of them that lost more accuracy than the recipe allows."""

    @property
    def figure(self) -> str:
        return ", ".join(f"{form}{' (worse)' if form in self.worse else ''}" for form in self.forms)


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
