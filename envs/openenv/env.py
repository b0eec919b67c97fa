"""Any OpenEnv environment, by its address alone: typed actions, or MCP tools as of OpenEnv's `MCPEnvironment`.

In: which parts of a reset's reply are the question, what a reset sends, which rewards count. Out: the server's actions
or tools as tools. The server's `/schema` says which of both it has.

A seed is a question. Where the server's resets take no seed, it is a row of `tasks`; with `one_task` there is one
question, of which every seed is another try. With `seeded_tasks` a question is a row and a seed.
"""

import json
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from apprentice.envs.openenv import observation
from apprentice.envs.openenv.discovered import DiscoveredEnvironment, DiscoveredSettings
from apprentice.envs.openenv.tasks import MOST_TASKS, rows_of
from apprentice.envs.openenv.tools import ListedTool, tools_of_action
from apprentice.envs.wire.metadata import action_of, metadata_of
from apprentice.envs.wire.passing import passing
from apprentice.envs.wire.reply import BadReply, Reply, one_line
from apprentice.envs.wire.session import Crashed, Session
from apprentice.envs.wire.waiting import wait_for

MCP = {"tool_name", "arguments", "type"}
"""Fields of OpenEnv's action that calls an MCP tool."""
FEW = 12
"""Most different values of a task's field that make slices of an evaluation."""


class Settings(DiscoveredSettings):
    """What a recipe says about an environment that it knows by its server only."""

    actions: Literal["mcp", "typed"] | None = Field(default=None, exclude_if=lambda actions: actions is None)
    """Whether a call is one of OpenEnv's for MCP tools, or an action of the environment's own class. Filled in."""
    question: list[str] = Field(default_factory=list)
    """Where the question is in the observation of a reset, such as [metadata.prompt.0.content], or in the session's
    state, such as [state.current_question]; several parts are joined. By default all of the observation, and for MCP
    tools its one text."""
    reply: list[str] = Field(default_factory=list, exclude_if=lambda reply: not reply)
    """Which parts of an observation answer an action, such as [board, legal_moves]. By default all of them."""
    passing: list[str] = Field(default_factory=list, exclude_if=lambda passing: not passing)
    """What changes on every reset of one question, such as [episode_id], and is left out. Filled in."""
    reset: dict[str, Any] = Field(default_factory=dict)
    """What a reset sends besides the seed, such as {difficulty: hard}."""
    seed_as: str = ""
    """Another name under which a reset sends the seed, for servers that take the index of a task: `index`."""
    tasks: list[dict[str, Any]] = Field(default_factory=list, exclude_if=lambda tasks: not tasks)
    """For servers that take a task by its name: what each reset sends, such as [{task_id: easy}, {task_id: hard}], or
    a file of JSON lines with as much in each. The seed is the number of the row. A number: so many seeds, from 0 on,
    are the tasks, where every start looks the same and the seed decides what follows, or where the seeds end."""
    seeded_tasks: bool = Field(default=False, exclude_if=lambda seeded_tasks: not seeded_tasks)
    """Whether the seed decides as well how a task begins: each seed is a question then, and the rows take turns."""
    one_task: bool = Field(default=False, exclude_if=lambda one_task: not one_task)
    """For servers that always begin with the same start: there is one question, and each seed is another try."""
    new_sessions: bool = Field(default=False, exclude_if=lambda new_sessions: not new_sessions)
    """Whether every episode has a session of its own, for servers where only the first reset of a session is the same
    each time."""
    rotation: int = Field(default=0, ge=0, le=100, exclude_if=lambda rotation: not rotation)
    """For servers whose resets of a session go through so many tasks in turn, whatever they are sent: every episode has
    a session of its own, and its question is the n-th reset of it."""
    reward: Literal["last", "sum"] = "last"
    """Which of an episode's rewards count: the last one, or their sum."""

    @field_validator("tasks", mode="before")
    @classmethod
    def _may_be_a_file(cls, given: Any) -> Any:
        return rows_of(given)

    @model_validator(mode="after")
    def _has_one_kind_of_start(self) -> "Settings":
        if self.one_task and self.tasks:
            raise ValueError("one_task and tasks exclude each other: with one row in tasks there is one task")
        if self.rotation and (self.one_task or self.tasks):
            raise ValueError("rotation and tasks or one_task exclude each other: the resets of a session are the tasks")
        if self.seeded_tasks and not self.tasks:
            raise ValueError("seeded_tasks needs tasks: without them each seed is a question anyway")
        if self.seeded_tasks and any("seed" in each for each in (self.reset, *self.tasks)):
            raise ValueError("seeded_tasks sends a seed of its own: leave it out of tasks and reset")
        if len(self.tasks) > MOST_TASKS:
            raise ValueError(f"tasks has {len(self.tasks):,} rows; at most {MOST_TASKS:,} are part of a key")
        return self


