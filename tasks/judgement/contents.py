"""What the files of a judgement hold: verdict.json compares a run's models, decision.json has the gate's rules.

In: the figures of the stages `verdict` and `gate`, or a folder that has one of the files. Out: `VerdictContents` and
`GateDecision`. Each file is written from its type and read by one function.

Files of other versions of the code are read as well. A field that they lack has its default, and one that is unknown
here is kept. `as_json` has the fields that were given or read, so an old file is passed on as it is.
"""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from apprentice.tasks.judgement.rules import RuleId, identified, worded
from apprentice.tasks.judgement.run_models import Models
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.statistics.differences import PairedTest
from apprentice.tasks.statistics.intervals import Interval

VERDICT, DECISION = "verdict.json", "decision.json"


class Diagnosis(StrEnum):
    """What GRPO's curves show."""

    TOO_SHORT = "too short"
    TOO_EASY = "too easy"
    NO_SIGNAL = "no signal"
    SATURATED = "saturated"
    FELL = "fell"
    FLAT = "flat"
    LEARNING = "learning"
    FOLLOWS_THE_CURRICULUM = "follows the curriculum"


class Content(BaseModel):
    """A file, or a part of one."""

    model_config = ConfigDict(frozen=True, extra="allow", validate_by_name=True)

    def as_json(self) -> dict[str, Any]:
        """The fields as the file has them, in its order."""
        return self.model_dump(by_alias=True, exclude_unset=True)


C = TypeVar("C", bound=Content)


class Difference(Content):
    """A paired difference of two models on the same questions, in shares: the second less the first."""

    metric: str = "accuracy"
    delta: float
    ci: Interval
    p_value: float = 1.0
    test: Annotated[PairedTest | str, Field(union_mode="left_to_right")] = ""
    won: int = 0
    lost: int = 0
    questions_for_5_points: int | None = None
    """How many questions show a difference of 5 points; None if that cannot be estimated."""
    p_holm: float = 1.0
    """Corrected for all comparisons of the same report."""


class ComparedModels(Content):
    from_: str = Field(alias="from")
    to: str
    delta_accuracy: float | None = None


class Comparison(Difference, ComparedModels):
    """The difference of two named models. Bases are in this order because fields of the last one come first."""


class Accuracy(Content):
    """A rate with its 95% interval, over `n` questions."""

    n: int = 0
    accuracy: float
    ci: Interval = (0.0, 1.0)


class BeforeAndAfter(Content):
    guard: str
    before: Accuracy
    after: Accuracy
    seen_in_training: int = 0


class RegressionEvaluation(Difference, BeforeAndAfter):
    """A skill that training must not lose, measured before and after. `guard` is its name."""


class Rates(Content):
    """The rates of one model over `n` questions, and their 95% intervals."""

    n: int
    format_compliance: float
    accuracy: float
    mean_score: float = 0.0
    ci: dict[str, Interval]
    samples: int = 1
    pass_at_k: list[dict[str, Any]] = []


class Contamination(Content):
    """What training has seen of the evaluation's questions."""

    questions: int = 0
    learned_from: dict[str, int] = {}
    shared_with_training: int = 0
    shared_with_rollouts: int = 0
    shared_seeds: int = 0
    share: float = 0.0
    limit: float = 0.0
    clean: bool
    """Whether it is no more than the recipe allows. If not, nothing is compared."""
    repeated: int = Field(default=0, exclude_if=lambda repeated: not repeated)
    """How many questions there are, where training and evaluation are tries of the same few; 0 otherwise."""


class Curves(Content):
    """The reading of GRPO's curves. Rewards are 0.0 to 1.0; `ci` is the 95% interval of the delta."""

    reward_initial: float = 0.0
    reward_final: float = 0.0
    delta: float = 0.0
    ci: Interval | None = None
    logs: int = 0
    dead_groups: float = 0.0
    """Mean of frac_reward_zero_std over the last logs."""
    diagnosis: Annotated[Diagnosis | str, Field(union_mode="left_to_right")]
    advice: str = ""


class HackingSign(Content):
    """A sign that GRPO learned the reward's weakness, with the places of episodes that show it."""

    kind: str
    said: str
    places: list[int]


class Slice(Content):
    """The models' rates on one kind of question."""

    trait: str
    kind: str
    n: int = 0
    models: Models[Accuracy]


class TeacherRates(Content):
    """The teacher's own rates on the questions that it was asked."""

    episodes: int = 0
    lost: int = 0
    """Episodes more, which were lost to infrastructure."""
    accuracy: float
    ci: Interval = (0.0, 1.0)
    compared: dict[str, int] = {}
    slices: list[dict[str, Any]] = []


