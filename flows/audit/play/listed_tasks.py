"""Tasks by name that a server lists, and under which names a reset may take them.

In: an OpenEnv server. Out: rows, each what one reset would be sent; whether a reset takes them, who asks finds out.
OpenEnv has no such list. What published servers return are names, objects with one, or objects by their name.
"""

from collections.abc import Iterator
from typing import Any

from apprentice.envs.wire.server import EnvironmentServer

TASK_LISTS = {
    "/tasks": ("task_id", "task", "task_name", "difficulty", "level"),
    "/scenarios": ("scenario", "scenario_id", "scenario_name"),
    "/levels": ("level", "level_id"),
    "/problems": ("problem_id", "problem"),
}
"""Where servers that take a task by its name may list them, and what a reset may call the name."""
LONGEST = 64
"""Characters of a name."""


def listed_tasks(server: EnvironmentServer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield where a server lists two tasks or more, and the rows that these are under one name of a reset's argument.

    The usual names come first, then those of the list's own fields, such as `difficulty`.
    """
    import httpx

    for path, names in TASK_LISTS.items():
        try:
            answer = httpx.get(f"{server.url}{path}", timeout=server.message_timeout)
            rows = _rows(answer.json(), path.strip("/")) if answer.is_success else []
        except (httpx.HTTPError, ValueError):  # no such path, or a page
            continue
        for name in dict.fromkeys([*names, *_fields(rows)]):
            own = (name, "id", "name") if name in names else (name,)
            found = dict.fromkeys(next((row[key] for key in own if _is_name(row.get(key))), None) for row in rows)
            if len(tasks := [{name: each} for each in found if each is not None]) > 1:
                yield path, tasks


def _rows(listed: Any, called: str) -> list[dict[str, Any]]:
    """The list's objects; a name alone is an object with an id."""
    if isinstance(listed, dict):
        listed = listed.get(called, listed)
    if isinstance(listed, dict):  # by their names
        listed = [{"id": name} | each for name, each in listed.items() if isinstance(each, dict)]
    return [each if isinstance(each, dict) else {"id": each} for each in listed or []]


def _fields(rows: list[dict[str, Any]]) -> list[str]:
    """The fields of all objects that hold a name."""
    return [name for name in rows[0] if all(_is_name(row.get(name), str) for row in rows)] if rows else []


def _is_name(value: Any, kind: Any = str | int) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and len(str(value)) <= LONGEST
