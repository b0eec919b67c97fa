"""Finds rollouts that only the environment's rewards have outdated, and has them rescored in place of a new collection.

In: the stage that would make the rollouts, its arguments, the store. Out: `Rollouts`; the teacher is asked only where
none can be rescored. The store's records are the only source, so every machine that shares it decides alike.
"""

from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.tasks.artifacts.provenance import ArtifactRecord, artifact_of
from apprentice.tasks.artifacts.types import Rollouts
from apprentice.tasks.engine.run import RunContext
from apprentice.tasks.engine.stage import Stage
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.rescore import rescore


def made_or_rescored(run: RunContext, make: Stage[..., Rollouts], given: tuple[Any, ...], always: bool) -> Rollouts:
    """Return what the stage `make` makes of `given`, or the same episodes under the environment's present rewards.

    Where no reward changed, these are the rollouts that exist: everything after them is then what it was before.
    """
    found = to_rescore(run, make, given, always)
    if found is None:
        return make(run, *given)
    announce.say("These rollouts exist: they are scored again, and no teacher is asked.")
    rescored = rescore(run, found, _environment(given))
    return rescored if rescored.changed or rescored.left_out else found


def to_rescore(run: RunContext, make: Stage[..., Rollouts], given: tuple[Any, ...], always: bool) -> Rollouts | None:
    """Return the newest rollouts to rescore: made by the same stage, teacher and seeds under other rewards.

    Args:
        always: Rescore whatever changed in the environment, and nothing too. If not, only what differs in the version
            of the rewards, or was rescored before, and only where the stage would have to make it.

    Raises Stop with `always` if there are none.
    """
    if not always and make.find(run, *given) is not None:
        return None
    environment = _environment(given)
    settings, _ = make.key_contents(given, {})
    teacher = settings.get("teacher")
    name = next(name for name, value in settings.items() if value == environment.in_key())
    for found, record in _newest_first(run):
        then = record.made_by.get("settings", {})
        earlier = then.get(name)
        if isinstance(teacher, dict) and isinstance(then.get("teacher"), dict):  # wherever its endpoint is
            then = then | {"teacher": then["teacher"] | {"base_url": None}}
        if record.made_by.get("stage") != make.name or then | {name: None} != settings | {name: None}:
            continue
        if not isinstance(earlier, dict) or not environment.is_task_of(earlier):
            continue
        if always or environment.differs_in_rewards_only(earlier) or rescore.find(run, found, environment):
            return found
    if always:
        raise Stop(
            f"{run.store.root} has no rollouts of this teacher, these seeds and these settings to rescore.",
            "`apprentice run` collects them; `apprentice lineage` shows what older ones were made of.",
        )
    return None


def _environment(given: tuple[Any, ...]) -> EnvironmentSpec:
    return next(each for each in given if isinstance(each, EnvironmentSpec))


def _newest_first(run: RunContext) -> list[tuple[Rollouts, ArtifactRecord]]:
    found = {}
    for key, revision in run.store.tags(Rollouts, "").items():
        try:
            record = run.store.record(Rollouts, key, revision)
            found[revision] = artifact_of(Rollouts, run.store.repository(Rollouts), revision, record), record
        except Stop:
            continue
    return sorted(found.values(), key=lambda each: each[1].provenance.made_at, reverse=True)
