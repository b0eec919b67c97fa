"""An Inspect AI task that plays our evaluation's episodes with any model that Inspect supports.

In: an environment pool, rows with seed and question. Out: an Inspect task whose samples store the episodes' records.
Why: Inspect supports the APIs of all providers, and its logs are a standard format. Each sample plays one `Episode`, so
questions, tools and validity are the same as in our evaluation. One difference remains: Inspect's clients repair
arguments that are not a JSON object (`five`), which our evaluation counts as malformed.
Inspect is an optional dependency and imported lazily. Models are called on Inspect's event loop, sessions on that of
`waiting`; samples await calls on the other loop, so neither loop is blocked.

Checks environments of a pool out to callers that schedule episodes themselves, such as Inspect.

Runs an evaluation with Inspect AI and restores the process state that Inspect changes.
"""

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.wire.session import AtCapacity, Session
from apprentice.envs.wire.waiting import spawn, start
from apprentice.tasks.episodes.episode import Episode, Message, prompt
from apprentice.tasks.episodes.record import EXAMINED, EvaluatedEpisode
from apprentice.tasks.episodes.rendering import TEMPLATE_ARGUMENTS
from apprentice.tasks.files.forms import require_inspect
from apprentice.tasks.players.play import Play, as_record
from apprentice.tasks.reporting.errors import Stop, broken_package

if TYPE_CHECKING:
    from inspect_ai import Task
    from inspect_ai.log import EvalLog
    from inspect_ai.model import ChatMessage, ChatMessageAssistant, Model
    from inspect_ai.scorer import Scorer
    from inspect_ai.solver import Solver
    from inspect_ai.tool import ToolInfo

T = TypeVar("T")


class Checkout(NamedTuple):
    environment: Player
    session: Session


class EnvironmentQueue:
    """A queue of a pool's environments. Runs on the event loop of `waiting`.

    Opens sessions on demand, and uses fewer when the server grants fewer.

    Args:
        episodes: Number of episodes to play. Once all have begun, idle sessions are closed, so that the server has room
            for an episode that must reconnect.
    """

    def __init__(self, pool: EnvironmentPool, episodes: int):
        self._pool = pool
        self._ahead = episodes
        self._free: asyncio.LifoQueue[Checkout] = asyncio.LifoQueue()  # open sessions first
        for each in zip(pool.players, pool.sessions, strict=True):
            self._free.put_nowait(Checkout(*each))
        self._all = len(pool.sessions)

    async def take(self) -> Checkout:
        """An environment with an open session; waits until one is free. Raises SessionLost."""
        while True:
            checkout = await self._free.get()
            try:
                if not checkout.session.is_open:
                    await checkout.session.open(patient=self._all == 1)
            except AtCapacity:
                await self._do_without(checkout.session)
            except BaseException:
                self._free.put_nowait(checkout)
                raise
            else:
                self._ahead -= 1
                return checkout

    async def give_back(self, checkout: Checkout) -> None:
        self._free.put_nowait(checkout)
        if self._ahead <= 0 or any(session.turned_away for session in self._pool.sessions):
            idle = [self._free.get_nowait() for _ in range(self._free.qsize())]
            try:
                await asyncio.gather(*(each.session.shut() for each in idle))
            finally:
                for each in idle:
                    self._free.put_nowait(each)

    async def _do_without(self, session: Session) -> None:
        granted = sum(each.is_open for each in self._pool.sessions)
        if self._all == len(self._pool.sessions):
            self._pool.say(f"{self._pool.server.url} grants no more than {granted} sessions; continuing with those.")
        self._all -= 1
        await session.shut()


class EpisodeSlot:
    """The environment of one episode. Its coroutines run on the event loop of `waiting`, one at a time, even when the
    caller cancels one and starts the next."""

    def __init__(self, environments: EnvironmentQueue):
        self._environments = environments
        self._checkout: Checkout | None = None
        self._busy = asyncio.Lock()

    async def begin(self, seed: int) -> Episode:
        """Checks out an environment and starts the episode of a seed. Raises SessionLost, Refused."""
        async with self._busy:
            self._checkout = await self._environments.take()
            return await spawn(Episode, self._checkout.environment, seed)

    async def do(self, call: Callable[..., T], *given: Any) -> T:
        """Runs synchronous code that uses the environment. Raises the code's exceptions."""
        async with self._busy:
            return await spawn(call, *given)

    async def leave(self) -> None:
        async with self._busy:
            if self._checkout is not None:
                checkout, self._checkout = self._checkout, None
                await self._environments.give_back(checkout)


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
    require_inspect("This evaluation needs Inspect AI")
    from inspect_ai import Epochs, Task
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig

    shown = pool.players[0]
    if shown.parts() != [shown]:
        raise Stop("An Inspect task has one set of tools, and this is a mixture.", "Choose one of its environments.")
    tools = shown.schemas
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
                    await _there(slot.do(episode.player.wait_for_server))  # buy only what can be played
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


