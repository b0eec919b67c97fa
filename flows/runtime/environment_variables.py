"""Sets and checks the environment variables that libraries read when they are imported, before a flow or a stage.

In: the process's environment. Out: the same with defaults; Stop for a value that is wrong.
"""

import os
import ssl
import tempfile
import warnings
from pathlib import Path

from apprentice.envs.defaults import debugging, has_home, own_folder
from apprentice.flows.runtime.prefect_settings import check_settings
from apprentice.tasks.reporting.errors import Stop

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
