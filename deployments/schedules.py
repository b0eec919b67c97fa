"""Checks schedules before Prefect gets them: it reads six fields of cron in its own order, and says nothing of a
schedule that never comes.

In: what `--schedule` or a prefect.yaml says. Out: a schedule, or Stop.
"""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from prefect.client.schemas.schedules import CronSchedule
from prefect.server.schemas import schedules as of_server
from pydantic import ValidationError

from apprentice.tasks.reporting.errors import Stop

FIELDS = "minute, hour, day, month, weekday"
KINDS = {"cron": of_server.CronSchedule, "interval": of_server.IntervalSchedule, "rrule": of_server.RRuleSchedule}
"""What Prefect's server makes of a schedule in prefect.yaml, by the name of its field."""


def cron_schedule(schedule: str, timezone: str) -> CronSchedule:
    """Return a schedule in cron syntax. Raises Stop if it is none, or never comes."""
    if why := _refused({"cron": schedule, "timezone": timezone}):
        raise Stop(
            f"{schedule!r} in the time zone {timezone!r} is not a schedule: {why}.",
            "Write it in cron syntax, such as --schedule '0 3 * * 1', with --timezone Europe/Berlin.",
        )
    return CronSchedule(cron=schedule, timezone=timezone)


def check_index(file: Path) -> None:
    """Raise Stop for a schedule in a prefect.yaml that is none, or never comes."""
    for deployment in yaml.safe_load(file.read_text()).get("deployments") or []:
        for schedule in [deployment.get("schedule"), *(deployment.get("schedules") or [])]:
            if isinstance(schedule, dict) and "{{" not in str(schedule) and (why := _refused(schedule)):
                given = ", ".join(f"{name}: {schedule[name]!r}" for name in (*KINDS, "timezone") if name in schedule)
                raise Stop(
                    f"{file}: the deployment {deployment.get('name')} has the schedule {given}, and {why}.",
                    f"Correct it. Cron has five fields: {FIELDS}.",
                )


def index_of_this_command() -> Path:
    """Return the file that `prefect deploy` reads, in whose process a step runs."""
    words = [*sys.argv, ""]
    named = [after for word, after in pairwise(words) if word == "--prefect-file"]
    named += [word.partition("=")[2] for word in words if word.startswith("--prefect-file=")]
    return Path(named[-1] if named else "prefect.yaml")


def _refused(given: dict[str, Any]) -> str:
    """Return why Prefect would not run anything at these times, or not at those that are meant; empty if it would."""
    kind = next((name for name in KINDS if given.get(name) is not None), None)
    if kind is None:
        return f"it has none of {', '.join(KINDS)}"
    if kind == "cron":
        fields = str(given["cron"]).split()
        if len(fields) != 5 and not (len(fields) == 1 and fields[0].startswith("@")):
            seconds = "; seconds cannot be given" if len(fields) > 5 else ""
            return f"it has {len(fields)} fields in place of five ({FIELDS}){seconds}"
    if given.get("timezone") == "":
        return "the time zone is empty"
    known = {name: given[name] for name in (kind, "timezone", "day_or", "anchor_date") if given.get(name) is not None}
    try:
        schedule: Any = KINDS[kind].model_validate(known)
    except ValidationError as error:
        return error.errors()[0]["msg"].removeprefix("Value error, ")
    return "" if _comes(schedule) else "it never comes: no such date exists, or all of them are past"


def _comes(schedule: Any) -> bool:
    with ThreadPoolExecutor(1) as thread:  # a step runs where an event loop runs
        try:
            return bool(thread.submit(asyncio.run, schedule.get_dates(1)).result())
        except ValueError:  # of croniter, which looks fifty years ahead
            return False
