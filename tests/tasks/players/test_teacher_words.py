"""What a teacher's client says of time, and when it asks once more what was answered before."""

import asyncio
from typing import Any

import pytest

from apprentice.tasks.players import teacher
from apprentice.tasks.players.refusals import Redirected, Refused, Unanswered
from apprentice.tasks.players.teacher import EndpointStop, Teacher, TeacherUnavailable, in_words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (89.4, "89 s"),
        (90, "2 min"),
        (3540, "59 min"),
        (3600, "1 h 0 min"),
        (7 * 3600 + 12 * 60 + 29, "7 h 12 min"),
        (7 * 3600 + 12 * 60 + 31, "7 h 13 min"),
    ],
)
def test_a_length_of_time_is_told_in_its_unit(seconds: float, words: str):
    assert in_words(seconds) == words


@pytest.mark.parametrize(
    ("answered", "looked", "known", "waiting", "asks", "looks"),
    [
        (-10, -10, "known", (0, 0), True, True),
        (-9.9, -10, "known", (0, 0), False, False),
        (-10, -9.9, "known", (0, 0), False, False),
        (-10, -10, None, (0, 0), False, True),
        (-10, -10, "body", (0, 0), False, True),
        (-10, -10, "known", (1, 1), True, True),
        (-10, -10, "known", (2, 2), False, True),
        (-10, -10, "known", (2, 1), True, True),
    ],
)
@pytest.mark.parametrize("error", [None, Refused(500, "no", {}, 1.0), Unanswered("no"), Redirected("there")])
def test_what_was_answered_is_asked_again_where_nothing_is_answered_for_a_while(
    answered: float,
    looked: float,
    known: str | None,
    waiting: tuple[int, int],
    asks: bool,
    looks: bool,
    error: Exception | None,
    monkeypatch: pytest.MonkeyPatch,
):
    sent: list[Any] = []

    async def send(body: Any, spent: Any) -> None:
        sent.append((body, spent))
        if error is not None:
            raise error

    monkeypatch.setattr(teacher, "monotonic", lambda: 1000.0)
    one: Any = object.__new__(Teacher)
    one._looking, one._answered, one._looked = asyncio.Lock(), 1000.0 + answered, 1000.0 + looked
    one._spec = type("Spec", (), {"patience": 10.0})
    one._known, (one._most_waiting, one._waiting) = known, waiting
    one._send = send
    asyncio.run(one._look_again("body", "spent"))
    assert sent == ([("known", "spent")] if asks else [])
    assert (one._looked == 1000.0) == looks


AWAY = Unanswered("no answer in time")


@pytest.mark.parametrize(
    ("error", "since", "once", "raised", "words"),
    [
        (AWAY, 9.9, True, TeacherUnavailable, "no answer in time for 10 s"),
        (AWAY, 10.0, True, EndpointStop, r"(?s)has not answered for 10 s \(no answer in time\).*Run again when"),
        (AWAY, 10.0, False, EndpointStop, "(?s)has given no answer for 10 s .*Check that teacher.base_url"),
        (Unanswered("a", was_sent=False), 10.0, False, EndpointStop, "(?s)has not answered.*Run again when it is back"),
        (Unanswered("a", timed_out=True), 10.0, False, EndpointStop, "(?s)has not answered.*Raise teacher.timeout"),
        (Refused(503, "busy", {}, 1.0), 10.0, False, EndpointStop, r"has not answered for 10 s \(status 503: busy\)"),
        (Refused(503, "busy", {}, 1.0), 3.0, False, TeacherUnavailable, "status 503: busy for 10 s"),
    ],
)
def test_an_endpoint_that_does_not_answer_costs_an_episode_and_after_a_while_the_collection(
    error: Any, since: float, once: bool, raised: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(teacher, "monotonic", lambda: 1000.0)
    one: Any = object.__new__(Teacher)
    one._url, one._answered, one._answered_once, one._key = "http://there", 1000.0 - since, once, "secret-key"
    one._spec = type("Spec", (), {"patience": 10.0, "headers": {"X-Mine": "another-secret", "X": "short"}})
    with pytest.raises(raised, match=words):
        one._unanswered(error)
    assert one._shown("with secret-key\nand another-secret or short") == "with *** and *** or short"
    assert len(one._shown("x" * 400)) == 300
