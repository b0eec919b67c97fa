"""An Inspect AI task that plays our evaluation's episodes with any model that Inspect supports.

In: an environment pool, rows with seed and question. Out: an Inspect task whose samples store the episodes' records.
Why: Inspect supports the APIs of all providers, and its logs are a standard format. Each sample plays one `Episode`, so
questions, tools and validity are the same as in our evaluation. One difference remains: Inspect's clients repair
arguments that are not a JSON object (`five`), which our evaluation counts as malformed.
Inspect is an optional dependency and imported lazily. Models are called on Inspect's event loop, sessions on that of
`waiting`; samples await calls on the other loop, so neither loop is blocked.
"""

import asyncio
import json
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from apprentice.envs.base import tool_schemas
from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.waiting import start
from apprentice.tasks.episodes.episode import Message, prompt
from apprentice.tasks.episodes.record import EXAMINED, EvaluatedEpisode
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.players.environment_queue import EnvironmentQueue, EpisodeSlot
from apprentice.tasks.players.play import Play, as_record
from apprentice.tasks.reporting.errors import Stop

if TYPE_CHECKING:
    from inspect_ai import Task
    from inspect_ai.model import ChatMessage, ChatMessageAssistant
    from inspect_ai.scorer import Scorer
    from inspect_ai.solver import Solver
    from inspect_ai.tool import ToolInfo

RATES = ("format_compliance", "accuracy", "mean_score")
"""The scores in the log, named as in `Evaluation`; each has the metrics mean and stderr."""
PATIENCE = 120
"""Seconds for which a failing request is retried; Inspect's default has no limit."""
LONGEST_REQUEST = 60
"""Timeout of one request, in seconds."""


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
        pool: Sets the number of concurrent episodes; must stay open while the task runs.
        temperature: None for the provider's default.
        serves_student: The endpoint serves a student trained here: send the tools and template arguments of its
            training, because Inspect's own format of tools gives another prompt.
    """
    require_inspect()
    from inspect_ai import Epochs, Task
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig

    shown = pool.environments[0]
    if shown._parts() != [shown]:
        raise Stop("An Inspect task has one set of tools, and this is a mixture.", "Choose one of its environments.")
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
            max_connections=len(pool.sessions),  # also limits concurrent samples
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
        metadata={"environment": environment.in_key()},
    )


async def _there(coroutine: Coroutine[Any, Any, T]) -> T:
    return await asyncio.wrap_future(start(coroutine))


def _solver(environments: EnvironmentQueue, tools: "list[ToolInfo]", samples: int) -> "Solver":
    from inspect_ai.model import get_model
    from inspect_ai.solver import Generate, TaskState, solver

    @solver(name="episode")
    def play() -> "Solver":
        async def solve(state: TaskState, generate: Generate) -> TaskState:
            asked, sample = state.metadata, state.epoch - 1
            slot = EpisodeSlot(environments)
            try:
                episode = await _there(slot.begin(asked["seed"]))
                if episode.question != asked["question"]:
                    raise RuntimeError(f"the server's question for seed {asked['seed']} has changed")
                while not episode.done:
                    await _there(slot.do(episode.environment._wait_for_server))  # buy only what can be played
                    state.output = await get_model().generate(state.messages, tools=tools, tool_choice="auto")
                    if state.output.empty:
                        raise RuntimeError(f"the model gave no answer: {state.output.error}")
                    if usage := state.output.usage:
                        episode.prompt_tokens += usage.total_tokens - usage.output_tokens  # cached ones included
                        episode.completion_tokens += usage.output_tokens
                    state.messages.append(state.output.message)
                    known = len(episode.messages) + 1
                    await _there(slot.do(episode.step, _as_ours(state.output.message)))
                    state.messages.extend(_as_inspects(episode.messages[known:]))
                play = Play(asked["place"] * samples + sample, asked["seed"], asked["question"], sample)
                record = await _there(slot.do(as_record, episode, play))
                state.store.set(EXAMINED, record.model_dump(mode="json"))
            finally:
                # shielded: the slot is released even when Inspect cancels the episode
                await asyncio.shield(asyncio.wrap_future(start(slot.leave())))
            return state

        return solve

    return play()


def _scorer() -> "Scorer":
    from inspect_ai.scorer import Score, Target, mean, scorer, stderr
    from inspect_ai.solver import TaskState

    @scorer(name="episode", metrics={rate: [mean(), stderr()] for rate in RATES})
    def rates() -> "Scorer":
        async def score(state: TaskState, target: Target) -> Score:
            if EXAMINED not in state.store:  # one of Inspect's limits ended it, such as --token-limit
                raise RuntimeError("the episode did not finish, so it has no score")
            record = EvaluatedEpisode.model_validate(state.store.get(EXAMINED))
            values = (float(record.valid), float(record.is_right), record.score)
            return Score(value=dict(zip(RATES, values, strict=True)), explanation="; ".join(record.causes) or None)

        return score

    return rates()


def _tool_info(function: dict[str, Any]) -> "ToolInfo":
    """A tool in Inspect's format. Raises Stop for a schema that Inspect cannot express."""
    from inspect_ai.tool import ToolInfo, ToolParams
    from pydantic import ValidationError

    try:
        parameters = ToolParams.model_validate(function["parameters"], extra="forbid")
    except ValidationError as error:
        raise Stop(
            f"Inspect cannot express the parameters of the tool {function['name']}: {error}",
            "Evaluate this environment with --protocol parity.",
        ) from error
    return ToolInfo(name=function["name"], description=function["description"], parameters=parameters)


def _as_ours(message: "ChatMessageAssistant") -> Message:
    """An assistant message in OpenAI's format; arguments that Inspect could not parse stay invalid."""
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {
                "name": call.function,
                "arguments": call.parse_error or json.dumps(call.arguments, ensure_ascii=False),
            },
        }
        for call in message.tool_calls or []
    ]
    return {"role": "assistant", "content": message.text} | ({"tool_calls": calls} if calls else {})


def _as_inspects(messages: list[Message]) -> "list[ChatMessage]":
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
    """Raises Stop when Inspect is not installed."""
    try:
        import inspect_ai  # noqa: F401
    except ModuleNotFoundError as missing:
        if missing.name != "inspect_ai":
            raise
        raise Stop(
            "This evaluation needs Inspect AI, which is not installed.",
            "Install it: pip install 'openenv-apprentice[inspect]'",
        ) from None
