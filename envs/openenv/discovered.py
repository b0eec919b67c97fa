"""The base of environments whose tools only their server knows.

In: settings with the tools. Out: an episode of calls, and how its rewards count.
The tools and what the server calls itself are settings as well, so that they are part of every key and each process
has them without a connection. A recipe leaves them out: they are read from the server before a run begins.
"""

import json
from abc import abstractmethod
from typing import Any, ClassVar

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from apprentice.envs.base import EnvironmentSettings, ToolEnvironment
from apprentice.envs.openenv.tools import ListedTool, tool_of
from apprentice.envs.reward import ROUNDING
from apprentice.envs.tools import Tool
from apprentice.envs.wire.reply import BadReply, Reply
from apprentice.envs.wire.session import ActionRefused, Refused, Session

LIST = {"type": "list_tools"}
INFRASTRUCTURE = ("timeout", "transport_error")
"""Kinds of a tool's error that no call of a model causes."""
NO_REWARD = "the episode ended without a reward"
"""What is wrong with a server that ends an episode and grades none of its steps."""


class NoTools(BadReply):
    """A server tells neither what an action is nor which MCP tools it has."""


class DiscoveredSettings(EnvironmentSettings):
    """What all environments have that are known by their server only."""

    instructions: str = Field(default="Solve the task by calling the tools.", min_length=1)
    """The system prompt."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest reward of an episode. The rewards are divided by the highest, since 1.0 counts as solved."""
    scale: tuple[float, float] | None = Field(default=None, exclude_if=lambda scale: scale is None)
    """The rewards that become 0.0 and 1.0, in place of `reward_range`: an episode with the second or more is right,
    and one with less than the first counts as it does. For rewards that are never exactly 1.0, such as [0.01, 0.99], or
    [-5, 12]. Where neither is given, it is learned from the teacher's episodes."""
    max_turns: int = Field(default=10, ge=1, le=1000)
    """Turns after which an episode ends, if the server does not end it."""
    tools: list[ListedTool] = Field(default_factory=list)
    """The server's tools. Filled in; given, they are what the server must have."""
    served_by: str = ""
    """The server's name and version. Filled in."""

    @field_validator("reward_range")
    @classmethod
    def _is_a_range(cls, given: tuple[float, float]) -> tuple[float, float]:
        if not given[0] < given[1] or given[1] <= 0:
            raise ValueError(
                "reward_range is the lowest and the highest reward, and the highest is above 0; for other rewards say "
                "with `scale` which count as 0 and as 1"
            )
        return given

    @field_validator("scale")
    @classmethod
    def _rises(cls, given: tuple[float, float] | None) -> tuple[float, float] | None:
        if given is not None and not given[0] < given[1]:
            raise ValueError("scale is the reward that counts as 0, and then a higher one that counts as 1")
        return given

    @field_validator("tools")
    @classmethod
    def _in_order(cls, given: list[ListedTool]) -> list[ListedTool]:
        return sorted(given, key=lambda tool: tool.name)


