"""A game of two turns, as somebody who is new to this writes it."""

from typing import Any

from apprentice.envs.base import EnvironmentSettings, ToolEnvironment


class Environment(ToolEnvironment):
    """One number an episode: its unit is looked up, then the answer is handed in."""

    Settings = EnvironmentSettings
    version = "1"
    settings: EnvironmentSettings

    @property
    def instructions(self) -> str:
        return "Convert the number: `look_up` its unit, then `answer` with the number times the factor."

    @property
    def max_turns(self) -> int:
        return 2

    def reset(self, *, seed: int, **row: Any) -> str:
        return self.session.reset(seed=seed).read(str, "question")

    def look_up(self, unit: str) -> str:
        """Look a unit up.

        Args:
            unit: Its name.

        Returns:
            Its factor.
        """
        return self.session.step({"unit": str(unit)}).read(str, "reply")

    def answer(self, value: str) -> str:
        """Hand in the number times the factor.

        Args:
            value: The product, in digits.

        Returns:
            A confirmation that the answer was received.
        """
        reply = self.session.step({"value": str(value)})
        self.reward, self.done = reply.score, True
        self.correct = reply.read(str, "correct_answer")
        return "OK."
