"""Law 11: what holds a GPU waits shortly for a server, for the Hub, and not at all for another run."""

import threading
from pathlib import Path
from typing import Any

import pytest

from apprentice.envs.wire.server import SessionLost
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.servers import open_store
from apprentice.flows.stages import _made
from apprentice.tasks.artifacts.hub import HubStore
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.engine.stage import StageContext, stage
from apprentice.tasks.reporting.errors import Stop

pytestmark = pytest.mark.usefixtures("prefect_server")
TOY = Path(__file__).parents[3] / "deployments" / "recipes" / "toy.yaml"
seen: list[StageContext] = []


@stage(produces=Questions, version=1, title="toy", gpu=True)
def toy(context: StageContext, named: str, failing: bool) -> dict[str, Any]:
    """Notes what it was given, and makes nothing of it."""
    seen.append(context)
    if failing:
        raise Stop("It lost its server.", "Wait.") from SessionLost("away")
    (context.out / "questions.jsonl").touch()
    return {"collect": 0, "grpo": 0, "evaluate": 0, "dropped_from_grpo": 0}


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    there = ["server.url=http://127.0.0.1:9", "server.patience=300", "server.grace=8", "report_to=[]"]
    return load_recipe(TOY, [*there, f"store.path={tmp_path / 'artifacts'}"])


def test_a_gpu_stage_waits_for_its_environment_for_a_part_of_the_grace_only(recipe: Recipe):
    state = _made(recipe, toy, "reasoning_gym", False)
    assert state.is_completed()
    server = seen[-1].run.servers.environment("reasoning_gym")
    assert (server.patience, server.message_timeout) == (2.0, 2.0)
    assert seen[-1].run.holds_device


def test_a_gpu_stage_does_not_wait_for_another_that_makes_the_same(recipe: Recipe):
    store, states = open_store(recipe), []
    key = toy.key(("reasoning_gym", False), {})
    before = len(seen)
    with store.exclusive(f"toy-{key}", print):
        waiting = threading.Thread(target=lambda: states.append(_made(recipe, toy, "reasoning_gym", False)))
        waiting.start()
        waiting.join(timeout=60)
        assert not waiting.is_alive(), "it waits and holds the device"
    assert states[0].name == "MadeElsewhere"
    assert len(seen) == before


def test_a_gpu_stage_that_lost_its_environment_ends_in_a_state_that_names_it(recipe: Recipe):
    state = _made(recipe, toy, "reasoning_gym", True)
    assert state.is_failed()
    assert state.name == "EnvironmentAway"


def test_a_gpu_stage_waits_for_the_hub_for_a_part_of_the_grace_only(recipe: Recipe):
    hub = {"namespace": "team", "patience": 600.0}
    at_hub = Recipe.model_validate(recipe.as_parameters() | {"store": {"path": str(recipe.store.path), "hub": hub}})
    patience = [_patience(open_store(at_hub, holds_device=holds)) for holds in (False, True)]
    assert patience == [600.0, 2.0]


def _patience(store: Any) -> float:
    assert isinstance(store, HubStore)
    return store._connection.patience
