"""A recipe of one's own is deployed and run by one command each; what a person paused stays paused. A real server."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.responses import DeploymentResponse
from prefect.runtime import flow_run

from apprentice.deployments.deployment import deploy, on_a_schedule
from apprentice.flows.recipe.loading import load_recipe
from apprentice.flows.recipe.recipe import Recipe
from apprentice.flows.retrain import retrain
from apprentice.flows.runtime.deployed_runs import start_on
from apprentice.tasks.reporting.errors import Stop

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("prefect_server", "pool")]
TOY = Path(__file__).parent.parent.parent / "deployments" / "recipes" / "toy.yaml"


@pytest.fixture
def pool(prefect_server: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("APPRENTICE_STORE", str(tmp_path / "store"))
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="cpu", type="process"), overwrite=True)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A recipe of one's own, under a name that no other test deploys."""
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(yaml.safe_dump(yaml.safe_load(TOY.read_text()) | {"name": f"mine-{uuid4().hex[:8]}"}))
    return recipe


def deployed(path: Path, schedule: str | None = None) -> DeploymentResponse:
    recipe = load_recipe(path, [])
    deploy(recipe, "cpu", "", schedule, "Europe/Berlin")
    with get_client(sync_client=True) as client:
        return client.read_deployment_by_name(f"retrain/{recipe.name}")


def test_a_recipe_is_deployed_with_its_schedule_its_limit_and_its_triggers(mine: Path, tmp_path: Path):
    there = deployed(mine, "0 3 * * 1")
    (schedule,) = there.schedules
    assert (schedule.schedule.cron, schedule.schedule.timezone) == ("0 3 * * 1", "Europe/Berlin")  # type: ignore[union-attr]
    assert schedule.active
    assert there.work_pool_name == "cpu"
    assert there.entrypoint == "apprentice.flows.retrain.retrain"
    assert {"apprentice", "retrain"} <= set(there.tags), "the automations know it by them"
    assert there.parameters["recipe"]["store"]["path"] == str(tmp_path / "store")
    assert there.concurrency_options is not None
    assert there.concurrency_options.collision_strategy == "ENQUEUE"
    assert not triggers_of(there), "it watches nothing"


def test_deployed_again_what_a_person_paused_stays_paused(mine: Path):
    there = deployed(mine, "0 3 * * 1")
    with get_client(sync_client=True) as client:
        client.update_deployment_schedule(there.id, there.schedules[0].id, active=False)
    again = deployed(mine, "0 5 * * 2")
    (schedule,) = again.schedules
    assert schedule.schedule.cron == "0 5 * * 2"  # type: ignore[union-attr]
    assert not schedule.active
    assert not deployed(mine).schedules[0].active, "without a schedule it stays as it is"


def test_a_recipe_on_a_space_runs_on_its_new_revisions_until_a_person_pauses_that(mine: Path):
    name = yaml.safe_load(mine.read_text())["name"]
    mine.write_text(yaml.safe_dump(yaml.safe_load(mine.read_text()) | {"server": {"space": "team/words"}}))
    (called, trigger), *others = triggers_of(deployed(mine)).items()
    assert called == f"{name}: a new revision of team/words"
    assert not others
    assert trigger.trigger.match.root == {"prefect.resource.id": "apprentice.space.team/words"}
    assert f"retrain/{name}" in trigger.description
    with get_client(sync_client=True) as client:
        client.pause_automation(trigger.id)
    (again,) = triggers_of(deployed(mine)).values()
    assert not again.enabled
    mine.write_text(yaml.safe_dump({**yaml.safe_load(mine.read_text()), "server": {}}))
    assert not triggers_of(deployed(mine)), "it watches nothing any more"


@pytest.mark.parametrize(
    ("changes", "rounds", "says"),
    [({}, None, True), ({}, 1, False), ({"server": {"space": "team/words"}}, None, False)],
)
def test_a_schedule_of_runs_in_which_nothing_changes_is_told(mine: Path, changes: dict, rounds: Any, says: bool):
    mine.write_text(yaml.safe_dump(yaml.safe_load(mine.read_text()) | changes))
    recipe = load_recipe(mine, [])
    note = on_a_schedule(recipe.name, recipe.server.space, rounds)
    assert ("ends as Cached" in note and "--rounds 1" in note) == says
    assert bool(note) == says


