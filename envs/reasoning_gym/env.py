"""Reasoning Gym as an environment: read a question, submit one answer.

In: a dataset's name and configuration. Out: the question of a seed, and the score of the answer to it.
Speaks the wire of the public `reasoning_gym` Space (reset: dataset_name, dataset_config, seed, size; step: answer).
"""

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.reasoning_gym.server import datasets


class Settings(BaseModel):
    """Which of Reasoning Gym's datasets, how hard."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: str
    """A registered dataset, such as chain_sum."""
    config: dict[str, Any] = {}
    """The dataset's own options; what is left out keeps the dataset's default."""

    @field_validator("dataset")
    @classmethod
    def _is_known(cls, dataset: str) -> str:
        datasets.check_name(dataset)
        return dataset


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
        reply = self._start(seed, dataset_name=settings.dataset, dataset_config=settings.config, size=1)
        return reply.observation["question"]

    def answer(self, answer: str) -> str:
        """Hand in the final answer to the problem.

        Args:
            answer: The bare result.

        Returns:
            A confirmation that the answer was received.
        """
        reply = self._act({"answer": str(answer)})
        self.reward = float(reply.observation["score"] or 0.0)
        self.correct = reply.observation.get("correct_answer")
        self.done = True
        return "OK."

    def _traits(self, seed: int, question: str) -> dict[str, int | str]:
        """The counts of Reasoning Gym's own metadata, and the answer's sign and digits, or its length.

        From the package that is installed here, since the public server tells no metadata; empty where the server's
        version asks something else under this seed.
        """
        _, entry = datasets.entry(self.settings.dataset, self.settings.config, seed)
        if entry["question"] != question:
            return {}
        traits: dict[str, int | str] = {
            name.removeprefix("num_"): value
            for name, value in entry["metadata"].items()
            if type(value) is int and name != "source_index"
        }
        answer = str(entry["answer"])
        if re.fullmatch(r"-?\d+", answer):
            sign = "negative" if answer.startswith("-") else "zero" if int(answer) == 0 else "positive"
            return traits | {"sign": sign, "answer digits": len(answer.lstrip("-"))}
        return traits | {"answer length": len(answer)}
