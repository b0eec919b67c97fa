"""Tasks that a server's resets take by a name: those that it lists, or levels.

In: an OpenEnv server. Out: rows, each what one reset is sent.
OpenEnv has no such list, nor a name for the argument: published servers return names, objects with one, or objects by
their name. So names are tried, and the resets compared.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, groupby
from time import monotonic
from typing import Any

from apprentice.envs.openenv.tasks import rows_of
from apprentice.envs.wire.passing import difference
from apprentice.envs.wire.reply import Reply
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.adoption.first_resets import QUESTION, FirstReset, first_resets
from apprentice.tasks.reporting.errors import Stop

TASK_LISTS = {
    "/tasks": ("task_id", "task", "task_name", "level", "difficulty"),
    "/scenarios": ("scenario", "scenario_id", "scenario_name"),
    "/levels": ("level", "level_id"),
    "/problems": ("problem_id", "problem"),
}
"""Where servers that take a task by its name may list them, and what a reset may call the name."""
NAMED_BY = ("key", "id", "name", "difficulty", "level")
"""Fields of a listed task that may hold what a reset calls it; `key` is its place in an object."""
LEVELS, NUMBERED = ("easy", "medium", "hard"), (1, 2, 3)
"""What servers that list nothing call their levels."""
SEEDS = (1, 1, 2, 3)
"""Those under which a task's resets are compared."""
SECONDS = 10.0
"""After which no further names are tried."""
REPEATS = 4
"""How often each of the first two is asked for again, where they differ."""
ALIKE = 4
"""Tasks that begin alike, from which on resets do not take them by the name that is tried."""
LONGEST, MOST = 64, 200
"""Characters of a name, and tasks of a list that are read."""

Rows = list[dict[str, Any]]


def tasks_by_name(server: EnvironmentServer, given: dict[str, Any]) -> tuple[Rows, str]:
    """Tasks by name, where the server lists some and their resets differ; and where it lists some that no reset takes
    by a name that is tried."""
    unknown, until = "", monotonic() + SECONDS
    for path, tasks in _listed(server):
        if found := _different(server, given, tasks, until):
            return found, ""
        unknown = path
    return [], unknown


def tasks_by_level(server: EnvironmentServer, given: dict[str, Any]) -> tuple[Rows, bool]:
    """Levels as tasks, where a server that lists none begins otherwise on some, and whether names were left out."""
    until = monotonic() + SECONDS
    names = dict.fromkeys(["difficulty", *TASK_LISTS["/tasks"]])
    rows = ([{name: each} for each in levels] for levels in (LEVELS, NUMBERED) for name in names)
    found = next(filter(None, (_different(server, given, each, until, hidden=LEVELS) for each in rows)), [])
    return found, not found and monotonic() > until


def are_seeded(server: EnvironmentServer, session: dict[str, Any]) -> bool:
    """Whether any of the first tasks begins otherwise under another seed."""
    rows = rows_of(session["tasks"])
    if any("seed" in each for each in (session.get("reset", {}), *rows)):
        return False
    for row in rows[:3]:
        one, again, *others = (each.whole for each in first_resets(server, session | {"tasks": [row]}, seeds=SEEDS))
        if not difference(one, again) and any(difference(one, other) for other in others):
            return True
    return False


def _different(
    server: EnvironmentServer, given: dict[str, Any], tasks: Rows, until: float, hidden: Sequence[str] = ()
) -> Rows:
    """The tasks that begin otherwise than each before them under one seed; none if fewer than two do.

    Without those whose reset fails: a server may list what it cannot play, or one task under two names.

    Args:
        hidden: Words that make no difference: a server that only repeats a level has one task.
    """
    [name] = tasks[0]
    if name in given.get("reset", {}):
        return []
    starts: list[tuple[dict[str, Any], Reply]] = []
    played = 0
    for place, task in enumerate(tasks):
        if monotonic() > until:
            return [each for each, _ in starts] + tasks[place:] if len(starts) > 1 else []
        try:
            one, *again = first_resets(server, given | {"tasks": [task]}, seeds=(1,) if starts else (1, 1))
        except Stop:
            continue
        start, played = _shown(one, hidden), played + 1
        if any(difference(start, _shown(each, hidden)) for each in again):
            return []
        if all(difference(start, other) for _, other in starts):
            starts.append((task, start))
        if len(starts) == 1 and played == ALIKE:
            return []
    if len(starts) < 2 or any(_changes(server, given, *each, until, hidden) for each in starts[:2]):
        return []
    return [each for each, _ in starts]


