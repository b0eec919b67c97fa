"""The form that a seed names: what is asked, the page that asks it, and how right what was sent is.

In: seed, and how many fields, lists and buttons. Out: `Form`. Knows nothing of browsers.
"""

import html
import json
import random
from dataclasses import dataclass
from typing import Literal, get_args

Texts = Literal["any", "words"]

FIELDS = ("Name", "City", "Street", "Company", "Country", "Title", "Subject", "Note")
LISTS = {
    "Colour": ("red", "blue", "green", "black", "white"),
    "Size": ("small", "medium", "large", "huge"),
    "Day": ("Monday", "Tuesday", "Friday", "Sunday"),
    "Meal": ("soup", "salad", "pasta", "fish"),
}
BUTTONS = ("Send", "Cancel", "Save", "Delete", "Print", "Share", "Archive", "Reply")
WORDS = (
    "amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "ivory", "jade", "kite", "lemon", "maple",
    "nectar", "olive", "pearl", "quartz", "raven", "sable", "tulip", "umber", "violet", "willow", "zephyr",
)  # fmt: skip
AWKWARD = (
    "O'Connor",
    'the "best"',
    "C:\\temp\\new",
    'it\'s "so"',
    "line one\nline two",
    "50 % & more",
    "<b>bold</b>",
    "&amp;",
    "f('x', \"y\")",
    "{a: [1, 2]}",
    "# no comment",
    "naïve café",
    "東京",
    "Ελλάδα",
    "שלום",
    "हिन्दी",
    "🙂",
)


@dataclass(frozen=True)
class Form:
    """A form, and what is to be done with it.

    Attributes:
        order: The labels of `wanted` as the goal names them, which is not the page's order.
        wanted: What each field and list shall hold when it is sent.
        fields: Labels of the text fields, in the page's order; `lists` and `buttons` likewise.
        press: The button to send it with.
    """

    order: tuple[str, ...]
    wanted: dict[str, str]
    fields: tuple[str, ...]
    lists: tuple[str, ...]
    buttons: tuple[str, ...]
    press: str

    @property
    def goal(self) -> str:
        """Texts stand as JSON, so that every character of them can be told."""
        asked = [f"{label}: {json.dumps(self.wanted[label], ensure_ascii=False)}" for label in self.order]
        return "\n".join([*asked, f"Press {self.press}."])

    @property
    def page(self) -> str:
        """The page as HTML. It notes that it was sent, since the answer to that leaves the page as it is."""
        controls = [self._field(label) for label in self.fields] + [self._list(label) for label in self.lists]
        buttons = [f"<button name=press value={name}>{name}</button>" for name in self.buttons]
        return (
            "<!doctype html><meta charset=utf-8><title>Form</title>"
            '<form method=post onsubmit="this.dataset.sent = true">'
            f"{'<br>'.join([*controls, ''.join(buttons)])}</form>"
        )

    def score(self, sent: dict[str, str]) -> float:
        """The share of what was asked, the button included, that was done when the form was sent."""
        asked = self.wanted | {"press": self.press}
        return sum(sent.get(name, "").replace("\r\n", "\n") == text for name, text in asked.items()) / len(asked)

    def _field(self, label: str) -> str:
        tall = "\n" in self.wanted[label]
        return (
            f"<textarea name={label} aria-label={label}></textarea>"
            if tall
            else (f"<input name={label} aria-label={label} autocomplete=off>")
        )

    def _list(self, label: str) -> str:
        options = "".join(f"<option>{html.escape(option)}" for option in ("", *LISTS[label]))
        return f"<select name={label} aria-label={label}>{options}</select>"


def check(fields: int, choices: int, buttons: int, texts: str) -> None:
    """Raises ValueError for what no form has."""
    for given, what, least, most in (
        (fields, "fields", 0, len(FIELDS)),
        (choices, "choices", 0, len(LISTS)),
        (buttons, "buttons", 1, len(BUTTONS)),
    ):
        if not least <= given <= most:
            raise ValueError(f"{what} must be {least} to {most}, not {given}")
    if texts not in get_args(Texts):
        raise ValueError(f"texts must be one of {', '.join(get_args(Texts))}, not {texts!r}")


def draw(seed: int, fields: int, choices: int, buttons: int, texts: str) -> Form:
    """The form that `seed` names. Raises ValueError."""
    check(fields, choices, buttons, texts)
    dice = random.Random(seed)
    labels, lists = dice.sample(FIELDS, fields), dice.sample(list(LISTS), choices)
    wanted = {label: _text(dice, texts) for label in labels}
    wanted |= {label: dice.choice(LISTS[label]) for label in lists}
    pressed = dice.sample(BUTTONS, buttons)
    order = dice.sample([*labels, *lists], fields + choices)
    return Form(tuple(order), wanted, tuple(labels), tuple(lists), tuple(pressed), dice.choice(pressed))


def _text(dice: random.Random, texts: str) -> str:
    if texts == "words":
        return dice.choice(WORDS)
    return " ".join([dice.choice(WORDS), dice.choice(AWKWARD), *dice.sample(WORDS, dice.randint(0, 1))])
