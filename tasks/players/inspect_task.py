"""Evaluates a model with Inspect AI: the episodes of our own evaluation, played with any model that Inspect supports.

In: an environment pool, rows with seed and question. Out: Inspect's log, whose samples store the episodes' records.
Each sample plays one `Episode`, so questions, tools and validity are the same as in our evaluation. One difference
remains: Inspect's clients repair arguments that are not a JSON object (`five`), which our evaluation counts as
malformed. Models are called on Inspect's event loop, environments on that of `waiting`, so neither loop is blocked.
Import this module only where Inspect is used: it is an optional dependency.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import inspect_ai
import rich
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog, write_eval_log
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    Model,
    ModelOutput,
    get_model,
)
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolInfo, ToolParams
from pydantic import TypeAdapter, ValidationError

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.waiting import spawn, start
from apprentice.tasks.endpoints.teacher_thoughts import with_its_thought
from apprentice.tasks.episodes.episode import Episode, prompt
from apprentice.tasks.episodes.record import STORED_EPISODE, EvaluatedEpisode, Message
from apprentice.tasks.episodes.rendering import switch_sent
from apprentice.tasks.episodes.thinking import THOUGHT, ended
from apprentice.tasks.players.play import Play, as_record
from apprentice.tasks.reporting.broken_packages import broken_package
from apprentice.tasks.reporting.errors import Stop

T = TypeVar("T")
MESSAGES = TypeAdapter(list[ChatMessage])
RATES = ("format_compliance", "accuracy", "mean_score")
"""The scores in the log, named as in `Evaluation`; each has the metrics mean and stderr."""
PATIENCE = 120
"""Seconds for which a failing request is retried; Inspect's default has no limit."""
LONGEST_REQUEST = 60
"""Timeout of one request, in seconds."""
SHORTEST_KEY = 8
"""Characters. A shorter key is a placeholder for an endpoint without keys, and may appear in the log."""


def episodes_task(
    pool: EnvironmentPool,
    environment: EnvironmentSpec,
    rows: Sequence[dict[str, Any]],
    max_new_tokens: int,
    temperature: float | None,
    samples: int = 1,
    serves_student: bool = False,
    thinks: bool = False,
) -> inspect_ai.Task:
    """The questions of `rows` (seed and question), each played `samples` times. Raises Stop, SessionLost.

    Args:
        pool: As many episodes run at once as the server grants it sessions; must stay open while the task runs.
        temperature: None for the provider's default.
        serves_student: The endpoint serves a student trained here: send the tools and template arguments of its
            training, because Inspect's own format of tools gives another prompt.
        thinks: The student writes thoughts: keep them in the records, as our own evaluation does.
    """
    shown = pool.players[0]
    if shown.parts() != [shown]:
        raise Stop("An Inspect task has one set of tools, and this is a mixture.", "Choose one of its environments.")
    tools = shown.schemas
    sent = {"tools": tools} | switch_sent(thinks) if serves_student else None
    infos = [_tool_info(tool["function"]) for tool in tools]
    places = pool.playable(range(len(pool.players)), len(rows) * samples)
    return inspect_ai.Task(
        dataset=[
            Sample(id=row["seed"], input=_as_inspects(prompt(shown, row["question"])), metadata={"place": n, **row})
            for n, row in enumerate(rows)
        ],
        solver=_solver([pool.players[place] for place in places], infos, samples, _Reader(serves_student, thinks)),
        scorer=_rates(),
        config=GenerateConfig(
            max_tokens=max_new_tokens,
            temperature=temperature,
            max_connections=len(places),  # also limits concurrent samples
            timeout=PATIENCE,
            attempt_timeout=LONGEST_REQUEST,
            parallel_tool_calls=None if serves_student else False,
            extra_body=sent,
            reasoning_history="all" if thinks else None,  # thoughts of earlier turns stay in the context
        ),
        epochs=inspect_ai.Epochs(samples, "mean"),
        fail_on_error=True,  # lost episodes must neither count as 0 nor be left out
        name="_".join(str(environment).split()),  # part of the log's file name
        display_name=str(environment),
        version=environment.version,
        metadata={"environment": environment.in_key()},
    )


