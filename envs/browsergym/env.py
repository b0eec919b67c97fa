"""Web forms in a real browser: read the page as text, fill in, choose, press.

In: how large the forms are. Out: the form of a seed, and how much of it was sent as asked.
Speaks the wire of the published BrowserGym environment (step: action_str), on pages that its server serves to itself.
Its scripted teacher reads goal and page off the first message, like any teacher, and does one thing a turn.
"""

import json
import re
from typing import Any

from pydantic import Field

from apprentice.envs.base import EnvironmentSettings, ToolEnvironment, whole_number
from apprentice.envs.browsergym import forms
from apprentice.envs.policy import errs, question_in

ELEMENT = re.compile(r"^\[(\d+)\] (textbox|combobox|button) '([^']*)'", re.MULTILINE)
SPARE_TURNS = 2
"""Beyond one for each thing to do: a slip can be mended."""


class Settings(EnvironmentSettings):
    """How large the forms are, and what is written into them."""

    fields: int = Field(default=2, ge=0, le=len(forms.FIELDS))
    """Text fields to fill in. Each costs a turn, and the browser 0.1 s of a core."""
    choices: int = Field(default=1, ge=0, le=len(forms.LISTS))
    """Lists to choose from. Each costs a turn."""
    buttons: int = Field(default=2, ge=1, le=len(forms.BUTTONS))
    """Buttons on the page, one of which is the right one."""
    texts: forms.Texts = "any"
    """`words`: one plain word a field. `any`: quotes, apostrophes, backslashes, markup, line breaks, any script."""


class Environment(ToolEnvironment):
    """One form an episode; every tool is one action in the browser."""

    Settings = Settings
    version = "1"
    extra = ("browsergym", "browsergym.core")
    phrases = (
        *("] textbox '", "] combobox '", "] button '", "\n[", "\n\t[", "] option '", "' value='", "', '"),
        *(': "', '"\nPress ', "\nPress ", ".\n\n[", "OK.", "Nothing changed."),
        *forms.FIELDS,
        *forms.LISTS,
        *forms.BUTTONS,
        *forms.WORDS,
        *(option for options in forms.LISTS.values() for option in options),
    )
    settings: Settings
    _seen: tuple[str, ...] = ()

    @property
    def max_turns(self) -> int:
        """One for each field and list, one for the button, and some to spare."""
        return self.settings.fields + self.settings.choices + 1 + SPARE_TURNS

    @property
    def instructions(self) -> str:
        return (
            "You fill in a form on a web page. You are told what each field and list shall hold, as JSON strings, and "
            "which button to press at the end, which sends the form. Below stands the page: each thing on it with its "
            "bid in brackets. Act by calling a tool with a bid, one thing after another."
        )

    def reset(self, *, seed: int, **row: Any) -> str:
        """The goal and the page of the form that `seed` names."""
        reply = self.session.reset(seed=seed, task_name="form", **self.settings.model_dump())
        page = reply.read(str, "text")
        self._seen = tuple(page.splitlines())
        return f"{reply.read(str, 'goal')}\n\n{page}"

    def click(self, bid: str) -> str:
        """Click an element, such as a button.

        Args:
            bid: The element's bid.

        Returns:
            What is new on the page.
        """
        return self._do("click", _bid(bid))

    def fill(self, bid: str, text: str) -> str:
        """Write a text into a text field. It replaces what the field held.

        Args:
            bid: The field's bid.
            text: The text.

        Returns:
            What is new on the page.
        """
        return self._do("fill", _bid(bid), str(text))

    def select_option(self, bid: str, option: str) -> str:
        """Choose an option of a list.

        Args:
            bid: The list's bid.
            option: The option's text.

        Returns:
            What is new on the page.
        """
        return self._do("select_option", _bid(bid), str(option))

    def _do(self, name: str, *arguments: str) -> str:
        # repr: BrowserGym reads an action as Python literals, so quotes, backslashes and line breaks must be escaped
        reply = self.session.step({"action_str": f"{name}({', '.join(map(repr, arguments))})"})
        if reply.done:
            self.reward, self.done, self.correct = reply.score, True, reply.read(str, "goal")
            return "OK."
        if reply.find(bool, "last_action_error"):
            raise ValueError(reply.read(str, "error"))
        before, self._seen = self._seen, tuple(reply.read(str, "text").splitlines())
        return "\n".join(line for line in self._seen if line not in before) or "Nothing changed."

    def slices(self, seed: int, question: str) -> dict[str, int | str]:
        *asked, _ = question.partition("\n\n")[0].split("\n")
        texts = [json.loads(line.partition(": ")[2]).replace(" ", "") for line in asked]
        plain = all(text.isascii() and text.isalpha() for text in texts)
        return {"entries": len(asked), "texts": "plain" if plain else "awkward"}


def _bid(given: Any) -> str:
    """As the page writes it, however a model does: 7, "7" and "[7]" are one element."""
    return str(whole_number(str(given).strip().strip("[]"), "bid", 0, 99_999))


def check(settings: dict[str, Any]) -> None:
    """Nothing: the script plays under all settings."""


def call(settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float) -> tuple[str, dict[str, Any]]:
    """The tool and the arguments of the script's next turn."""
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
