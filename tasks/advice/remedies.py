"""What a run can change next: one field of the recipe, the value to try, and what it costs.

In: the recipe as a run records it. Out: `Remedy`. Without a recipe a remedy has the field and no value.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

Recorded = Mapping[str, Any]
"""A recipe, as a run records it; empty where it is not known."""
HERE = Path("build/smollm2/model")
"""Where `make run NAME=real` puts the same model."""
USUAL_BUILT, USUAL_PRETRAINED = 1e-3, 2e-5
"""Learning rates of SFT that students learn with, built here or pretrained."""
STEPS = 40
"""Of SFT, at least, in which a pretrained student learns the form of a game."""
PRETRAINED = "HuggingFaceTB/SmolLM2-135M-Instruct"
FACTOR, MUCH, FAR = 2, 4, 8
"""By how much a number is raised; where little was learned; where the rows are far from learned."""
GENTLER, MUCH_GENTLER, FASTER = 3, 30, 10
"""By how much a learning rate is divided; where a training has spoilt the model; or raised."""


@dataclass(frozen=True)
class Remedy:
    """One field of the recipe, and what to set it to."""

    name: str
    """The field's dotted path."""
    value: str
    """The value to try, with the present one; empty where only a person can choose it."""
    to: Any
    """The value itself; None where only a person can choose it, or where the present one is not known."""
    costs: str
    also: dict[str, Any] = field(default_factory=dict)
    """Fields that change with it, since they belong to the present value."""

    @property
    def changes(self) -> dict[str, Any]:
        """The recipe's fields with their new values; empty where only a person can choose."""
        return {} if self.to is None else {self.name: self.to} | self.also


def value_of(recipe: Recorded, name: str) -> Any:
    """The recipe's value at a dotted path; None where it has none."""
    value: Any = recipe
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def builds(recipe: Recorded) -> bool:
    """Whether the student is built here."""
    return bool(value_of(recipe, "student.build"))


def more_rows(recipe: Recorded) -> Remedy:
    """Four times as many questions of the collection."""
    return more(recipe, "windows.collect.size", MUCH, "as many more episodes of the teacher")


def larger_student(recipe: Recorded) -> Remedy:
    """Four times the width, in all that is wide."""
    larger = more(recipe, "student.build.hidden_size", MUCH, "about 16 times the compute of so small a model")
    inner = value_of(recipe, "student.build.intermediate_size")
    return replace(larger, also={"student.build.intermediate_size": inner * MUCH}) if inner else larger


def exactly(recipe: Recorded) -> Remedy:
    """Whole successes alone count."""
    now = value_of(recipe, "grpo.reward")
    return Remedy("grpo.reward", "exact" + (f" ({now} now)" if now else ""), "exact", "nothing")


def more(recipe: Recorded, name: str, factor: int, costs: str = "") -> Remedy:
    costs = costs or f"{factor} times the time of {name.partition('.')[0]}"
    return _changed(recipe, name, lambda now: now * factor, "g", f"{factor} times as many", costs)


def fewer(recipe: Recorded, name: str) -> Remedy:
    return _changed(recipe, name, lambda now: max(int(now) // FACTOR, 1), "g", "half")


def gentler(recipe: Recorded, name: str, by: int = GENTLER) -> Remedy:
    """A learning rate, divided."""
    words = "a third" if by == GENTLER else "a thirtieth"
    return _changed(recipe, name, lambda now: float(f"{now / by:.1e}"), ".1e", words)


def faster(recipe: Recorded) -> Remedy:
    """SFT's learning rate ten times as high, and at least what students of its kind learn with."""
    usual, words = USUAL_BUILT if builds(recipe) else USUAL_PRETRAINED, f"{FASTER} times as much"
    return _changed(recipe, "sft.learning_rate", lambda now: float(f"{max(now * FASTER, usual):.1e}"), ".1e", words)


def _changed(
    recipe: Recorded, name: str, change: Callable[[float], float], form: str, words: str, costs: str = "nothing"
) -> Remedy:
    """A number as `change` makes it of the present one, in this format; in words where that one is not known."""
    now = value_of(recipe, name)
    if not isinstance(now, int | float):
        return Remedy(name, words, None, costs)
    value = change(now)
    return Remedy(name, f"{value:{form}} ({now:{form}} now)", value, costs)


def larger_groups(recipe: Recorded) -> Remedy:
    """Twice the group, in steps of as many questions where a step of now does not hold whole groups."""
    larger = more(recipe, "grpo.num_generations", FACTOR, "fewer questions a step")
    batch = value_of(recipe, "grpo.batch_size")
    if larger.to is None or not batch or batch * (value_of(recipe, "grpo.gradient_accumulation") or 1) % larger.to == 0:
        return larger
    return replace(larger, also={"grpo.batch_size": batch * FACTOR}, costs="larger steps")


def pretrained(recipe: Recorded) -> Remedy:
    """A small pretrained model, with the settings of the recipe `smollm2-addition` that its size needs."""
    found = {"model": str(HERE)} if HERE.is_dir() else {"model": PRETRAINED, "revision": "main"}
    student = {**found, "chat_template": "qwen2_5"}
    rows, batch = value_of(recipe, "windows.collect.size") or 0, value_of(recipe, "sft.batch_size") or 1
    epochs = min(max(STEPS * batch // max(rows, 1), 4), 30)
    also: dict[str, Any] = {"precision": "auto", "sft.epochs": epochs, "sft.learning_rate": 1e-4}
    if value_of(recipe, "grpo.max_steps"):
        also |= {
            "grpo.learning_rate": 4e-5,
            "grpo.max_steps": min(value_of(recipe, "grpo.max_steps") or 30, 30),
            "grpo.batch_size": min(value_of(recipe, "grpo.batch_size") or 64, 64),
        }
    value = ", ".join(f"{name}: {given}" for name, given in student.items())
    return Remedy("student", f"{{{value}}}", student, "minutes in place of seconds, and 270 MB", also)


def more_questions(recipe: Recorded, questions: int) -> Remedy:
    """As many questions of the evaluation, in a window that holds them."""
    size = value_of(recipe, "windows.evaluate.size")
    window = {"windows.evaluate.size": questions} if size and size < questions else {}
    return Remedy("evaluate.questions", str(questions), questions, "a longer evaluation", window)


def person(name: str, costs: str = "") -> Remedy:
    return Remedy(name, "", None, costs)
