"""Say a text backward, in two tries; the settings name what is wrong with it."""

from typing import Any

from apprentice.envs.base import EnvironmentSettings, ToolEnvironment


class Settings(EnvironmentSettings):
    """What is wrong."""

    fault: str = ""


class Environment(ToolEnvironment):
    """One text an episode."""

    Settings = Settings
    version = "1"
    settings: Settings

    @property
    def max_turns(self) -> int:
        return 2

    @property
    def instructions(self) -> str:
        return "Say the text backward, by calling the tool `say`."

    def reset(self, *, seed: int, **row: Any) -> str:
        return self.session.reset(seed=seed, fault=self.settings.fault).read(str, "text")

    def say(self, text: str) -> str:
        """Say the text backward, each letter once and nothing else.

        Args:
            text: The text, backward.
        """
        if self.settings.fault == "client" and text == "0":
            return {"1": "one"}[text]
        reply = self.session.step({"text": str(text)})
        self.reward, self.done = reply.score, reply.done
        self.correct = reply.find(str, "correct")
        return reply.read(str, "text")

    def slices(self, seed: int, question: str) -> dict[str, int | str]:
        return {"first": "vowel" if question.split()[-1][0] in "aeiou" else "consonant"}

    @classmethod
    def _under(cls, settings: Settings) -> type[ToolEnvironment]:
        return Undocumented if settings.fault == "undocumented" else cls


class Undocumented(Environment):
    """Its tool does not say what it takes."""

    def say(self, text: str) -> str:
        """Say it."""
        return super().say(text)
