"""Reasoning Gym as an environment: read a question, submit one answer.

In: a dataset's name and configuration, or the parts of a composite one. Out: the question of a seed, and the score of
the answer to it.
Speaks the wire of the published environment (reset: dataset_name, dataset_config, dataset_specs, seed, size; step:
answer).

Its scripted teacher knows only the question's text of three datasets, like any teacher, and works the answer out. Of
the others it asks an oracle, which looks up the answer that the environment itself names. The oracle works nothing
out, and is no model: it stands in for one where no script knows a dataset.
"""

import json
import random
import re
import sys
from collections.abc import Callable
from typing import Any

from pydantic import Field, model_validator

from apprentice.envs.base import EnvironmentSettings, ToolEnvironment, is_right
from apprentice.envs.policy import digest, errs, question_in
from apprentice.envs.reasoning_gym import datasets, scoring, working

TAKES_SEED = True
"""`call` is told the question's seed."""
TRIES = 8
"""Places, from the answer's end, at which a near miss is looked for; scoring one can take two seconds."""
DIGITS, LETTERS = "0123456789", "abcdefghijklmnopqrstuvwxyz"

RESCORED = {"countdown", "puzzle24", "spell_backward"}
"""Datasets of which our server scores some answers otherwise since version 2: as Reasoning Gym does."""


class Part(EnvironmentSettings):
    """One of the datasets that a composite one draws its questions from."""

    name: str
    """A registered dataset, such as chain_sum."""
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """How often, in proportion to the other parts' weights."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The dataset's own options, as `config` of a single dataset."""


class Settings(EnvironmentSettings):
    """Which of Reasoning Gym's datasets, how hard."""

    dataset: str
    """A registered dataset, such as chain_sum; composite mixes those of `dataset_specs`."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The dataset's own options; what is left out keeps the dataset's default."""
    dataset_specs: list[Part] = Field(default_factory=list)
    """For composite: which datasets it mixes. A seed names one question of one of them."""

    @model_validator(mode="after")
    def _is_known(self) -> "Settings":
        datasets.check(self.dataset, self.config, self.specs)
        for config in (self.config, *(part.config for part in self.dataset_specs)):
            if taken := {"seed", "size"} & set(config):
                raise ValueError(f"{', '.join(sorted(taken))} cannot be set: a question is its seed, one a dataset")
        if refused := datasets.refusal(self.dataset, self.config, self.specs):
            raise ValueError(f"Reasoning Gym refuses {self.dataset} with {self.specs or self.config}: {refused}")
        return self

    @property
    def specs(self) -> list[dict[str, Any]]:
        return [part.model_dump() for part in self.dataset_specs]


class Environment(ToolEnvironment):
    """One question an episode, one call of `answer`."""

    Settings = Settings
    version = "1"
    settings: Settings

    @property
    def instructions(self) -> str:
        return (
            "You solve short reasoning problems. Work out the result of the problem you are given, then hand it in "
            "by calling the tool `answer` once. Pass the bare result: no units, no explanation."
        )

    def reset(self, *, seed: int, **row: Any) -> str:
        """The text of the question that `seed` names. Size 1: item i of a larger dataset is seed + i's question."""
        settings = self.settings
        question: dict[str, Any] = {"dataset_name": settings.dataset, "dataset_config": settings.config}
        if settings.dataset_specs:
            question["dataset_specs"] = settings.specs
        reply = self.session.reset(seed=seed, **question, size=1)
        return reply.read(str, "question")

    def answer(self, answer: str) -> str:
        """Hand in the final answer to the problem.

        Args:
            answer: The bare result.

        Returns:
            A confirmation that the answer was received.
        """
        structured: Any = answer  # a model may pass more than text
        given = json.dumps(structured, ensure_ascii=False) if isinstance(structured, list | dict) else str(structured)
        reply = self.session.step({"answer": given})
        self.reward = reply.read(float, "score")
        self.correct = reply.find(str, "correct_answer")
        self.done = True
        return "OK."

    @classmethod
    def version_under(cls, settings: dict[str, Any]) -> str:
        parts = settings.get("dataset_specs") or []
        named = {settings.get("dataset"), *(part.get("name") for part in parts if isinstance(part, dict))}
        return "2" if named & RESCORED else cls.version

    def slices(self, seed: int, question: str) -> dict[str, int | str]:
        """The counts of Reasoning Gym's own metadata, and the answer's sign and digits, or its length; of a composite
        dataset the part that asks.

        From the package that is installed here, since the public server tells no metadata; empty where the server's
        version asks something else under this seed.
        """
        if sys.flags.hash_randomization and datasets.names_of(self.settings.dataset, self.settings.specs) & (
            datasets.DRAW_FROM_SETS
        ):
            return {}  # another answer than the server's
        _, entry = datasets.entry(self.settings.dataset, self.settings.config, seed, self.settings.specs)
        if entry["question"] != question:
            return {}
        traits: dict[str, int | str] = {
            name.removeprefix("num_"): value
            for name, value in entry["metadata"].items()
            if type(value) is int and name != "source_index"
        }
        if self.settings.dataset_specs:
            traits["dataset"] = str(entry["metadata"]["source_dataset"])
        answer = str(entry["answer"])
        if re.fullmatch(r"-?\d+", answer):
            sign = "negative" if answer.startswith("-") else "zero" if int(answer) == 0 else "positive"
            return traits | {"sign": sign, "answer digits": len(answer.lstrip("-"))}
        return traits | {"answer length": len(answer)}


