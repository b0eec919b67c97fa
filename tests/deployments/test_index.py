"""The index holds: every entry point loads, every pool and recipe is there, schedules and limits are what they say."""

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from prefect.client.schemas.schedules import CronSchedule
from prefect.flows import load_flow_from_entrypoint

from apprentice.deployments import steps
from apprentice.deployments.cli import Infrastructure
from apprentice.deployments.provisioning import template_of
from apprentice.tasks.reporting.errors import Stop

INDEX: dict[str, Any] = yaml.safe_load((Path(steps.__file__).parent / "prefect.yaml").read_text())
DEPLOYMENTS = {f"{each['entrypoint'].rpartition('.')[2]}/{each['name']}": each for each in INDEX["deployments"]}


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_every_entry_point_is_a_flow_that_takes_its_parameters(name: str, monkeypatch, tmp_path: Path):
    monkeypatch.setenv("APPRENTICE_STORE", str(tmp_path))
    deployment = DEPLOYMENTS[name]
    flow = load_flow_from_entrypoint(deployment["entrypoint"])
    given = dict(deployment.get("parameters", {}))
    for step in deployment.get("build", []):
        made = steps.recipe(step["apprentice.deployments.steps.recipe"]["recipe"])
        given |= {"recipe": made["recipe"], "runs": made["runs"]}
        assert made["recipe"]["store"]["path"] == str(tmp_path)
    if given:
        flow.validate_parameters(given)


@pytest.mark.parametrize(
    ("flow", "first"), [("retrain", ["overrides", "rescore"]), ("improve", ["overrides", "rounds"])]
)
def test_the_form_begins_with_what_people_change_for_a_run(flow: str, first: list[str]):
    fields = load_flow_from_entrypoint(f"apprentice.flows.{flow}.{flow}").parameters.properties
    assert sorted(fields, key=lambda name: fields[name]["position"])[:2] == first
    assert max(fields, key=lambda name: fields[name]["position"]) == "recipe"


def test_the_gpu_stages_are_deployed_where_a_run_looks_for_them():
    wanted = {each["parameters"]["gpu"] for each in INDEX["deployments"] if "gpu" in each.get("parameters", {})}
    assert wanted == {pool for pool, settings in INDEX["pools"].items() if settings.get("stages")} == {"a100"}


def test_every_pool_has_a_template_for_each_kind_of_infrastructure():
    assert {each["work_pool"]["name"] for each in INDEX["deployments"]} <= set(INDEX["pools"])
    for pool in INDEX["pools"]:
        for infrastructure in get_args(Infrastructure):
            assert template_of(pool, infrastructure).exists()


def test_runs_of_one_recipe_never_overlap_and_schedules_have_a_time_zone():
    for each in INDEX["deployments"]:
        if each["entrypoint"].endswith(("retrain", "improve")):
            assert "retrain" in each["tags"], "the automations know it by that"
            assert each["concurrency_limit"] == {"limit": 1, "collision_strategy": "ENQUEUE"}
        for schedule in each.get("schedules", []):
            assert CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"]).timezone
            assert schedule["slug"]
            assert "active" not in schedule, "one that a person paused would run again"


def test_a_recipe_that_is_not_there_is_named():
    with pytest.raises(Stop, match="no recipe"):
        steps.recipe("recipes/nowhere.yaml")
