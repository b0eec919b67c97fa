"""A scripted teacher for the forms: does what the goal says, one thing a turn, and errs by design.

In: the messages as the student would see them. Out: one call of `fill`, `select_option` or `click`.
It reads goal and page off the first message, like any teacher, and is wrong on a fixed share of the forms.
"""

import json
import re
from typing import Any

from apprentice.envs.policy import errs, question_in

ELEMENT = re.compile(r"^\[(\d+)\] (textbox|combobox|button) '([^']*)'", re.MULTILINE)


def check(settings: dict[str, Any]) -> None:
    """Nothing: the script plays under all settings."""


def call(settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float) -> tuple[str, dict[str, Any]]:
    """The tool and the arguments of the policy's next turn."""
    question = question_in(messages)
    goal, _, page = question.partition("\n\n")
    elements = {name: (bid, role) for bid, role, name in ELEMENT.findall(page)}
    *asked, last = goal.split("\n")
    done = sum(message["role"] == "tool" and "error" not in message["content"][:10] for message in messages)
    if done < len(asked):
        label, _, text = asked[done].partition(": ")
        bid, role = elements[label]
        return (
            ("fill", {"bid": bid, "text": json.loads(text)})
            if role == "textbox"
            else (("select_option", {"bid": bid, "option": json.loads(text)}))
        )
    right = last.removeprefix("Press ").removesuffix(".")
    return "click", {"bid": elements[_pressed(right, elements, question, error_rate)][0]}


def _pressed(right: str, elements: dict[str, tuple[str, str]], question: str, error_rate: float) -> str:
    """The right button; another one, or a field in its stead, on the share of the questions that is got wrong."""
    others = [name for name in elements if name != right]
    others = [name for name in others if elements[name][1] == "button"] or others
    return others[0] if errs(question, error_rate) and others else right
