"""The toy recipe as a deployment, on two pools, with real parts: `make e2e`.

In: nothing. Out: one line of JSON: every stage with the pool and the worker on which it ran.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any
from uuid import UUID

from apprentice.flows.recipe.loading import load_recipe
from tests.e2e.cluster import ROOT, Cluster, free_port, until
from tests.webhook import receiver, save_block


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="apprentice-e2e-") as folder,
        receiver() as (address, messages),
        Cluster(Path(folder)) as cluster,
    ):
        until("the server knows its blocks", lambda: save_block(client_of(cluster), address))
        ready(cluster, "--notify", "custom-webhook/team", "--outage-minutes", "0.2")
        run = start(cluster, "retrain/toy")
        first = ended(cluster, run)
        assert first["state"] == "Not promoted", first
        report = json.loads(newest_report(cluster).read_text())
        stages = [{name: stage[name] for name in ("name", "pool", "worker")} for stage in report["stages"]]
        gpu = [stage for stage in stages if stage["name"] in ("sft", "grpo", "evaluate")]
        assert len(gpu) == 8, stages
        assert all((stage["pool"], stage["worker"]) == ("a100", "a100-worker") for stage in gpu), stages
        cpu = [stage for stage in stages if stage not in gpu]
        assert all((stage["pool"], stage["worker"]) == ("cpu", "cpu-worker") for stage in cpu), stages
        say("the toy recipe ran", first)

        two = [start(cluster, "retrain/toy") for _ in range(2)]  # they must not overlap
        again = [ended(cluster, run) for run in two]
        assert [each["state"] for each in again] == ["Cached", "Cached"], again
        (began, end), (later, _) = sorted((each["began"], each["ended"]) for each in again)
        assert later >= end > began, again
        say("twice again, one after the other, from what was there", *again)

        check_notifications(cluster, messages)
        check_nothing_is_pickled(Path(folder))
        check_schedules(cluster)
        print(json.dumps({"stages": stages}))


def say(what: str, *runs: dict[str, Any]) -> None:
    print(
        what + ":", ", ".join(f"{run['state']} after {run['ended'] - run['began']:.1f} s" for run in runs), flush=True
    )


def ready(cluster: Cluster, *options: str) -> None:
    """Sets the server up as the README says, and starts a worker for each pool. `options`: options of `setup`."""
    cluster.run("apprentice", "setup", *options)
    cluster.run("prefect", "--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
    cluster.start_worker("cpu", "cpu-worker")
    cluster.start_worker("a100", "a100-worker")


def check_notifications(cluster: Cluster, messages: list[str]) -> None:
    """A failure is told, an outage that goes on is told before that, and so is a promotion."""
    # all that comes before is there: the environment is missed when GRPO is dispatched
    nowhere = [f"server.url=http://127.0.0.1:{free_port()}", "server.patience=45", "grpo.max_steps=5"]
    toy = ROOT / "deployments" / "recipes" / "toy.yaml"
    recipe = load_recipe(toy, [*nowhere, f"store.path={cluster.store}"])
    failed = ended(cluster, start(cluster, "retrain/toy", {"recipe": recipe.as_parameters(), "gpu": "a100"}))
    assert (failed["state"], "out of reach" in failed["message"]) == ("Failed", True), failed
    until(
        "the failure is told", lambda: any("toy-seed0 failed" in text and "out of reach" in text for text in messages)
    )
    assert any("is unavailable" in text for text in messages), messages
    cluster.run(
        *("prefect", "event", "emit", "apprentice.champion.promoted", "--resource-id", "apprentice.champion.a/b"),
        *("--payload", json.dumps({"revision": "abc"})),
    )
    until("the promotion is told", lambda: any("champion" in text and "abc" in text for text in messages))
    print("told:", *messages, sep="\n  ", flush=True)


def check_nothing_is_pickled(folder: Path) -> None:
    """Results in Prefect's storage are JSON, those of failed runs as well, and there are some."""
    results = [path for path in folder.glob("**/storage/*") if path.is_file()]
    assert results, folder
    for path in results:
        text = path.read_text(errors="replace")
        try:
            kept = json.loads(text)
        except json.JSONDecodeError:
            raise AssertionError(f"{path} is no JSON: {text[:200]!r}") from None
        if isinstance(kept, dict) and "metadata" in kept:
            assert kept["metadata"]["serializer"]["type"] == "json", path


def check_schedules(cluster: Cluster) -> None:
    """The weekly round stands in the calendar, a pause takes it out; a new revision of its Space starts a recipe at
    once."""
    client = client_of(cluster)
    weekly = client.read_deployment_by_name("improve/flywheel")
    (schedule,) = weekly.schedules
    assert (schedule.schedule.cron, schedule.schedule.timezone) == ("0 3 * * 1", "Europe/Berlin"), schedule
    until("a weekly run is planned", lambda: scheduled(cluster, weekly.id))
    cluster.run("prefect", "deployment", "schedule", "pause", "improve/flywheel", str(schedule.id))
    until("the pause took the planned runs away", lambda: not scheduled(cluster, weekly.id))
    cluster.run("prefect", "work-pool", "pause", "cpu")  # what is begun now is not run
    cluster.run("apprentice", "deploy", "toy", "--set", "name=words", "--set", "server.space=owner/words")
    words = client.read_deployment_by_name("retrain/words")
    cluster.run(
        *("prefect", "event", "emit", "apprentice.revision.new", "--resource-id", "apprentice.space.owner/words"),
        *("--payload", json.dumps({"repository": "owner/words", "revision": "abc"})),
    )
    (run,) = until("a new revision started a run", lambda: scheduled(cluster, words.id))
    assert run.parameters["environment_revision"] == "owner/words@abc", run.parameters


def client_of(cluster: Cluster) -> Any:
    from prefect.client.orchestration import SyncPrefectClient

    return SyncPrefectClient(cluster.api)


def scheduled(cluster: Cluster, deployment: UUID) -> list[Any]:
    from prefect.client.schemas.filters import (
        DeploymentFilter,
        DeploymentFilterId,
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType

    return client_of(cluster).read_flow_runs(
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment])),
        flow_run_filter=FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED]))
        ),
    )


def start(cluster: Cluster, deployment: str, parameters: dict[str, Any] | None = None) -> UUID:
    client = client_of(cluster)
    found = client.read_deployment_by_name(deployment)
    return client.create_flow_run_from_deployment(found.id, parameters=parameters or {}).id


def ended(cluster: Cluster, run: UUID, seconds: float = 400.0) -> dict[str, Any]:
    """A flow run's final state, and when it began to run and ended, as seconds of the clock."""

    def final() -> Any:
        found = client_of(cluster).read_flow_run(run)
        return found if found.state.is_final() else None

    found = until(f"{run} ends", final, seconds, every=0.5)
    return {
        "state": found.state.name,
        "message": found.state.message,
        "began": found.start_time.timestamp(),
        "ended": found.end_time.timestamp(),
    }


def newest_report(cluster: Cluster) -> Path:
    return max((cluster.store / "runs").glob("*/report.json"), key=os.path.getmtime)


if __name__ == "__main__":
    main()