class DiscoveredEnvironment(ToolEnvironment):
    """Plays the tools in its settings, by OpenEnv's messages for MCP tools."""

    Settings: ClassVar[type[DiscoveredSettings]]  # pyright: ignore[reportIncompatibleVariableOverride]
    discovered: ClassVar[tuple[str, ...]] = ("tools",)
    settings: Any  # an instance of `Settings`
    _is_compared = False

    def __init__(self, settings: DiscoveredSettings, session: Session | None = None):
        super().__init__(settings, session)
        low, high = settings.reward_range
        self.reward_range = (0.0, 1.0) if settings.scale else (low / high, 1.0)
        self.bounded = settings.scale is None and "reward_range" in settings.model_fields_set
        self.unfinished = None if self.bounded or settings.scale else 0.0
        self._rewards: list[float] = []

    @property
    def instructions(self) -> str:
        return self.settings.instructions

    @property
    def max_turns(self) -> int:
        return self.settings.max_turns

    def declared_tools(self) -> list[Tool]:
        """The tools in the settings."""
        return [tool_of(each, self.call_tool) for each in self.settings.tools]

    def reset(self, *, seed: int, **row: Any) -> str:
        """The question that the server asks under `seed`."""
        reply = self._begin(seed)
        if not self._is_compared:
            self._compare_tools()
            reply = self._begin(seed) if self.lists_by_a_step else reply
        return self._question_in(reply)

    @property
    def lists_by_a_step(self) -> bool:
        """Whether the server is asked for its tools within an episode, which may count as a step."""
        return True

    def _begin(self, seed: int) -> Reply:
        self._rewards = []
        return self.session.reset(**{"seed": seed} | self._asked(seed))

    @abstractmethod
    def _asked(self, seed: int) -> dict[str, Any]:
        """What a reset sends besides the seed, or in its place."""

    @abstractmethod
    def _question_in(self, reply: Reply) -> str:
        """The question in the reply to a reset. Raises BadReply."""

    @abstractmethod
    def _discovered_in(self, reply: Reply) -> dict[str, Any]:
        """The settings that the server tells besides its tools, given the reply to a reset."""

    def _counted(self, rewards: list[float]) -> float:
        """What an episode's rewards so far are worth."""
        return rewards[-1]

    def _compare_tools(self) -> None:
        """Raises BadReply where the server has other tools than the settings."""
        if (here := self._listed()) != self.settings.tools:
            names = ", ".join(tool.name for tool in here)
            raise BadReply(
                f"the server's tools ({names}) are not those in environment.settings.tools: leave these out of the "
                "recipe, so that the server's are read"
            )
        self._is_compared = True

    def _listed(self) -> list[ListedTool]:
        """The server's tools, by name. Raises BadReply if it has none."""
        try:
            found = self.session.step(LIST).read(list, "tools")
            known = [{name: each.get(name) for name in ListedTool.model_fields if each.get(name)} for each in found]
            tools = TypeAdapter(list[ListedTool]).validate_python(known)
        except (Refused, ActionRefused, BadReply, AttributeError, ValidationError) as error:
            raise NoTools(f"it lists no MCP tools, and its /schema has no actions of its own ({error})") from error
        if not tools:
            raise NoTools("it lists no MCP tools, and its /schema has no actions of its own")
        return sorted(tools, key=lambda tool: tool.name)

    def call_tool(self, tool: ListedTool, arguments: dict[str, Any]) -> str:
        """The tool's answer as text. Raises ValueError (the model sees it), BadReply, SessionLost."""
        reply = self._acted({"type": "call_tool", "tool_name": tool.name, "arguments": arguments})
        error = reply.observation.get("error")
        kind, said = (error.get("error_type"), error.get("message")) if isinstance(error, dict) else ("", error)
        if error and kind in INFRASTRUCTURE:
            raise BadReply(f"the tool {tool.name} failed: {said}")
        self._take(reply)
        if error:
            raise ValueError(str(said))
        return self._answer_in(reply)

    def call_unlisted(self, name: str, arguments: dict[str, Any]) -> None:
        """Call an MCP tool that the server does not list. Raises as `call_tool`."""
        self.call_tool(ListedTool(name=name), arguments)

    def _answer_in(self, reply: Reply) -> str:
        """What the model sees of a tool's answer."""
        return text_of(reply.observation.get("result"))

    def _acted(self, action: dict[str, Any]) -> Reply:
        """The reply to an action. Raises ActionRefused, BadReply, SessionLost."""
        return self.session.step(action)

    def _take(self, reply: Reply) -> None:
        """Notes the reward, and whether the episode has ended. Raises BadReply if it did so without any reward."""
        if reply.reward is not None:
            self._rewards.append(reply.reward)
            self.reward = self.scaled(self._counted(self._rewards))
        if reply.done and not self._rewards:
            raise BadReply(NO_REWARD)
        self.done = reply.done

    def scaled(self, reward: float) -> float:
        """An episode's reward as the settings count it."""
        if self.settings.scale is None:
            return reward / self.settings.reward_range[1]
        low, high = self.settings.scale
        share = max((reward - low) / (high - low), 0.0)
        return 1.0 if abs(share - 1.0) <= ROUNDING else share

    @classmethod
    def completed(cls, settings: dict[str, Any], session: Session) -> dict[str, Any]:
        """Raises ValueError where the server's tools cannot be shown; Refused, BadReply, SessionLost."""
        environment = cls(cls.Settings.model_validate(settings), session)
        reply = environment._begin(0)
        discovered = environment._discovered_in(reply) | settings
        environment = cls(cls.Settings.model_validate(discovered), session)
        if environment.lists_by_a_step:
            environment._begin(0)
        tools = settings.get("tools") or [tool.model_dump() for tool in environment._listed()]
        environment._question_in(environment._begin(0) if environment.lists_by_a_step else reply)
        whole = cls.Settings.model_validate(discovered | {"tools": tools})
        cls(whole).declared_tools()  # what cannot be rendered is found here
        return discovered | {"tools": tools}


def text_of(result: Any) -> str:
    """What a tool answered: the texts of an MCP result or of ORS's blocks, anything else as JSON."""
    parts = result.get("content", result.get("blocks")) if isinstance(result, dict) else None
    if isinstance(parts, list) and all(isinstance(part, dict) for part in parts):
        return "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in parts)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