SHORTEST_KEY = 8
"""Characters. A shorter key is a placeholder for an endpoint without keys, and may appear in the log."""


def run_inspect(
    task: "Task",
    model: str,
    log_dir: Path,
    base_url: str | None = None,
    model_args: dict[str, Any] | None = None,
    **generation: Any,
) -> dict[str, Any]:
    """Evaluates one model; returns its name, n, the three rates and the path of the log. Raises Stop.

    Args:
        model: Inspect's name of the model, with its provider. The key comes from the provider's environment variable.
        base_url: The endpoint, if not the provider's default.
        model_args: Settings of the provider.
        generation: Further settings of Inspect's GenerateConfig, such as reasoning_effort="low".
    """
    require_inspect("This evaluation needs Inspect AI")
    import inspect_ai

    with _one_at_a_time, _restored():
        reached = _reach(model, base_url, model_args or {})
        logs = inspect_ai.eval(
            task,
            model=reached,
            log_dir=str(log_dir.resolve()),
            log_format="eval",
            log_level="notset",
            log_realtime=False,  # its database is not used
            display="none",
            ctl_server=False,  # no control server
            fail_on_error=True,  # lost episodes must neither count as 0 nor be left out
            **generation,
        )
        if not logs:  # Inspect swallows Ctrl-C
            raise KeyboardInterrupt
        log = _without_key(logs[0], reached.api.api_key)
    if log.status == "cancelled":
        raise KeyboardInterrupt
    if log.status != "success" or log.results is None:
        cause = log.error.message if log.error else log.status
        raise Stop(
            f"Inspect's evaluation of {model} did not finish: {cause[:300]}",
            f"Check that the environment's server and the model's endpoint run, then run again. Log: {log.location}",
        )
    means = {score.name: float(score.metrics["mean"].value) for score in log.results.scores}
    rates = {rate: means[rate] for rate in RATES}
    return {"model": model, "n": log.results.completed_samples} | rates | {"log": Path(log.location)}


def records_of(log: Path) -> list[EvaluatedEpisode]:
    """The episodes of a log in the format of our own evaluation, in the order of the questions."""
    from inspect_ai.log import read_eval_log

    samples = read_eval_log(str(log)).samples or []
    return sorted(
        (EvaluatedEpisode.model_validate(sample.store[EXAMINED]) for sample in samples), key=lambda each: each.place
    )


def _reach(model: str, base_url: str | None, arguments: dict[str, Any]) -> "Model":
    from inspect_ai.model import get_model

    try:
        reached = get_model(model, base_url=base_url, memoize=False, **arguments)
    except Exception as error:
        if stop := broken_package(error):
            raise stop from error
        raise Stop(
            f"Inspect cannot reach {model}: {getattr(error, 'message', error)}",
            "Name the model with its provider, such as openai/gpt-5-mini, and set that provider's key.",
        ) from error
    if hasattr(reached.api, "strict_tools"):  # constrained decoding would hide format errors
        reached.api.strict_tools = False  # type: ignore[attr-defined]
    return reached


def _without_key(log: "EvalLog", key: str | None) -> "EvalLog":
    """Removes the API key from the log and its file; an endpoint may quote it in an error message."""
    from inspect_ai.log import EvalLog, write_eval_log

    if key is None or len(key) < SHORTEST_KEY or key not in (text := log.model_dump_json()):
        return log
    clean = EvalLog.model_validate_json(text.replace(key, "***"))
    clean.location = log.location
    write_eval_log(clean, log.location)
    return clean


_one_at_a_time = threading.Lock()
"""Inspect allows one concurrent eval per process."""


@contextmanager
def _restored() -> Iterator[None]:
    """Restores what Inspect changes in the process: log handlers, the exception hook, the console."""
    import rich

    root, console = logging.getLogger(), rich.get_console()
    handlers, level, hook, quiet = root.handlers[:], root.level, sys.excepthook, console.quiet
    console.quiet = True  # Inspect does this only for its first eval in a process
    try:
        yield
    finally:
        root.handlers[:], sys.excepthook, console.quiet = handlers, hook, quiet
        root.setLevel(level)