class Environment(DiscoveredEnvironment):
    """Plays on a server at the recipe's URL."""

    Settings = Settings
    version = "2"
    settings: Settings

    def __init__(self, settings: Settings, session: Session | None = None):
        super().__init__(settings, session)
        self._refusals: set[str] = set()

    @classmethod
    def questions_under(cls, settings: dict[str, Any]) -> int | None:
        """1 with `one_task`, else the rows of `tasks` or the `rotation`; None without them, or where seeds decide how a
        row begins."""
        if settings.get("seeded_tasks"):
            return None
        rows = len(rows_of(settings.get("tasks") or [])) or settings.get("rotation")
        return 1 if settings.get("one_task") else rows or None

    @property
    def lists_by_a_step(self) -> bool:
        return self.settings.actions != "typed"

    def slices(self, seed: int, question: str) -> dict[str, int | str]:
        """The fields of the task's row that few rows differ in."""
        rows = self.settings.tasks
        if not rows:
            return {}
        own = rows[seed % len(rows)]
        return {
            name: value
            for name, value in own.items()
            if isinstance(value, str | int) and 1 < len({json.dumps(row.get(name)) for row in rows}) <= FEW
        }

    def _counted(self, rewards: list[float]) -> float:
        return sum(rewards) if self.settings.reward == "sum" else rewards[-1]

    def _begin(self, seed: int) -> Reply:
        own = self.settings
        self.session.begin(own.new_sessions or own.rotation > 0, seed % own.rotation if own.rotation else 0)
        return super()._begin(seed)

    def _asked(self, seed: int) -> dict[str, Any]:
        own = self.settings
        if own.one_task or own.rotation:
            return {"seed": 0} | own.reset
        if own.tasks:
            row = seed % len(own.tasks)
            return {"seed": seed if own.seeded_tasks else row} | own.reset | own.tasks[row]
        return own.reset | ({own.seed_as: seed} if own.seed_as else {})

    def _question_in(self, reply: Reply) -> str:
        """Raises BadReply where it is not said which text is the question."""
        own = self.settings
        if own.question:
            return observation.at(own.question, reply, self.session.state, own.passing)
        if own.actions == "typed":
            shown = observation.whole(reply.observation, own.passing)
        else:
            texts = [path for path in observation.texts_in(reply.observation) if not path.startswith("metadata.")]
            shown = observation.at(texts, reply, dict, own.passing) if len(texts) == 1 else ""
        if not shown:
            raise observation.unclear(reply, self._state())
        return shown

    def _state(self) -> dict[str, Any]:
        try:
            return self.session.state()
        except BadReply:
            return {}

    def _discovered_in(self, reply: Reply) -> dict[str, Any]:
        server = self.session.server
        again = self._begin(0)
        found: dict[str, Any] = {"served_by": " ".join(metadata_of(server)).strip()}
        if differ := passing(reply.observation, again.observation):
            found["passing"] = differ
        if self._action() is not None:
            found["actions"] = "typed"
        return found

    def _action(self) -> dict[str, Any] | None:
        """The schema of the server's own action; None where it plays MCP tools, or does not say."""
        schema = wait_for(action_of(self.session.server))
        if schema is None:
            return None
        members = [schema, *schema.get("$defs", {}).values()]
        return None if any(_calls_tools(each.get("properties", {})) for each in members) else schema

    def _listed(self) -> list[ListedTool]:
        if self.settings.actions != "typed":
            return super()._listed()
        if (schema := self._action()) is None or not (tools := tools_of_action(schema)):
            raise BadReply("its /schema says nothing of its actions any more")
        return tools

    def call_tool(self, tool: ListedTool, arguments: dict[str, Any]) -> str:
        """What the environment shows after the action or the call. Raises ValueError (the model sees it), BadReply,
        SessionLost."""
        if self.settings.actions != "typed":
            return super().call_tool(tool, arguments)
        reply = self._acted(tool.fixed | arguments)
        self._take(reply)
        return self._answer_in(reply)

    def _answer_in(self, reply: Reply) -> str:
        """What the settings show of the reply; of an MCP tool its result, or the fields that the server has in place of
        one."""
        own = self.settings
        if own.reply:
            return observation.at(own.reply, reply, self.session.state, own.passing)
        if own.actions == "typed":
            return observation.whole(reply.observation, own.passing) or "{}"
        if reply.observation.get("result") is None:
            others = {name: each for name, each in reply.observation.items() if name != "tool_name"}
            return observation.whole(others, own.passing) or super()._answer_in(reply)
        return super()._answer_in(reply)

    def _acted(self, action: dict[str, Any]) -> Reply:
        """As the base's, but raises ValueError where the server crashes on the action, and again on a new connection:
        that is how many published servers refuse one. Whatever says the same later is a refusal, too."""
        try:
            return super()._acted(action)
        except Crashed as crashed:
            said = crashed
        if said.reason not in self._refusals:
            self.session.renew()
            try:
                return super()._acted(action)
            except Crashed as again:
                said = again
                self._refusals.add(again.reason)
        raise ValueError(one_line(said.reason)) from said


def _calls_tools(fields: dict[str, Any]) -> bool:
    """Whether these are the fields of OpenEnv's action for MCP tools, and not of an action that has a tool's name."""
    return fields.keys() >= MCP and "call_tool" in json.dumps(fields["type"])
