"""Where Prefect's settings come from: its errors say which value is wrong, and rarely in which file it stands.

In: the environment and the files that Prefect reads in this folder. Out: names of files; Stops.
https://docs.prefect.io/v3/concepts/settings-and-profiles#settings-sources

Prepares this process for a flow or a stage, before the libraries that read variables are imported.
"""

import os
import ssl
import tempfile
import tomllib
import warnings
from pathlib import Path
from typing import Any

from apprentice.envs.defaults import debugging, has_home, own_folder
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


QUIET = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # the run prints its own progress; Prefect has the logs
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}

LOUD = ("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "TRANSFORMERS_VERBOSITY")
"""Variables that `--debug` does not set."""


CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PREFECT_API_SSL_CERT_FILE")
"""Variables that name the certificates of authorities, for httpx and OpenSSL, requests, curl and Prefect."""


def check_certificates() -> None:
    """Raise Stop if a variable names certificates that are not there: libraries say so without its name, or when a
    connection fails."""
    for variable in CERTIFICATES:
        given = os.environ.get(variable, "")
        if given and (why := _no_certificates(variable, given)):
            raise Stop(
                f"{variable} names {given}, which {why}.",
                f"Correct it, or unset it (unset {variable}) to use the certificates of the system.",
            )


def _no_certificates(variable: str, given: str) -> str:
    """Return why OpenSSL, or what reads the variable, has no use for it; empty if it has."""
    is_list = variable == "SSL_CERT_DIR"
    if any(map(os.path.isdir, given.split(os.pathsep) if is_list else [given])):
        return "is a folder" if variable.endswith("SSL_CERT_FILE") else ""
    if is_list or not os.path.exists(given):
        return "is no folder" if os.path.exists(given) else "does not exist"
    try:
        ssl.create_default_context(cafile=given)
    except ssl.SSLError as error:  # it is an OSError as well
        return f"has no certificate that can be read ({error.reason})"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return ""


HOMES = (("PREFECT_HOME", "~/.prefect", "Prefect"), ("HF_HOME", "~/.cache/huggingface", "the Hub's library"))
"""Variables with a library's folder, its default, and the library."""


def ready() -> None:
    """Prepare the process for a flow. Call it before importing Prefect, which creates its folder at import time.

    Raises Stop if Prefect's settings are not valid.
    """
    quiet()
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message="IProgress not found")  # tqdm's in a notebook; the run shows its own bars
    check_certificates()
    if not has_home():
        print(f"User {os.getuid()} has no home folder: Prefect and the Hub keep their files in {os.environ['HOME']}.")
        print("Set HOME to a folder that lasts.")
    for variable, folder, whose in HOMES:
        there = Path(folder).expanduser()
        if variable not in os.environ and not _can_be_written(there):
            if variable == "HF_HOME" and there.exists():  # what was downloaded can be read all the same
                continue
            os.environ[variable] = str(Path(own_folder(), Path(folder).name))
            print(f"{folder} is not writable: {whose} stores its data in {os.environ[variable]}.")
    check_settings()


def quiet() -> None:
    """Set the variables that libraries read at import time, if they are not set."""
    for name, value in QUIET.items():
        if not (debugging() and name in LOUD):
            os.environ.setdefault(name, value)


def _can_be_written(folder: Path) -> bool:
    try:
        there = folder.expanduser()
        there.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=there):
            return True
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        return False
