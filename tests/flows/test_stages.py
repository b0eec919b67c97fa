"""A GPU stage as a flow run of its own: which stage it makes, what it counts, and how it ends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub.errors import HfHubHTTPError
from prefect.client.orchestration import get_client
from prefect.states import Completed, State

from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.session import SessionLost
from apprentice.flows import stages
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.runtime.servers import open_store
from apprentice.tasks.artifacts.types import Questions
from apprentice.tasks.engine.stage import StageContext, stage
from tests.flows.commands import TOY

URL = "http://127.0.0.1:9"
COUNTS = {"collect": 1, "grpo": 0, "evaluate": 0, "dropped_from_grpo": 0}


@pytest.mark.parametrize("name", list(stages.STAGES))
def test_each_flow_makes_its_own_stage_with_all_that_it_is_given(name: str, monkeypatch: pytest.MonkeyPatch):
    made: list[Any] = []
    monkeypatch.setattr(stages, "_made", lambda *given: made.append(given) or Completed())
    given = [f"given {n}" for n in range(len(stages.STAGES[name].parameters.required) - 1)]
    body: Any = stages.STAGES[name].fn
    body("recipe", *given)
    ((recipe, stage, *rest),) = made
    assert (recipe, stage.name, rest) == ("recipe", name, given)


def refused(status: int) -> HfHubHTTPError:
    return HfHubHTTPError("said", response=httpx2.Response(status, request=httpx2.Request("GET", "https://hub")))


def ended(body: Callable[[StageContext], None], recipe: Recipe, retries: int = 0) -> tuple[State, dict[str, Any]]:
    """Run a stage that makes nothing but what its body does as a flow of Prefect's server: its state, its labels."""

    @stage(produces=Questions, version=1, title="Toy")
    def toy(context: StageContext, seed: int) -> dict[str, Any]:
        body(context)
        (context.out / "data.jsonl").write_text("{}\n")
        return COUNTS

    flow = stages._as_flow(toy).with_options(retries=retries)
    state = flow(recipe, 3, return_state=True)
    with get_client(sync_client=True) as client:
        assert state.state_details.flow_run_id is not None
        return state, client.read_flow_run(state.state_details.flow_run_id).labels


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return load_recipe(TOY, [f"store.path={tmp_path / 'store'}", f"server.url={URL}", "server.grace=40"])


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize(
    ("raised", "name", "message"),
    [
        (None, "Completed", "local/toy-questions@"),
        (SessionLost("no answer"), "EnvironmentAway", "no answer"),
        (refused(503), "HubAway", "said"),
        (refused(403), "Failed", "said"),
        (ZeroDivisionError("a bug"), "Failed", "a bug"),
    ],
)
def test_a_stage_ends_in_a_state_that_says_why_and_its_counts_are_kept_however_it_ends(
    raised: Exception | None, name: str, message: str, recipe: Recipe
):
    def body(context: StageContext) -> None:
        count("episodes", 2)
        if raised is not None:
            raise raised

    state, labels = ended(body, recipe)
    assert state.name == name
    assert message in str(state.message)
    assert labels["apprentice.episodes"] == 2
    made = list((recipe.store.path / "datasets").glob("local/toy-questions/snapshots/*/data.jsonl"))
    assert len(made) == (raised is None)


@pytest.mark.usefixtures("prefect_server")
def test_a_device_waits_for_an_environment_only_as_long_as_leaves_time_to_save(recipe: Recipe):
    waits: list[Any] = []

    def body(context: StageContext) -> None:
        server = context.run.servers.environment(recipe.environment.name)
        waits.append((server.url, server.patience, context.run.holds_device, context.run.store.root))

    ended(body, recipe)
    assert waits == [(URL, 10, True, open_store(recipe).root)]


@pytest.mark.usefixtures("prefect_server")
def test_counts_are_added_to_those_of_earlier_attempts(recipe: Recipe):
    costs = [0.5, 0.25]

    def body(context: StageContext) -> None:
        count("episodes", 2)
        count("cost_usd", costs.pop(0))
        if costs:
            raise ZeroDivisionError("the first time only")

    state, labels = ended(body, recipe, retries=1)
    assert state.is_completed()
    assert {name: labels[f"apprentice.{name}"] for name in ("episodes", "cost_usd")} == {
        "episodes": 4,
        "cost_usd": 0.75,
    }


@pytest.mark.usefixtures("prefect_server")
def test_a_stage_that_counted_nothing_leaves_no_label(recipe: Recipe):
    _, labels = ended(lambda context: None, recipe)
    assert not [name for name in labels if name.startswith("apprentice.")]
