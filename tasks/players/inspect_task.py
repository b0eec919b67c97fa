"""Our evaluation's episodes as a task of Inspect AI, so that any model Inspect can reach is examined on them.

In: an environment pool, rows with seed and question. Out: an Inspect task, whose samples keep the episodes' records.
Why: Inspect speaks every provider's API, and its log is what others read and check. The questions, the tools, what a
message does and what counts as valid are ours: a sample plays one `Episode`. Inspect is an extra and imported late.
One difference remains: Inspect's clients repair arguments that are no JSON object (`five`), and what they repaired can
be valid here, while our own evaluation calls it malformed.
Two loops meet: models are asked on Inspect's, sessions live on that of `waiting`. A sample awaits what it needs done on
the other one, so as many are played at once as there are sessions, and neither loop is ever blocked.
"""

import asyncio
import json
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from apprentice.envs.base import tool_schemas
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.waiting import start
from apprentice.tasks.episodes.episode import Message, prompt
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.players.lender import EnvironmentQueue, EpisodeSlot
from apprentice.tasks.players.play import Play, as_record
from apprentice.tasks.reporting.errors import Stop

if TYPE_CHECKING:
    from inspect_ai import Task
    from inspect_ai.model import ChatMessage, ChatMessageAssistant
    from inspect_ai.scorer import Scorer
    from inspect_ai.solver import Solver
    from inspect_ai.tool import ToolInfo

T = TypeVar("T")

RATES = ("format_compliance", "accuracy", "mean_score")
"""The scores in the log, named as in `Evaluation`; each has the metrics mean and stderr."""
RECORD = "examined"
"""Where a sample's store keeps the episode's record."""
PATIENCE = 120
"""Seconds over which a request that fails is sent again. Inspect's default is for ever."""
LONGEST_REQUEST = 60
"""Seconds for one request."""


def episodes_task(
    pool: EnvironmentPool,
    environment: EnvironmentSpec,
    rows: Sequence[dict[str, Any]],
    max_new_tokens: int,
    temperature: float | None,
    samples: int = 1,
    serves_student: bool = False,
) -> "Task":
    """The questions of `rows` (seed and question), each played `samples` times. Raises Stop.

    Args:
        pool: Environments of this kind. As many episodes run at once as it has; it stays open while the task runs.
        temperature: None leaves it to the provider.
        serves_student: A student of ours behind an OpenAI-compatible server: it is sent the tools and the template
            arguments of its training, as `Teacher` sends them. Inspect's own form of a tool is another prompt.
    """
    require_inspect()
    from inspect_ai import Epochs, Task
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig

    shown = pool.environments[0]
    if shown._parts() != [shown]:
        raise Stop("Inspect knows one set of tools a task, and this is a mixture.", "Name one of its environments.")
    tools = tool_schemas(shown)
    dataset = [
        Sample(id=row["seed"], input=_as_inspects(prompt(shown, row["question"])), metadata={"place": place, **row})
        for place, row in enumerate(rows)
    ]
    return Task(
        dataset=dataset,
        solver=_solver(
            EnvironmentQueue(pool, len(rows) * samples), [_tool_info(tool["function"]) for tool in tools], samples
        ),
        scorer=_scorer(),
        config=GenerateConfig(
            max_tokens=max_new_tokens,
            temperature=temperature,
            max_connections=len(pool.sessions),  # and so many samples at once
            timeout=PATIENCE,
            attempt_timeout=LONGEST_REQUEST,
            parallel_tool_calls=None if serves_student else False,
            extra_body={"tools": tools, "chat_template_kwargs": TEMPLATE_ARGUMENTS} if serves_student else None,
        ),
        epochs=Epochs(samples, "mean"),
        fail_on_error=True,
        name="_".join(str(environment).split()),  # part of the log's file name
        display_name=str(environment),
        version=environment.version,
        metadata={"environment": environment.model_dump(mode="json")},
    )


async def _there(coroutine: Coroutine[Any, Any, T]) -> T:
    """Awaits on Inspect's loop what runs on that of `waiting`."""
    return await asyncio.wrap_future(start(coroutine))