def test_a_field_is_changed_for_one_run_and_nothing_else_is_sent(mine: Path):
    there = deployed(mine)
    run = start_on("cpu", mine, ["seed=1", "grpo.max_steps=3"])
    assert run.deployment_id == there.id
    assert run.name == f"{there.name}-seed1"
    assert run.parameters["overrides"] == ["seed=1", "grpo.max_steps=3"]
    assert run.parameters["recipe"] == there.parameters["recipe"], "the deployment's own default"
    assert run.state is not None
    assert run.state.is_scheduled()


def test_rounds_are_a_deployment_of_their_own_that_a_schedule_or_a_person_starts(mine: Path):
    recipe = load_recipe(mine, [])
    with pytest.raises(Stop, match=r"(?s)no deployment improve/mine-.* apprentice deploy .* --rounds 1"):
        start_on("cpu", mine, [], rounds=2)
    deploy(recipe, "cpu", "a100", "0 3 * * 1", "Europe/Berlin", rounds=1)
    with get_client(sync_client=True) as client:
        there = client.read_deployment_by_name(f"improve/{recipe.name}")
    assert there.entrypoint == "apprentice.flows.improve.improve"
    assert (there.parameters["rounds"], there.parameters["gpu"]) == (1, "a100")
    assert there.concurrency_options is not None
    assert there.concurrency_options.collision_strategy == "ENQUEUE"
    assert [each.schedule.cron for each in there.schedules] == ["0 3 * * 1"]  # type: ignore[union-attr]
    assert not triggers_of(there), "an unchanged dataset would begin another round"
    run = start_on("cpu", mine, ["improve.replay=0.5"], rounds=2)
    assert (run.deployment_id, run.name) == (there.id, f"{recipe.name}-improve")
    assert (run.parameters["rounds"], run.parameters["overrides"]) == (2, ["improve.replay=0.5"])
    assert run.parameters["gpu"] == "a100"


@pytest.mark.parametrize(
    ("change", "pool", "overrides", "words"),
    [
        ({"name": "other"}, "cpu", [], "There is no deployment retrain/other on Prefect's server"),
        ({"seed": 5}, "cpu", [], ": seed."),
        ({}, "a100", [], " is deployed on the pool cpu, not on a100"),
        ({}, "cpu", ["grpo.max_steps=-5"], "grpo.max_steps: Input should be greater than or equal to 1"),
    ],
    ids=["not deployed", "changed since", "another pool", "a bad value"],
)
def test_what_would_not_run_as_the_file_says_is_refused(
    mine: Path, change: dict[str, Any], pool: str, overrides: list[str], words: str
):
    deployed(mine)
    mine.write_text(yaml.safe_dump(yaml.safe_load(mine.read_text()) | change))
    with pytest.raises(Stop) as stop:
        start_on(pool, mine, overrides)
    assert words in str(stop.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("nowhere", "", None, "UTC"), "no work pool nowhere"),
        (("cpu", "", "every monday", "UTC"), "is not a schedule"),
        (("cpu", "", "0 3 * * 1", "Berlin"), "is not a schedule"),
    ],
)
def test_what_cannot_be_deployed_is_told_in_words(given: tuple[str, str, str | None, str], words: str):
    with pytest.raises(Stop, match=words):
        deploy(load_recipe(TOY, []), *given)


def triggers_of(there: DeploymentResponse) -> dict[str, Any]:
    with get_client(sync_client=True) as client:
        found = client.read_resource_related_automations(f"prefect.deployment.{there.id}")
    return {each.name: each for each in found}


def test_a_run_is_named_by_the_seed_that_it_was_given():
    @flow(name="named", flow_run_name=retrain.flow_run_name)
    def named(recipe: Recipe, overrides: list[str]) -> str:
        return flow_run.name or ""

    recipe = load_recipe(TOY, [])
    assert [named(recipe, given) for given in ([], ["seed=1"], ["no-such=1"])] == [
        "toy-seed0",
        "toy-seed1",
        "toy-seed0",
    ]
