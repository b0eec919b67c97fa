"""Runs an evaluation with Inspect AI and restores the process state that Inspect changes.

In: a task, and a model as Inspect names it, such as openai/gpt-5-mini. Out: the rates; Inspect's log without the API
key; from the log the same records as our own evaluation's.
"""

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apprentice.tasks.episodes.record import EXAMINED, EvaluatedEpisode
from apprentice.tasks.players.inspect_task import RATES, require_inspect
from apprentice.tasks.reporting.errors import Stop

if TYPE_CHECKING:
    from inspect_ai import Task
    from inspect_ai.log import EvalLog
    from inspect_ai.model import Model

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
    require_inspect()
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
