"""Tasks that a server's resets take by a name: those that it lists, or levels.

In: an OpenEnv server. Out: rows, each what one reset is sent.
OpenEnv has no such list, nor a name for the argument: published servers return names, objects with one, or objects by
their name. So names are tried, and the resets compared.
"""

from collections.abc import Iterator
from itertools import groupby
from time import monotonic
from typing import Any

from apprentice.envs.openenv.tasks import rows_of
from apprentice.envs.wire.passing import difference
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.flows.audit.play.first_resets import first_resets
from apprentice.tasks.reporting.errors import Stop

TASK_LISTS = {
    "/tasks": ("task_id", "task", "task_name", "level", "difficulty"),
    "/scenarios": ("scenario", "scenario_id", "scenario_name"),
    "/levels": ("level", "level_id"),
    "/problems": ("problem_id", "problem"),
}
"""Where servers that take a task by its name may list them, and what a reset may call the name."""
NAMED_BY = ("id", "name", "difficulty", "level")
"""Fields of a listed task that may hold what a reset calls it."""
LEVELS = ("easy", "medium", "hard")
"""What servers that list nothing call their levels."""
SECONDS = 10.0
"""After which no further names are tried."""
LONGEST = 64
"""Characters of a name."""


def tasks_by_name(server: EnvironmentServer, given: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """Tasks by name, where the server lists some and their resets differ; and where it lists some that no reset takes
    by a name that is tried."""
    unknown, until = "", monotonic() + SECONDS
    for path, tasks in _listed(server):
        if monotonic() < until and _are_tasks(server, given, tasks):
            return _different(server, given, tasks), ""
        unknown = path
    return [], unknown


def _different(server: EnvironmentServer, given: dict[str, Any], tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tasks without those whose reset fails, or that begin as an earlier one does: a server may list one under two
    names."""
    starts, until = [], monotonic() + SECONDS
    for task in tasks:
        if monotonic() > until:
            return tasks
        try:
            start = first_resets(server, given | {"tasks": [task]}, seeds=(1,))[0].whole
        except Stop:
            continue
        if all(difference(start, other) for _, other in starts):
            starts.append((task, start))
    return [task for task, _ in starts]


def tasks_by_level(server: EnvironmentServer, given: dict[str, Any]) -> list[dict[str, Any]]:
    """Levels as tasks, where a server that lists none begins otherwise on each."""
    until = monotonic() + SECONDS
    return next((each for each in _by_level() if monotonic() < until and _are_tasks(server, given, each)), [])


def _are_tasks(server: EnvironmentServer, given: dict[str, Any], tasks: list[dict[str, Any]]) -> bool:
    """Whether resets take such tasks: under one seed, one of them is the same twice, and another one differs."""
    try:
        one, again = (each.whole for each in first_resets(server, given | {"tasks": tasks[:1]}, seeds=(1, 1)))
        other = first_resets(server, given | {"tasks": tasks[1:2]}, seeds=(1,))[0].whole
    except Stop:  # it takes them by another name
        return False
    return not difference(one, again) and bool(difference(one, other))


def are_seeded(server: EnvironmentServer, asked: dict[str, Any]) -> bool:
    """Whether a task begins otherwise under another seed."""
    rows = rows_of(asked["tasks"])[:1]
    if "seed" in rows[0]:
        return False
    one, again, other = (each.whole for each in first_resets(server, asked | {"tasks": rows}))
    return not difference(one, again) and bool(difference(one, other))


def _listed(server: EnvironmentServer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield where a server lists two tasks or more, and the rows that these are: under each name that a reset's
    argument may have, with the values of each field that may be its name.

    The usual names come first, then those of the list's own fields, such as `difficulty`.
    """
    import httpx

    for path, names in TASK_LISTS.items():
        try:
            answer = httpx.get(f"{server.url}{path}", timeout=server.message_timeout)
            rows = _rows(answer.json(), path.strip("/")) if answer.is_success else []
        except (httpx.HTTPError, ValueError):  # no such path, or a page
            continue
        fields = [field for field in (rows[0] if rows else {}) if all(_is_name(row.get(field)) for row in rows)]
        by = sorted((each for each in fields if each.endswith("id") or each in NAMED_BY), key=_likely)
        pairs = [(name, field) for name in names for field in dict.fromkeys([name, *by]) if field in fields]
        pairs += [(field, field) for field in fields if isinstance(rows[0][field], str)]
        found = ([{name: each} for each in dict.fromkeys(row[field] for row in rows)] for name, field in pairs)
        yield from ((path, tasks) for tasks, _ in groupby(found) if len(tasks) > 1)


def _by_level() -> Iterator[list[dict[str, Any]]]:
    """Yield the rows that levels are under each usual name of a reset's argument."""
    for name in dict.fromkeys(["difficulty", *TASK_LISTS["/tasks"]]):
        yield [{name: each} for each in LEVELS]


def _likely(field: str) -> int:
    return NAMED_BY.index(field) + 1 if field in NAMED_BY else 0


def _rows(listed: Any, called: str) -> list[dict[str, Any]]:
    """The list's objects; a name alone is an object with an id."""
    if isinstance(listed, dict):
        listed = listed.get(called, listed)
    if isinstance(listed, dict):  # by their names
        listed = [{"id": name} | each for name, each in listed.items() if isinstance(each, dict)]
    return [each if isinstance(each, dict) else {"id": each} for each in listed or []]


def _is_name(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool) and len(str(value)) <= LONGEST