def _chain_sum(question: str) -> str:
    expression = re.findall(r"[-+]?\s*\d+", question[question.rindex(":") + 1 :])
    return str(sum(int(term.replace(" ", "")) for term in expression))


def _spell_backward(question: str) -> str:
    return question.split()[-1][::-1]


def _palindrome_generation(question: str) -> str:
    letters = question[question.rindex(":") + 1 :].replace(",", " ").split()
    pairs = [letter for letter in dict.fromkeys(letters) for _ in range(letters.count(letter) // 2)]
    middle = [letter for letter in dict.fromkeys(letters) if letters.count(letter) % 2]
    return "".join(pairs + middle + pairs[::-1])


SOLVERS: dict[str, Callable[[str], str]] = {
    "chain_sum": _chain_sum,
    "palindrome_generation": _palindrome_generation,
    "spell_backward": _spell_backward,
}


def check(settings: dict[str, Any]) -> None:
    """Raises ValueError where neither a script nor the oracle can play."""
    if settings["dataset"] not in SOLVERS:
        check_answers(settings)


def call(
    settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float, seed: int | None = None
) -> tuple[str, dict[str, Any]]:
    """The tool and the arguments of the script's next turn. Raises ValueError where the oracle knows no answer."""
    question = question_in(messages)
    draw, wrong = digest(question), errs(question, error_rate)
    if solver := SOLVERS.get(settings["dataset"]):
        answer = solver(question)
        return "answer", {"answer": answer[:-1] + another(answer[-1], draw[4]) if wrong else answer}
    return "answer", {"answer": known_answer(settings, question, seed, draw[4] if wrong else None)}


def work(
    settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float
) -> tuple[str, tuple[str, dict[str, Any]]] | None:
    """How the script works an answer out, in words, and the call; None for a dataset that no script works out."""
    question = question_in(messages)
    slip = random.Random(digest(question)[4:]) if errs(question, error_rate) else None
    worker = working.WORKERS.get(settings["dataset"])
    found = worker(question, slip) if worker else None
    return found and (found[0], ("answer", {"answer": found[1]}))


def check_answers(settings: dict[str, Any]) -> None:
    """Raises ValueError for a dataset that names no answer."""
    for name in sorted(datasets.names_of(settings["dataset"], settings.get("dataset_specs") or [])):
        if why := datasets.WITHOUT_AN_ANSWER.get(name):
            raise ValueError(
                f"{name} names no answer of its own (it {why}), so no script can play it; take "
                "teacher.scripted_error_rate out and name a model: teacher.model (and teacher.base_url)"
            )


def known_answer(settings: dict[str, Any], question: str, seed: int | None, draw: int | None = None) -> str:
    """The environment's own answer; a near miss where a `draw` is given. Raises ValueError where there is none."""
    if seed is None:
        raise ValueError("the oracle looks an answer up by the question's seed, and the request names no seed")
    name, specs = settings["dataset"], settings.get("dataset_specs") or []
    dataset, entry = datasets.entry(name, settings.get("config") or {}, seed, specs)
    if entry["question"] != question:
        raise ValueError(
            f"under seed {seed} the environment asks another question than the Reasoning Gym that is installed here: "
            "their versions differ, and the oracle knows the answers of this one only"
        )
    if entry["answer"] is None:
        raise ValueError(f"{name} names no answer to the question of seed {seed}")
    right = str(entry["answer"])
    return right if draw is None else _near_miss(dataset, entry, right, draw)


def _near_miss(dataset: Any, entry: dict[str, Any], right: str, draw: int) -> str:
    """The answer with one digit or letter another one, as near its end as makes it wrong."""
    places = [place for place in reversed(range(len(right))) if right[place].lower() in DIGITS + LETTERS]
    misses = [right[:place] + another(right[place], draw) + right[place + 1 :] for place in places[:TRIES]]
    return next((miss for miss in [*misses, right[:-1]] if not is_right(scoring.score(dataset, entry, miss)[0])), "")


def another(character: str, draw: int) -> str:
    """Another digit for a digit, another letter for anything else."""
    order = DIGITS if character.isdigit() else LETTERS
    place = order.find(character.lower())
    return order[(place + 1 + draw % (len(order) - 1)) % len(order)]