def _solver(lender: EnvironmentQueue, tools: "list[ToolInfo]", samples: int) -> "Solver":
    from inspect_ai.model import get_model
    from inspect_ai.solver import Generate, TaskState, solver

    @solver(name="episode")
    def play() -> "Solver":
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            asked, sample = state.metadata, state.epoch - 1
            seat = EpisodeSlot(lender)
            try:
                episode = await _there(seat.begin(asked["seed"]))
                if episode.question != asked["question"]:
                    raise RuntimeError(f"under seed {asked['seed']} the server asks another question than it did")
                while not episode.done:
                    await _there(seat.do(episode.environment._wait_for_server))  # what cannot be played is not bought
                    state.output = await get_model().generate(state.messages, tools=tools, tool_choice="auto")
                    if state.output.empty:
                        raise RuntimeError(f"the model gave no answer: {state.output.error}")
                    state.messages.append(state.output.message)
                    known = len(episode.messages) + 1
                    await _there(seat.do(episode.step, _as_ours(state.output.message)))
                    state.messages.extend(_as_inspects(episode.messages[known:]))
                play = Play(asked["place"] * samples + sample, asked["seed"], asked["question"], sample)
                record = await _there(seat.do(as_record, episode, play))
                state.store.set(RECORD, record.model_dump(mode="json"))
            finally:
                # shielded: where Inspect cancels an episode, the seat is left all the same
                await asyncio.shield(asyncio.wrap_future(start(seat.leave())))
            return state

        return solve

    return play()


def _scorer() -> "Scorer":
    from inspect_ai.scorer import Score, Target, mean, scorer, stderr
    from inspect_ai.solver import TaskState

    @scorer(name="episode", metrics={rate: [mean(), stderr()] for rate in RATES})
    def rates() -> "Scorer":
        async def score(state: TaskState, target: Target) -> Score:
            if RECORD not in state.store:  # one of Inspect's limits cut it short, such as --token-limit
                raise RuntimeError("the episode did not come to its end, so it has no score")
            record = EvaluatedEpisode.model_validate(state.store.get(RECORD))
            values = (float(record.valid), float(record.is_right), record.score)
            return Score(value=dict(zip(RATES, values, strict=True)), explanation="; ".join(record.causes) or None)

        return score

    return rates()


def _tool_info(function: dict[str, Any]) -> "ToolInfo":
    """Inspect's form of a tool. Raises Stop for a schema with more in it than Inspect's has room for."""
    from inspect_ai.tool import ToolInfo, ToolParams
    from pydantic import ValidationError

    try:
        parameters = ToolParams.model_validate(function["parameters"], extra="forbid")
    except ValidationError as error:
        raise Stop(
            f"Inspect cannot express the parameters of the tool {function['name']}: {error}",
            "Examine this environment with --protocol parity.",
        ) from error
    return ToolInfo(name=function["name"], description=function["description"], parameters=parameters)


def _as_ours(said: "ChatMessageAssistant") -> Message:
    """What the model said, in OpenAI's format. What Inspect could not read of a call's arguments stays unreadable."""
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {
                "name": call.function,
                "arguments": call.parse_error or json.dumps(call.arguments, ensure_ascii=False),
            },
        }
        for call in said.tool_calls or []
    ]
    return {"role": "assistant", "content": said.text} | ({"tool_calls": calls} if calls else {})


def _as_inspects(messages: list[Message]) -> "list[ChatMessage]":
    """System, user and tool messages in Inspect's types."""
    from inspect_ai.model import ChatMessageSystem, ChatMessageTool, ChatMessageUser

    made: list[ChatMessage] = []
    for message in messages:
        match message["role"]:
            case "system":
                made.append(ChatMessageSystem(content=message["content"]))
            case "user":
                made.append(ChatMessageUser(content=message["content"]))
            case "tool":
                call = {"tool_call_id": message["tool_call_id"], "function": message["name"]}
                made.append(ChatMessageTool(content=message["content"], **call))
    return made


def require_inspect() -> None:
    """Raises Stop where Inspect is not installed."""
    try:
        import inspect_ai  # noqa: F401
    except ModuleNotFoundError as missing:
        if missing.name != "inspect_ai":
            raise
        raise Stop(
            "This examination is played by Inspect AI, which is not installed.",
            "Install it: pip install 'apprentice[inspect]'",
        ) from None