class VerdictContents(Content):
    """verdict.json: a run's models on the same questions."""

    models: Models[Rates] = Models()
    broken: str = ""
    """A note on questions on which the environment failed."""
    comparisons: list[Comparison] = []
    guards: list[RegressionEvaluation] = []
    contamination: Contamination
    curves: Curves | None = Field(default=None, alias="grpo")
    """How the rewards of the last training went; None for a training without rewards."""
    signs: list[HackingSign] = []
    stopped: str = ""
    """Why a training did not start; empty if all did."""
    token_accuracy: float | None = None
    """The share of its rows' tokens that the SFT model predicted in the end."""
    slices: list[Slice] = []
    failures: list[dict[str, Any]] = []
    side_by_side: list[dict[str, Any]] = []
    teacher: TeacherRates | None = None


class Rule(Content):
    """A rule of the gate, and whether it holds."""

    rule: str
    holds: bool
    found: str
    """The figures behind it, as a sentence."""
    id: RuleId = Field(default=RuleId.OTHER, exclude=True)
    stated: dict[str, str] = Field(default={}, exclude=True)
    """The figures and names in the rule's text, such as the margin."""

    @property
    def wording(self) -> str:
        """The rule as people read it: the file calls a regression evaluation "guard rail"."""
        return f"{self.id} {self.stated['evaluation']}" if self.id == RuleId.REGRESSION else self.rule

    @model_validator(mode="before")
    @classmethod
    def _identify(cls, read: Any) -> Any:
        if not isinstance(read, dict) or "id" in read or not isinstance(read.get("rule"), str):
            return read
        rule, stated = identified(read["rule"])
        return read | {"id": rule, "stated": stated}


def made_rule(rule: RuleId, holds: bool, found: str, **stated: str) -> Rule:
    """A rule with its text. `stated`: what the text names, as in `WORDINGS`."""
    return Rule(rule=worded(rule, **stated), holds=holds, found=found, id=rule, stated=stated)


class Floor(Content):
    """What the gate's metric must reach, however much better than its baseline a model is."""

    at_least: float
    why: str
    """Where that number comes from."""
    holds: bool
    found: str = ""


class RulesOfGate(Content):
    """The rules by which a decision was made, to detect later whether the recipe's rules have changed."""

    gate: dict[str, Any] = {}
    guards: dict[str, float] = {}
    """For each regression evaluation, the share by which it may fall."""
    has_floor: bool = False


class GateDecision(Content):
    """decision.json: every rule of the gate, and whether the challenger becomes the champion."""

    rival: str = ""
    """The stage of the baseline: champion, base, or what the challenger began from."""
    rival_revision: str = ""
    challenger_revision: str = ""
    metric: str = "accuracy"
    decided_by: RulesOfGate = RulesOfGate()
    questions: int = 0
    unseen_by_both: int = 0
    broken: str = ""
    comparison: Difference | None = None
    """None if no question was new to both models."""
    floor: Floor | None = None
    guards: list[RegressionEvaluation] = []
    rules: list[Rule] = []
    promoted: bool

    @property
    def unmet(self) -> list[Rule]:
        """The rules that do not hold."""
        return [rule for rule in self.rules if not rule.holds]

    @property
    def reasons(self) -> list[str]:
        """Why the challenger was refused; empty if it was promoted."""
        return [rule.found for rule in self.unmet]

    @property
    def is_below_the_floor(self) -> bool:
        return self.floor is not None and not self.floor.holds


def read_verdict(folder: Path) -> VerdictContents:
    """What the artifact `Verdict` in a folder holds. Raises Stop for a file that this code cannot read."""
    return _read(folder / VERDICT, VerdictContents)


def read_decision(folder: Path) -> GateDecision:
    """What the artifact `Decision` or `Release` in a folder holds. Raises Stop as `read_verdict` does."""
    return _read(folder / DECISION, GateDecision)


def _read(file: Path, kind: type[C]) -> C:
    try:
        return kind.model_validate(json.loads(file.read_text()))
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise Stop(
            f"{file} cannot be read: {where}: {error.errors()[0]['msg']}.",
            "Read it with the version of apprentice that wrote it, which the README.md beside it names.",
        ) from error


def write(folder: Path, content: VerdictContents | GateDecision) -> None:
    """Write the file of a judgement."""
    name = VERDICT if isinstance(content, VerdictContents) else DECISION
    (folder / name).write_text(json.dumps(content.as_json(), indent=2))
