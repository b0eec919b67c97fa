"""`apprentice setup` brings a server up to date by the files of pools and automations, and leaves people's changes."""

from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolUpdate
from prefect.events.actions import SendNotification
from prefect.events.schemas.automations import EventTrigger
from prefect.flows import load_flow_from_entrypoint

from apprentice.deployments.provisioning import FILES, automations, set_up
from apprentice.flows.stages import STAGES
from apprentice.tasks.reporting.errors import Stop

SILENT = "apprentice: runs that fell silent"


@pytest.fixture
def client(prefect_server: None) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as client:
        for pool in ("cpu", "a100"):
            if pool in {each.name for each in client.read_work_pools()}:
                client.delete_work_pool(pool)
        yield client


def ours(client: SyncPrefectClient) -> list[str]:
    """The automations that `apprentice setup` makes; deployments of other tests have triggers of their own."""
    return sorted(each.name for each in client.read_automations() if each.name.startswith("apprentice:"))


def test_it_creates_what_is_missing_and_a_second_time_duplicates_nothing(client: SyncPrefectClient):
    assert [*set_up(client, "process", None, 10.0)][:2] == ["pool cpu: created", "pool a100: created"]
    before = ours(client)
    assert len(before) == len(set(before)) >= 3
    assert [*set_up(client, "process", None, 10.0)][:2] == ["pool cpu: up to date", "pool a100: up to date"]
    assert ours(client) == before


def test_what_a_person_changed_stays_and_the_files_win_in_the_rest(client: SyncPrefectClient):
    list(set_up(client, "process", None, 10.0))
    changed = WorkPoolUpdate(concurrency_limit=3, is_paused=True, base_job_template={})
    client.update_work_pool("cpu", changed)
    (silent,) = client.read_automations_by_name(SILENT)
    paused = automations(None, 10.0)[0].model_copy(update={"enabled": False, "description": "old"})
    assert paused.name == silent.name
    client.update_automation(silent.id, paused)
    list(set_up(client, "process", None, 10.0))
    pool = client.read_work_pool("cpu")
    assert (pool.concurrency_limit, pool.is_paused) == (3, True)
    assert "env" in pool.base_job_template["variables"]["properties"]
    (silent,) = client.read_automations_by_name(SILENT)
    assert silent.enabled is False
    assert silent.description.startswith("No heartbeat")


def test_gpu_stages_are_deployed_on_the_pool_that_has_them_and_keep_what_a_person_set(client: SyncPrefectClient):
    list(set_up(client, "process", None, 10.0))
    there = {stage: client.read_deployment_by_name(f"{stage}/a100") for stage in STAGES}
    assert {each.work_pool_name for each in there.values()} == {"a100"}
    assert {stage: load_flow_from_entrypoint(each.entrypoint or "") for stage, each in there.items()} == STAGES
    changed = DeploymentUpdate(
        entrypoint="old.stages.sft", parameter_openapi_schema={}, job_variables={"gpus": 2}, tags=["ours"], paused=True
    )
    client.update_deployment(there["sft"].id, changed)
    assert "deployment sft/a100: up to date" in set_up(client, "process", None, 10.0)
    now = client.read_deployment_by_name("sft/a100")
    assert (now.job_variables, now.tags, now.paused) == ({"gpus": 2}, ["ours"], True)
    assert now.entrypoint == there["sft"].entrypoint
    assert now.parameter_openapi_schema == there["sft"].parameter_openapi_schema


def test_a_pool_that_was_deleted_and_made_again_has_its_gpu_stages_again(client: SyncPrefectClient):
    list(set_up(client, "process", None, 10.0))
    client.delete_work_pool("a100")
    list(set_up(client, "process", None, 10.0))
    assert client.read_deployment_by_name("grpo/a100").work_pool_name == "a100"


def test_a_pool_of_another_type_is_not_touched(client: SyncPrefectClient):
    list(set_up(client, "process", None, 10.0))
    with pytest.raises(Stop, match=r"with type process, and a pool's type cannot be changed.*\n.*--type process"):
        list(set_up(client, "kubernetes", None, 10.0))
    assert client.read_work_pool("cpu").type == "process"


def test_pools_of_jobs_get_the_templates_for_jobs(client: SyncPrefectClient):
    list(set_up(client, "kubernetes", None, 10.0))
    assert "job_manifest" in client.read_work_pool("a100").base_job_template["job_configuration"]


def test_a_block_that_is_not_there_is_named_before_anything_is_created(client: SyncPrefectClient):
    with pytest.raises(Stop, match="There is no block slack-webhook/nobody"):
        list(set_up(client, "process", "slack-webhook/nobody", 10.0))
    assert "cpu" not in {each.name for each in client.read_work_pools()}


def test_people_are_told_only_where_somebody_was_named():
    block = uuid4()
    silent, telling = automations(None, 10.0), automations(block, 3.0)
    assert [each.name for each in telling[: len(silent)]] == [each.name for each in silent]
    rest = telling[len(silent) :]
    assert {each.name.removeprefix("apprentice: tell of ") for each in rest} == {
        *("failures", "long outages", "promotions")
    }
    for each in rest:
        (action,) = each.actions
        assert isinstance(action, SendNotification)
        assert action.block_document_id == block
    (outages,) = [each.trigger for each in rest if each.name.endswith("outages")]
    assert isinstance(outages, EventTrigger)
    assert outages.within.total_seconds() == 180


def test_the_files_are_such_as_prefects_own_command_takes():
    for file in ("automations.yaml", "notifications.yaml"):
        described = yaml.safe_load((FILES / file).read_text())
        assert set(described) == {"automations"}
    assert len(automations(UUID(int=0), 10.0)) == 6
