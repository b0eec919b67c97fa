"""What Prefect's server does by itself: finds dead runs, lets a retraining that died go on, tells people.

In: whom to tell. Out: automations, created or brought up to date by their names.
A run whose worker and process were both killed says nothing any more: it is found by the heartbeats that stop, and set
to Crashed. Whoever dispatched it (flows/dispatch.py) schedules it again; a retraining is scheduled again from here.
"""

from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.events.actions import ChangeFlowRunState, SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.states import StateType

SILENT = timedelta(seconds=90)
"""Without a heartbeat, of which there is one every 30 s, a run counts as dead."""
PENDING = timedelta(minutes=20)
"""A run that a worker took and never began counts as dead; a cluster may need so long to find a node."""
LONGEST = timedelta(days=30)
"""A run that began longer ago is not scheduled again when it dies."""
EACH_RUN = {"prefect.resource.id"}


def automations(outage: timedelta, tell: UUID | None) -> list[AutomationCore]:
    """All of them; those that tell people only with a notification block."""
    runs: dict[str, Any] = {"match": {"prefect.resource.id": "prefect.flow-run.*"}, "for_each": EACH_RUN}
    ours = runs | {"match_related": _tagged("apprentice")}  # others may send fewer heartbeats
    retrainings = runs | {"match_related": _tagged("retrain")}
    found = [
        _automation(
            "apprentice: runs that fell silent",
            "A run without a heartbeat is dead: its worker and its process were killed, or its machine is gone.",
            # Running as well: a run that was killed before its first heartbeat
            _absent({"prefect.flow-run.heartbeat", "prefect.flow-run.Running"}, {"prefect.flow-run.*"}, SILENT, ours),
            _set_to(StateType.CRASHED, "No heartbeat: its process is gone."),
        ),
        _automation(
            "apprentice: runs that never began",
            "A run that a worker took, and that is still pending.",
            _absent({"prefect.flow-run.Pending"}, {"prefect.flow-run.*"}, PENDING, ours),
            _set_to(StateType.CRASHED, "It never began: its worker is gone."),
        ),
        _automation(
            "apprentice: a retraining that died goes on",
            "One that had begun; finished stages are found in the store, and after five times it says itself: enough.",
            _present({"prefect.flow-run.Crashed"}, retrainings, after="prefect.flow-run.Running"),
            _set_to(StateType.SCHEDULED, "It died, and goes on.", name="AwaitingRetry"),
        ),
    ]
    if tell is None:
        return found
    link = "{{ flow_run|ui_url }}"
    return [
        *found,
        _automation(
            "apprentice: tell of failures",
            "A run that failed wants a person.",
            _present({"prefect.flow-run.Failed"}, retrainings),
            _told(tell, "{{ flow_run.name }} failed", "{{ flow_run.state.message }}\n" + link),
        ),
        _automation(
            "apprentice: tell of long outages",
            "An environment that stays away.",
            _absent(
                {"apprentice.outage.began"},
                {"apprentice.outage.ended"},
                outage,
                {"match": {"prefect.resource.id": "apprentice.environment.*"}, "for_each": EACH_RUN},
            ),
            _told(tell, "An environment has been away", "{{ event.resource.id }} has not come back."),
        ),
        _automation(
            "apprentice: tell of promotions",
            "The gate let a model through.",
            _present({"apprentice.champion.promoted"}, {"match": {"prefect.resource.id": "apprentice.champion.*"}}),
            _told(tell, "A new champion", "{{ event.resource.id }}: {{ event.payload.revision }}"),
        ),
    ]


def apply(client: SyncPrefectClient, wanted: list[AutomationCore]) -> None:
    """Creates what is missing, replaces what stands under the same name; one that a person paused stays paused."""
    for automation in wanted:
        there = client.read_automations_by_name(automation.name)
        if there:
            client.update_automation(there[0].id, automation.model_copy(update={"enabled": there[0].enabled}))
        else:
            client.create_automation(automation)


def _automation(name: str, description: str, trigger: EventTrigger, action: Any) -> AutomationCore:
    return AutomationCore(name=name, description=description, trigger=trigger, actions=[action])


def _absent(after: set[str], expect: set[str], within: timedelta, of: dict[str, Any]) -> EventTrigger:
    return EventTrigger(posture=Posture.Proactive, after=after, expect=expect, within=within, threshold=1, **of)


def _present(expect: set[str], of: dict[str, Any], after: str = "") -> EventTrigger:
    """When an event comes; with `after`, once for each of those before it."""
    once = {"after": {after}, "within": LONGEST} if after else {}
    return EventTrigger(posture=Posture.Reactive, expect=expect, threshold=1, **of, **once)


def _tagged(tag: str) -> dict[str, str]:
    """Runs of our deployments, which have the tag; a process that a person started has not."""
    return {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{tag}"}


def _set_to(state: StateType, message: str, name: str | None = None) -> ChangeFlowRunState:
    return ChangeFlowRunState(state=state, name=name, message=message, force=state == StateType.SCHEDULED)


def _told(block: UUID, subject: str, body: str) -> SendNotification:
    return SendNotification(block_document_id=block, subject=subject, body=body)
