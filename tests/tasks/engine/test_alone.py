"""A stage outside of a flow run is called directly: cached, retried and logged as ever, without a Prefect server."""

from collections.abc import Iterator
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE, temporary_settings

from apprentice.envs.wire.server import ServerFailed
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.engine import stage as engine
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import Stage, StageContext, stage
from apprentice.tasks.reporting.errors import Stop


@pytest.fixture(autouse=True)
def no_prefect_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(engine, "RETRY_DELAY", 0.001)
    with temporary_settings(updates={PREFECT_API_URL: None, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: False}):
        yield


def unsteady(*errors: Exception) -> tuple[Stage[Any, Questions], list[int]]:
    """A stage that meets these errors one after another, then works; and for what it was begun."""
    met, starts = list(errors), []

    @stage(produces=Questions, version=1, title="unsteady")
    def unsteady(context: StageContext, number: int) -> dict[str, int]:
        starts.append(number)
        if met:
            raise met.pop(0)
        return {"collect": number, "grpo": 0, "evaluate": 0, "dropped_from_grpo": 0}

    return unsteady, starts


def test_what_it_made_is_found_the_next_time(work: RunContext):
    made, starts = unsteady()
    assert made(work, 1) == made(work, 1)
    assert starts == [1]
    assert [each.state for each in work.log] == ["ran", "cached"]


def test_a_temporary_failure_is_tried_again_and_counted(work: RunContext):
    made, starts = unsteady(ServerFailed("once"), ServerFailed("twice"))
    made(work, 1)
    assert starts == [1, 1, 1]
    assert work.log[-1].counts["retries"] == 2


def test_after_three_retries_the_failure_itself_is_raised(work: RunContext):
    made, starts = unsteady(*[ServerFailed("always")] * 9)
    with pytest.raises(ServerFailed, match="always"):
        made(work, 1)
    assert len(starts) == 4


def test_what_needs_a_person_is_not_tried_again(work: RunContext):
    made, starts = unsteady(Stop("nothing was kept", "look"))
    with pytest.raises(Stop):
        made(work, 1)
    assert starts == [1]


def test_parts_are_made_one_after_another(work: RunContext):
    made, starts = unsteady()
    assert [each.collect for each in made.map(work, [(3,), (1,), (2,)])] == [3, 1, 2]
    assert starts == [3, 1, 2]
