"""How a command ends: a message with a remedy instead of a traceback, and an exit code that scripts can read."""

import threading

import httpx
import httpx2
import pytest
import typer
from huggingface_hub.errors import OfflineModeIsEnabled
from prefect.exceptions import PrefectHTTPStatusError

from apprentice.flows.cli.error_messages import exit_with_message
from apprentice.flows.runtime import interruption
from apprentice.tasks.reporting.errors import Stop


def prefects(status: int) -> PrefectHTTPStatusError:
    request = httpx.Request("GET", "http://prefect")
    return PrefectHTTPStatusError("said", request=request, response=httpx.Response(status, request=request))


@pytest.fixture(autouse=True)
def uninterrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruption, "_reported", threading.Event())


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (Stop("Nothing was kept.", "Look at the filter."), 1, "Nothing was kept.\nLook at the filter.\n"),
        (OfflineModeIsEnabled("offline"), 1, "and HF_HUB_OFFLINE is set.\nUnset it"),
        (httpx2.ConnectError("refused"), 1, "The Hub does not answer (ConnectError).\nRun again when it is back."),
        (prefects(401), 1, "401"),
        (prefects(403), 1, "403"),
        (prefects(404), 1, "PrefectHTTPStatusError: said\nThis is unexpected"),
        (ZeroDivisionError("[bold] no markup"), 1, "ZeroDivisionError: [bold] no markup\nThis is unexpected"),
        (ZeroDivisionError(), 1, "ZeroDivisionError\nThis is unexpected"),
        (KeyboardInterrupt(), 130, "Interrupted. Run the same command again: it resumes from"),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, BaseException) else None,
)
def test_an_error_is_a_cause_and_a_remedy(
    error: BaseException, code: int, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended, exit_with_message():
        raise error
    assert ended.value.code == code
    output = capsys.readouterr()
    assert words in output.out
    assert "Traceback" not in output.out + output.err


@pytest.mark.parametrize("ending", [SystemExit(3), typer.Exit(3), typer.Abort(), typer.BadParameter("no")])
def test_an_exit_code_that_a_command_chose_is_its_own(ending: BaseException):
    with pytest.raises(type(ending)) as ended, exit_with_message():
        raise ending
    assert ended.value is ending