class _Reader(NamedTuple):
    """Reads a model's turns as our own evaluation does."""

    serves_student: bool
    thinks: bool

    def turn(self, output: ModelOutput) -> Message:
        """The turn in OpenAI's format. Where the student thinks, with its thought, which may be cut off."""
        message = _as_ours(output.message, self.thinks)
        is_cut = self.thinks and self.serves_student and output.stop_reason == "max_tokens"
        return ended(message) if is_cut else message

    def sent_back(self, message: ChatMessageAssistant) -> ChatMessageAssistant:
        """The turn as the model gets it later: without the empty text that Inspect puts behind a student's thought, and
        would send as a line break."""
        if isinstance(message.content, str) or not (self.thinks and self.serves_student):
            return message
        kept = [each for each in message.content if not isinstance(each, ContentText) or each.text]
        return message.model_copy(update={"content": kept})


def _solver(free: list[Player], tools: list[ToolInfo], samples: int, reader: _Reader) -> Solver:
    """Plays an episode in a free environment: there are as many as samples that run at once."""

    async def there(call: Callable[..., T], *given: Any) -> T:
        return await asyncio.wrap_future(start(spawn(call, *given)))

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        row, sample, environment = state.metadata, state.epoch - 1, free.pop()
        play = Play(row["place"] * samples + sample, row["seed"], row["question"], sample)
        episode = await there(Episode, environment, play.seed)
        episode.check_question(play.question)
        while not episode.done:
            await there(episode.player.wait_for_server)  # buy only what can be played
            state.output = await get_model().generate(state.messages, tools=tools, tool_choice="auto")
            if state.output.empty:
                raise RuntimeError(f"the model gave no answer: {state.output.error}")
            if usage := state.output.usage:
                episode.prompt_tokens += usage.total_tokens - usage.output_tokens  # cached ones included
                episode.completion_tokens += usage.output_tokens
            state.messages.append(reader.sent_back(state.output.message))
            known = len(episode.messages) + 1
            await there(episode.step, reader.turn(state.output))
            state.messages.extend(_as_inspects(episode.messages[known:]))
        state.store.set(STORED_EPISODE, (await there(as_record, episode, play)).model_dump(mode="json"))
        free.append(environment)  # after an error the evaluation ends, and no sample takes it
        return state

    return solver(name="episode")(lambda: solve)()


@scorer(name="episode", metrics={rate: [mean(), stderr()] for rate in RATES})
def _rates() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        if STORED_EPISODE not in state.store:  # one of Inspect's limits ended it, such as --token-limit
            raise RuntimeError("the episode did not finish, so it has no score")
        record = EvaluatedEpisode.model_validate(state.store.get(STORED_EPISODE))
        values = (float(record.valid), float(record.is_right), record.score)
        return Score(value=dict(zip(RATES, values, strict=True)), explanation="; ".join(record.causes) or None)

    return score


def _tool_info(function: dict[str, Any]) -> ToolInfo:
    """A tool in Inspect's format. Raises Stop for a schema that Inspect cannot express."""
    try:
        parameters = ToolParams.model_validate(function["parameters"], extra="forbid")
    except ValidationError as error:
        raise Stop(
            f"Inspect cannot express the parameters of the tool {function['name']}: {error}",
            "Evaluate this environment with --protocol parity.",
        ) from error
    return ToolInfo(name=function["name"], description=function["description"], parameters=parameters)