def _changes(
    server: EnvironmentServer,
    given: dict[str, Any],
    task: dict[str, Any],
    start: Reply,
    until: float,
    hidden: Sequence[str],
) -> bool:
    """Whether a task begins otherwise when it is asked for again: it is drawn, and its name makes no difference."""
    with suppress(Stop):
        for _ in range(REPEATS):
            if monotonic() > until:
                break
            [again] = first_resets(server, given | {"tasks": [task]}, seeds=(1,))
            if difference(start, _shown(again, hidden)):
                return True
    return False


def _shown(start: FirstReset, hidden: Sequence[str]) -> Reply:
    """What a player may be shown of a reset, without some words."""
    state = {path: each for path, each in start.texts.items() if QUESTION.search(path.rpartition(".")[2])}
    shown = start.reply.observation | {"state": state}
    return start.reply._replace(observation=_without(shown, "|".join(hidden)) if hidden else shown)


def _without(value: Any, words: str) -> Any:
    if isinstance(value, dict):
        return {key: _without(each, words) for key, each in value.items()}
    if isinstance(value, list):
        return [_without(each, words) for each in value]
    return re.sub(rf"\b(?:{words})\b", "", value, flags=re.IGNORECASE) if isinstance(value, str) else value


def _listed(server: EnvironmentServer) -> Iterator[tuple[str, Rows]]:
    """Yield where a server lists two tasks or more, and the rows that these are: under each name that a reset's
    argument may have, with the values of each field that may be its name.

    The usual names come first, then those of the list's own fields, such as `difficulty`.
    """
    import httpx

    for path, names in TASK_LISTS.items():
        try:
            answer = httpx.get(f"{server.url}{path}", timeout=server.message_timeout, follow_redirects=True)
            rows = _rows(answer.json(), path.strip("/")) if answer.is_success else []
        except (httpx.HTTPError, ValueError):  # no such path, or a page
            continue
        fields = [field for field in dict.fromkeys(chain(*rows)) if 2 * len(_of(rows, field)) > len(rows)]
        by = sorted((each for each in fields if each.endswith("id") or each in NAMED_BY), key=_likely)
        pairs = [(name, field) for name in names for field in dict.fromkeys([name, *by]) if field in fields]
        pairs += [(field, field) for field in fields if field != "key" and isinstance(_of(rows, field)[0], str)]
        found = ([{name: each} for each in dict.fromkeys(_of(rows, field))] for name, field in pairs)
        yield from ((path, tasks) for tasks, _ in groupby(found) if len(tasks) > 1)


def _likely(field: str) -> int:
    return NAMED_BY.index(field) + 1 if field in NAMED_BY else 0


def _rows(listed: Any, called: str) -> Rows:
    """The list's objects; what is a name alone, or stands under one, has it as its `key`."""
    if isinstance(listed, dict):
        listed = listed.get(called, {key: each for key, each in listed.items() if isinstance(each, dict)})
    if isinstance(listed, dict) and listed and all(isinstance(each, list) for each in listed.values()):
        listed = [each for names in listed.values() for each in names]  # names by level
    if isinstance(listed, dict):
        listed = [(each if isinstance(each, dict) else {}) | {"key": key} for key, each in listed.items()]
    if not isinstance(listed, list):
        return []
    rows = (each if isinstance(each, dict) else {"key": each} for each in listed[:MOST])
    return [row for row in rows if any(map(_is_name, row.values()))]


def _of(rows: Rows, field: str) -> list[Any]:
    return [row[field] for row in rows if _is_name(row.get(field))]


def _is_name(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool) and 0 < len(str(value)) <= LONGEST
