"""How long is retried: what a server asks for, and from the first failure on."""

from typing import Any

import pytest
import tenacity

from apprentice.envs.wire import retry


@pytest.mark.parametrize(
    ("header", "unit", "seconds"),
    [
        ("7", 1.0, 7.0),
        ("1500", 0.001, 1.5),
        ("-3", 1.0, 0.0),
        ("inf", 1.0, None),
        ("nan", 1.0, None),
        ("soon", 1.0, None),
        ("", 1.0, None),
        (None, 1.0, None),
        ("Fri, 15 Jan 2027 08:00:30 GMT", 1.0, 30.0),
        ("Fri, 15 Jan 2027 07:59:30 GMT", 0.001, 0.0),
        ("Fri, 99 Jan 2027 08:00:30 GMT", 1.0, None),
    ],
)
def test_a_time_to_wait_is_seconds_or_a_date(header: str | None, unit: float, seconds: float | None, monkeypatch: Any):
    monkeypatch.setattr(retry, "time", lambda: 1_800_000_000.0)
    assert retry.seconds_in(header, unit) == seconds


def test_a_retry_stops_after_so_long_from_the_first_failure_on_and_so_many_attempts(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(retry, "monotonic", lambda: now[0])
    state: Any = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    patient, stubborn = retry.stop_after_failing_for(10.0), retry.stop_after_failing_for(10.0, attempts=3)
    assert retry.seconds_left(state, 10.0) == 10.0, "nothing has failed"
    found = []
    for attempt, at in ((1, 100.0), (2, 109.9), (2, 110.0), (3, 110.0)):
        state.attempt_number, now[0] = attempt, at
        found.append((patient(state), stubborn(state), round(retry.seconds_left(state, 10.0), 1)))
    assert found == [(False, False, 10.0), (False, False, 0.1), (True, False, 0.0), (True, True, 0.0)]
    now[0] = 999.0
    assert retry.seconds_left(state, 10.0) == 0.0
    assert retry.stop_after_failing_for(0.0)(state)
