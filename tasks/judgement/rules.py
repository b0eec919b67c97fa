"""The rules of the gate: what each asks for, how it is worded, and whether it holds.

In: a rule's id with the figures that it states, or the text of a rule in a decision. Out: the text, or the id.

A decision's file has the texts and no ids, so that its revision does not depend on them. `identified` finds the id when
a file is read: nothing else reads a rule's text. A wording that a gate has ever written stays in `WORDINGS`.
"""

import re
from enum import StrEnum
from functools import cache
from string import Formatter


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
