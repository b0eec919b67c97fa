"""What a store may expect of the Hub: how long it is asked, and what happens when it stays away."""

from typing import Any

import httpx2
import pytest
from huggingface_hub import constants

from apprentice.tasks.artifacts import hub_client
from apprentice.tasks.artifacts.hub_client import FIRST_PATIENCE, HubConnection

AWAY = httpx2.ConnectError("no answer")


@pytest.fixture(autouse=True)
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(hub_client.announce, "warn", said.append)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return said


def fails(error: Exception) -> Any:
    def call() -> None:
        raise error

    return call


@pytest.mark.parametrize(
    ("needed", "answered", "patience", "timing"),
    [
        (False, False, 600.0, (FIRST_PATIENCE, True)),
        (False, False, 5.0, (5.0, True)),
        (False, True, 600.0, (600.0, False)),
        (True, False, 600.0, (600.0, False)),
    ],
)
def test_a_hub_that_never_answered_and_is_not_needed_is_asked_for_a_short_while(
    needed: bool, answered: bool, patience: float, timing: Any, monkeypatch: pytest.MonkeyPatch
):
    found: list[Any] = []
    monkeypatch.setattr(
        hub_client, "ask", lambda call, name, long, can_do_without: found.append((name, long, can_do_without)) or call()
    )
    hub = HubConnection("me", patience, needed, has_answered=answered)
    assert hub.ask(lambda: "it") == "it"
    assert found == [("me", *timing)]
    assert (hub.has_answered, hub.is_lost) == (True, False)


@pytest.mark.parametrize(
    ("error", "needed", "is_lost"),
    [(AWAY, False, True), (AWAY, True, False), (ZeroDivisionError(), False, False)],
)
def test_a_hub_that_stays_away_is_lost_for_who_can_do_without(
    error: Exception, needed: bool, is_lost: bool, warned: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hub_client, "ask", lambda call, *_, **__: call())
    hub = HubConnection("me", 5.0, needed)
    for _ in range(2):
        with pytest.raises(type(error)):
            hub.ask(fails(error))
    assert (hub.is_lost, hub.has_answered) == (is_lost, False)
    assert len(warned) == is_lost, "told once"


@pytest.mark.parametrize("needed", [True, False])
def test_without_the_hub_the_folder_answers_and_the_hub_is_asked_no_more(
    needed: bool, warned: list[str], monkeypatch: pytest.MonkeyPatch
):
    hub = HubConnection("me", 5.0, needed)
    assert hub.or_without(lambda: "the Hub", lambda: "the folder") == "the Hub"
    if needed:
        with pytest.raises(httpx2.ConnectError):
            hub.or_without(fails(AWAY), lambda: "the folder")
        return
    with pytest.raises(ZeroDivisionError):
        hub.or_without(fails(ZeroDivisionError()), lambda: "the folder")
    assert not hub.is_lost
    assert hub.or_without(fails(AWAY), lambda: "the folder") == "the folder"
    assert hub.is_lost
    assert hub.or_without(lambda: "the Hub", lambda: "the folder") == "the folder"
    assert len(warned) == 1
    offline = HubConnection("me", 5.0, needed=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert offline.or_without(lambda: "the Hub", lambda: "the folder") == "the folder"
    assert offline.is_lost
