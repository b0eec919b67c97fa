"""Finds where Prefect's settings come from: Prefect's errors name the wrong value, and rarely its file.

In: the environment and the files that Prefect reads in this folder. Out: names of files; Stops.
https://docs.prefect.io/v3/concepts/settings-and-profiles#settings-sources
"""

import os
import tomllib
from pathlib import Path
from typing import Any

from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.reporting.safe_text import one_line

URL, KEY, AUTH = "PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING"
FIELDS = {URL: ("api", "url"), KEY: ("api", "key"), AUTH: ("api", "auth_string")}
"""Where a setting stands in prefect.toml, and in pyproject.toml below [tool.prefect]."""
FILES = (".env", "prefect.toml", "pyproject.toml")
"""Read from the folder in which a command is run, after the environment."""


def check_settings() -> None:
    """Raise Stop if Prefect cannot be imported with the settings of this folder and the environment."""
    try:
        import prefect.context  # noqa: F401 # reads all settings
    except UnicodeDecodeError as error:
        raise Stop(
            f"Prefect reads {_files()}, which is not UTF-8 text: {error}", "Correct or move that file."
        ) from None
    except ValueError as error:  # of pydantic, or of a file that is no TOML
        from pydantic import ValidationError

        why = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            why = f"{error.title}.{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise Stop(
            f"Prefect's settings are not valid: {one_line(why)[:400]}",
            f"Correct the variables that begin with PREFECT_, in the environment or in {_files()}.",
        ) from None


def set_in(variable: str) -> str:
    """Return where a setting has its value: "the environment", a file, or "Prefect's profile"; empty if nowhere."""
    if os.environ.get(variable):
        return "the environment"
    for name in FILES:
        if _in_file(Path(name), variable):
            return str(Path(name).absolute())
    from prefect.settings import get_current_settings

    api = get_current_settings().api
    value = {URL: api.url, KEY: api.key, AUTH: api.auth_string}[variable]
    return "Prefect's profile" if value else ""


def refused(status: int) -> Stop:
    """Return what to say where Prefect's server refuses the credentials; never their values."""
    from prefect.settings import get_current_settings

    url = get_current_settings().api.url
    cause = f"Prefect's server at {url} ({URL} in {set_in(URL) or 'no file'}) refuses the credentials ({status})."
    if where := set_in(KEY):
        return Stop(cause, f"{KEY} in {where} is wrong or has expired: create another one, or `prefect cloud login`.")
    if where := set_in(AUTH):
        return Stop(cause, f"{AUTH} in {where} differs from the server's PREFECT_SERVER_API_AUTH_STRING.")
    return Stop(
        cause,
        f"Set {AUTH} to the server's user:password, or {KEY} for Prefect Cloud; or unset {URL} to run without it.",
    )


def _in_file(file: Path, variable: str) -> bool:
    if not file.is_file():
        return False
    if file.suffix == ".toml":
        found: Any = tomllib.loads(file.read_text(encoding="utf-8"))
        found = found.get("tool", {}).get("prefect", {}) if file.stem == "pyproject" else found
        for name in FIELDS[variable]:
            found = found.get(name) if isinstance(found, dict) else None
        return bool(found)
    from dotenv import dotenv_values

    return bool(dotenv_values(file).get(variable))


def _files() -> str:
    there = [str(Path(name).absolute()) for name in FILES if Path(name).is_file()]
    return " or ".join(there) or "Prefect's profile (prefect profile inspect)"
