"""The rules of the gate: what each asks for, its limits in a recipe, and how it is worded.

In: a rule's id with the figures that it states, or the text of a rule in a decision. Out: the text, or the id.

A decision's file has the texts and no ids, so that its revision does not depend on them. `identified` finds the id when
a file is read: nothing else reads a rule's text. A wording that a gate has ever written stays in `WORDINGS`.
"""

import re
from enum import StrEnum
from functools import cache
from string import Formatter
from typing import Literal

from pydantic import Field

from apprentice.tasks.settings.spec_base import WHEN_GIVEN, Spec


class GateSpec(Spec):
    """When a trained model becomes the champion. Fixed before training: it enters the decision's key."""

    metric: Literal["accuracy", "format_compliance", "mean_score"] = "accuracy"
    """The deciding metric."""
    margin: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Required improvement, as a share. In addition, the 95% interval must be above zero."""
    max_overlap: float = Field(default=0.0, ge=0.0, le=1.0)
    """Maximum share of the evaluation's questions that training may have seen; above it nothing is compared."""
    least_unseen: float = Field(default=0.5, gt=0.0, le=1.0)
    """Minimum share of the questions that neither champion nor challenger has seen; below it no model is promoted."""
    at_least: float | None = Field(default=None, ge=0.0, le=1.0, json_schema_extra=WHEN_GIVEN)
    """The floor: the metric must reach it, however much better than its baseline a model is. Default: half of the
    teacher's accuracy on the questions that it was asked, or 0.2 where no teacher played, as with a dataset. 0: no
    floor."""
    level: float = Field(default=0.05, gt=0.0, le=0.05, json_schema_extra=WHEN_GIVEN)
    """The exact test's p must be below this. `apprentice improve` lowers it from round to round (alpha spending)."""


class RuleId(StrEnum):
    """What a rule asks for."""

    REGRESSION = "regression evaluation"
    NO_CONTAMINATION = "no contamination"
    UNSEEN = "unseen questions"
    FLOOR = "floor"
    MARGIN = "margin"
    INTERVAL = "interval"
    EXACT_TEST = "exact test"
    NOT_ROLLED_BACK = "not rolled back"
    CHAMPION_KNOWN = "champion known"
    OTHER = "other"
    """A rule that this code does not word."""


WORDINGS: dict[RuleId, tuple[str, ...]] = {
    RuleId.REGRESSION: ("guard rail {evaluation}",),
    RuleId.NO_CONTAMINATION: ("no contamination",),
    RuleId.UNSEEN: ("enough questions that neither has seen",),
    RuleId.FLOOR: ("at least {floor}",),
    RuleId.MARGIN: ("{metric} better by {margin}", "{metric} better"),
    RuleId.INTERVAL: ("interval above zero",),
    RuleId.EXACT_TEST: ("exact test agrees (p below {level})",),
    RuleId.NOT_ROLLED_BACK: ("not rolled back",),
    RuleId.CHAMPION_KNOWN: ("the champion is known",),
}
"""Of each rule its wordings, with the names of what they state. The first one with the names that are given is written,
all are read. A new wording goes to the front."""


def worded(rule: RuleId, **stated: str) -> str:
    """The text of a rule that states these things."""
    return next(each for each in WORDINGS[rule] if _names(each) == stated.keys()).format(**stated)


def identified(text: str) -> tuple[RuleId, dict[str, str]]:
    """The rule that a text words, and what it states. `OTHER` where no wording fits."""
    for rule, wordings in WORDINGS.items():
        for each in wordings:
            if found := _pattern(each).fullmatch(text):
                return rule, found.groupdict()
    return RuleId.OTHER, {}


def _names(wording: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(wording) if name}


@cache
def _pattern(wording: str) -> re.Pattern[str]:
    parts = Formatter().parse(wording)
    return re.compile("".join(re.escape(text) + (f"(?P<{name}>.+)" if name else "") for text, name, _, _ in parts))
