"""Reasoning Gym as an environment: read a question, submit one answer.

In: a dataset's name and configuration, or the parts of a composite one. Out: the question of a seed, and the score of
the answer to it.
Speaks the wire of the published environment (reset: dataset_name, dataset_config, dataset_specs, seed, size; step:
answer).
"""

import json
import re
import sys
from typing import Any

from pydantic import Field, model_validator

from apprentice.envs.base import EnvironmentSettings, ToolEnvironment
from apprentice.envs.reasoning_gym.server import datasets

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
        reply = self._start(seed, **question, size=1)
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
        reply = self._act({"answer": given})
        self.reward = reply.read(float, "score")
        self.correct = reply.find(str, "correct_answer")
        self.done = True
        return "OK."

    @classmethod
    def _version_under(cls, settings: dict[str, Any]) -> str:
        parts = settings.get("dataset_specs") or []
        named = {settings.get("dataset"), *(part.get("name") for part in parts if isinstance(part, dict))}
        return "2" if named & RESCORED else cls.version

    def _traits(self, seed: int, question: str) -> dict[str, int | str]:
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
