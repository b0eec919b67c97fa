"""Any OpenEnv environment whose actions are MCP tools, such as the subclasses of OpenEnv's `MCPEnvironment`.

In: which part of a reset's reply is the question, which rewards count. Out: the server's tools as methods.
"""

from typing import Any, Literal

from pydantic import Field

from apprentice.envs.mcp.discovered import DiscoveredEnvironment, DiscoveredSettings
from apprentice.envs.wire.metadata import metadata_of
from apprentice.envs.wire.reply import BadReply, Reply


class Settings(DiscoveredSettings):
    """What a recipe says about an environment that it knows by its server only."""

    question: list[str] = Field(default_factory=list)
    """Where the question is in the observation of a reset, such as [metadata.prompt.0.content]; several texts are
    joined. Needed if the observation holds more than one text."""
    reset: dict[str, Any] = Field(default_factory=dict)
    """What a reset sends besides the seed, such as {difficulty: hard}."""
    seed_as: str = ""
    """Another name under which a reset sends the seed, for servers that take the index of a task: `index`."""
    reward: Literal["last", "sum"] = "last"
    """Which of an episode's rewards count: the last one, or their sum."""


class Environment(DiscoveredEnvironment):
    """Plays on a server at the recipe's URL."""

    Settings = Settings
    version = "1"
    settings: Settings

    def _asked(self, seed: int) -> dict[str, Any]:
        return self.settings.reset | ({self.settings.seed_as: seed} if self.settings.seed_as else {})

    def _question_in(self, reply: Reply) -> str:
        """Raises BadReply where it is not said which text is the question."""
        paths = self.settings.question
        if not paths:
            texts = _texts_in(reply.observation)
            paths = [path for path in texts if not path.startswith("metadata.")]  # which not every openenv sends
            if len(paths) != 1:
                found = f"texts at {', '.join(texts)}" if texts else "no text"
                raise BadReply(
                    f"the reply to a reset holds {found}; environment.settings.question says which one is the question"
                )
        return "\n\n".join(reply.read(str, *_steps(path)) for path in paths)

    def _discovered_in(self, reply: Reply) -> dict[str, Any]:
        assert self.session is not None
        return {"served_by": " ".join(metadata_of(self.session.server)).strip()}

    def _counted(self, rewards: list[float]) -> float:
        return sum(rewards) if self.settings.reward == "sum" else rewards[-1]


def _steps(path: str) -> list[str | int]:
    return [int(step) if step.isdigit() else step for step in path.split(".")]


def _texts_in(value: Any, path: str = "") -> list[str]:
    """The paths of all texts that are not empty."""
    if isinstance(value, str):
        return [path.removeprefix(".")] if value.strip() else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for name, each in inner for found in _texts_in(each, f"{path}.{name}")]
