"""Runs Inspect AI on a task of ours, and leaves the process as it was.

In: a task, a model's name as Inspect writes it, such as openai/gpt-5-mini. Out: the rates, and Inspect's log, kept
without the model's key; from it the same records that our own evaluation leaves.
"""

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.players.inspect_task import RATES, RECORD, require_inspect
from apprentice.tasks.reporting.errors import Stop

if TYPE_CHECKING:
    from inspect_ai import Task
    from inspect_ai.log import EvalLog
    from inspect_ai.model import Model

SHORTEST_KEY = 8
"""Characters; what is shorter is a word for an endpoint that asks for no key, and may stand in the log by right."""


def run_inspect(
    task: "Task",
    model: str,
    log_dir: Path,
    base_url: str | None = None,
    model_args: dict[str, Any] | None = None,
    **generation: Any,
) -> dict[str, Any]:
    """Examines one model, and returns its name, n, the three rates and where the log lies. Raises Stop.

    Args:
        model: As Inspect names it, with its provider. Its key comes from the environment variable of that provider.
        base_url: The endpoint, where it is not the provider's own.
        model_args: Settings of the provider.
        generation: More of Inspect's GenerateConfig, such as reasoning_effort="low".
    """
    require_inspect()
    import inspect_ai

    with _one_at_a_time, _left_as_it_was():
        reached = _reach(model, base_url, model_args or {})
        logs = inspect_ai.eval(
            task,
            model=reached,
            log_dir=str(log_dir.resolve()),
            log_format="eval",
            log_level="notset",
            log_realtime=False,  # nobody watches its database while it runs
            display="none",
            ctl_server=False,  # it would listen for commands
            fail_on_error=True,  # what was lost is no 0, and the rates of what is left would flatter or belittle
            **generation,
        )
        if not logs:  # Inspect swallows Ctrl-C
            raise KeyboardInterrupt
        log = _without_key(logs[0], reached.api.api_key)
    if log.status == "cancelled":
        raise KeyboardInterrupt
    if log.status != "success" or log.results is None:
        said = log.error.message if log.error else log.status
        raise Stop(
            f"Inspect's examination of {model} did not come to its end: {said[:300]}",
            f"See that the environment's server and the model's endpoint run, then run again. Its log: {log.location}",
        )
    means = {score.name: float(score.metrics["mean"].value) for score in log.results.scores}
    rates = {rate: means[rate] for rate in RATES}
    return {"model": model, "n": log.results.completed_samples} | rates | {"log": Path(log.location)}


def records_of(log: Path) -> list[EvaluatedEpisode]:
    """The episodes that a log keeps, as our own evaluation records them, in the order of the questions."""
    from inspect_ai.log import read_eval_log

    samples = read_eval_log(str(log)).samples or []
    return sorted(
        (EvaluatedEpisode.model_validate(sample.store[RECORD]) for sample in samples), key=lambda each: each.place
    )


def _reach(model: str, base_url: str | None, arguments: dict[str, Any]) -> "Model":
    """The model's client. Raises Stop where Inspect does not know the provider, or finds no key."""
    from inspect_ai.model import get_model

    try:
        reached = get_model(model, base_url=base_url, memoize=False, **arguments)
    except Exception as error:
        raise Stop(
            f"Inspect cannot reach {model}: {getattr(error, 'message', error)}",
            "Name the model with its provider, such as openai/gpt-5-mini, and set that provider's key.",
        ) from error
    if hasattr(reached.api, "strict_tools"):  # a server that lets nothing but valid calls through proves no format
        reached.api.strict_tools = False  # type: ignore[attr-defined]
    return reached


def _without_key(log: "EvalLog", key: str | None) -> "EvalLog":
    """The log, here and in its file, without the key, which an endpoint may quote when it says what went wrong."""
    from inspect_ai.log import EvalLog, write_eval_log

    if key is None or len(key) < SHORTEST_KEY or key not in (text := log.model_dump_json()):
        return log
    clean = EvalLog.model_validate_json(text.replace(key, "***"))
    clean.location = log.location
    write_eval_log(clean, log.location)
    return clean


_one_at_a_time = threading.Lock()
"""Inspect runs one eval in a process, and raises where a second begins."""


@contextmanager
def _left_as_it_was() -> Iterator[None]:
    """Inspect makes the process its own: log handlers, the hook for exceptions, a console that says nothing."""
    import rich

    root, console = logging.getLogger(), rich.get_console()
    handlers, level, hook, quiet = root.handlers[:], root.level, sys.excepthook, console.quiet
    console.quiet = True  # Inspect sees to it itself, but only the first time in a process
    try:
        yield
    finally:
        root.handlers[:], sys.excepthook, console.quiet = handlers, hook, quiet
        root.setLevel(level)