def _as_ours(message: ChatMessageAssistant, thinks: bool) -> Message:
    """An assistant message in OpenAI's format; arguments that Inspect could not parse stay invalid.

    Args:
        thinks: Also read its thought, in whatever form Inspect has it.
    """
    calls = []
    for call in message.tool_calls or []:
        arguments = call.parse_error or json.dumps(call.arguments, ensure_ascii=False)
        calls.append({"id": call.id, "type": "function", "function": {"name": call.function, "arguments": arguments}})
    ours: Message = {"role": "assistant", "content": message.text} | ({"tool_calls": calls} if calls else {})
    if not thinks:
        return ours
    parts = [] if isinstance(message.content, str) else message.content
    thoughts = [each for each in parts if isinstance(each, ContentReasoning)]
    readable = ((each.summary or "") if each.redacted else each.reasoning for each in thoughts)
    return with_its_thought(ours, ours | {THOUGHT: "\n".join(readable)})


def _as_inspects(messages: list[Message]) -> list[ChatMessage]:
    """Messages of system, user and tools."""
    called = {"name": "function"}
    return MESSAGES.validate_python([{called.get(name, name): each[name] for name in each} for each in messages])


def run_inspect(
    task: inspect_ai.Task, model: str, logs: Path, base_url: str | None = None, model_args: dict[str, Any] | None = None
) -> tuple[Path, list[EvaluatedEpisode]]:
    """Evaluates one model; returns the path of the log, and the episodes in the order of the questions. Raises Stop.

    Args:
        model: Inspect's name of the model, with its provider. The key comes from the provider's environment variable.
        logs: The folder of the log.
        base_url: The endpoint, if not the provider's default.
        model_args: Settings of the provider.
    """
    with _restored():
        reached = _reach(model, base_url, model_args or {})
        quiet: dict[str, Any] = {"log_level": "notset", "log_realtime": False, "display": "none", "ctl_server": False}
        logged = inspect_ai.eval(task, model=reached, log_dir=str(logs.resolve()), log_format="eval", **quiet)
        if not logged:  # Inspect swallows Ctrl-C
            raise KeyboardInterrupt
        log = _without_key(logged[0], reached.api.api_key)
    if log.status == "cancelled":
        raise KeyboardInterrupt
    if log.status != "success":
        cause = log.error.message if log.error else log.status
        raise Stop(
            f"Inspect's evaluation of {model} did not finish: {cause[:300]}",
            f"Check that the environment's server and the model's endpoint run, then run again. Log: {log.location}",
        )
    records = [EvaluatedEpisode.model_validate(sample.store[STORED_EPISODE]) for sample in log.samples or []]
    return Path(log.location), sorted(records, key=lambda each: each.place)


def _reach(model: str, base_url: str | None, arguments: dict[str, Any]) -> Model:
    try:
        reached = get_model(model, base_url=base_url, memoize=False, **arguments)
    except Exception as error:
        raise broken_package(error) or Stop(
            f"Inspect cannot reach {model}: {getattr(error, 'message', error)}",
            "Name the model with its provider, such as openai/gpt-5-mini, and set that provider's key.",
        ) from error
    if hasattr(reached.api, "strict_tools"):  # constrained decoding would hide format errors
        reached.api.strict_tools = False  # type: ignore[attr-defined]
    return reached


def _without_key(log: EvalLog, key: str | None) -> EvalLog:
    """Removes the API key from the log and its file; an endpoint may quote it in an error message."""
    if key is None or len(key) < SHORTEST_KEY or key not in (text := log.model_dump_json()):
        return log
    clean = EvalLog.model_validate_json(text.replace(key, "***"))
    clean.location = log.location
    write_eval_log(clean, log.location)
    return clean


@contextmanager
def _restored() -> Iterator[None]:
    """Restores what Inspect changes in the process: log handlers, the exception hook, the console."""
    root, console = logging.getLogger(), rich.get_console()
    handlers, level, hook, quiet = root.handlers[:], root.level, sys.excepthook, console.quiet
    console.quiet = True  # Inspect does this only for its first eval in a process
    try:
        yield
    finally:
        root.handlers[:], sys.excepthook, console.quiet = handlers, hook, quiet
        root.setLevel(level)
