"""Looks at an OpenEnv server that somebody else published, for a recipe that trains on it: `env adopt`.

In: a URL, a Space, or a folder with a server's code. Out: the recipe's text; Stop with the reason where the server
cannot be trained on.
"""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from apprentice.envs.catalog import ANY, EnvironmentSpec, part_of
from apprentice.envs.openenv.tasks import rows_of
from apprentice.envs.reward import is_right
from apprentice.envs.wire.metadata import metadata_of
from apprentice.envs.wire.passing import difference
from apprentice.envs.wire.reply import BadReply, one_line
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.envs.wire.waiting import wait_for
from apprentice.flows.adoption.first_resets import BUGS, MENDED, first_resets
from apprentice.flows.adoption.listed_tasks import are_seeded, tasks_by_level, tasks_by_name
from apprentice.flows.adoption.question_place import left_out, question_at
from apprentice.flows.adoption.random_calls import earned, last_text_call, random_episodes, rewards_and_turns
from apprentice.flows.adoption.starts import after_a_step, by_seed, few_starts, kind_of_start, without
from apprentice.flows.audit.audit import audit
from apprentice.flows.audit.connection import answers, known_as, shut
from apprentice.flows.audit.isolation import grading, interleaved
from apprentice.flows.audit.play.audited_episodes import take
from apprentice.flows.audit.play.check import Check
from apprentice.flows.audit.play.guesses import any_call
from apprentice.flows.audit.play.recorded import Recorded
from apprentice.flows.audit.play.subject import Needs, Subject
from apprentice.flows.cli.choice import environment_of, server_at
from apprentice.flows.recipe.adopted_recipe import DerivedSetting, quoted, recipe_lines, training_lines
from apprentice.flows.runtime.package_server import package_server
from apprentice.flows.runtime.servers import completed
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.reporting.errors import Stop

SESSIONS = 16
"""Sessions that are asked for: more hide more of a teacher's latency, and a recipe can ask for more later."""
SEEDS = 3
"""Seeds whose question is asked twice: a reset may take seconds."""
PATIENCE = 20.0
"""Seconds to wait for a server that does not answer."""
QUICK = 0.3
"""Seconds of a reset up to which episodes of two sessions are played beside each other."""
ONE_EACH = (
    "Its author has to give create_app the class, or a function that makes an environment, in place of one that "
    "returns the same each time."
)
OWN_DRAW = "Its author has to draw from random.Random(seed), kept by each environment, in place of random.seed(seed)."


@contextmanager
def adoptable(given: str) -> Iterator[tuple[EnvironmentServer, str]]:
    """Yield the server that a URL, a Space or a folder names, and the command that serves a folder while the block
    runs. Raises Stop."""
    folder = Path(given).expanduser()
    if folder.is_dir():
        with package_server(folder, SESSIONS) as (url, command):
            yield EnvironmentServer(url=url), command
        return
    if re.fullmatch(r"[\w.-]+/[\w.-]+", given):
        host = re.sub(r"[^a-z0-9]+", "-", given.lower())
        given = f"https://{host}.hf.space"
    yield server_at(given), ""


def adopt(
    server: EnvironmentServer,
    source: str,
    teacher: str,
    base_url: str = "",
    given: dict[str, Any] | None = None,
    command: str = "",
) -> str:
    """Return a recipe for the server. Raises Stop with the reason where it cannot be trained on.

    Args:
        source: What the user named.
        teacher: The teacher's model, and the address of its endpoint.
        given: Settings of the environment that the user knows, such as its tasks.
        command: What serves a folder.
    """
    given = dict(given or {})
    answered = answers(server)
    if answered.status == "failed":
        raise Stop(f"{server.url} cannot be trained on: {answered.found}.", answered.remedy)
    server = server.model_copy(update={"patience": min(server.patience, PATIENCE), "sessions": SESSIONS})
    own = None if given else _by_own_environment(server, teacher, base_url)
    return "\n".join(own or _by_adapter(server, source, teacher, base_url, given, command)) + "\n"


def _by_own_environment(server: EnvironmentServer, teacher: str, base_url: str) -> list[str] | None:
    """Return the recipe of an environment of this project, if one of the server's name plays it."""
    name = known_as(metadata_of(server).name)
    if name is None or name == ANY:
        return None
    spec, _ = environment_of(name)
    if spec.mixed or audit(Subject(server, spec, Needs(0, 0, 1), range(4)), quick=True).wrong is not None:
        return None
    if part_of(name, "policy") and not _script_earns(server, spec):  # one of the same name, with other tasks
        return None
    training = training_lines(spec, spec.make().max_turns, teacher, base_url)
    if part_of(name, "policy") and not base_url:
        training[0] = "teacher: {scripted_error_rate: 0.1}  # a script plays this; a model does as well"
    return [
        f"# Written by `apprentice env adopt {server.url}`: the environment {name} of this project plays this server.",
        f"name: {name.replace('_', '-')}",
        f"environment: {{name: {name}, settings: {quoted(spec.settings)}}}",
        f"server: {{url: {quoted(server.url)}, sessions: 8}}",
        *training,
    ]


def _script_earns(server: EnvironmentServer, spec: EnvironmentSpec) -> bool:
    """Return whether the environment's script is right on any of a server's first questions."""
    with suppress(Refused, BadReply, SessionLost), closing(Recorded(server)) as session:
        subject = Subject(server, spec, Needs(0, 0, 1), range(SEEDS), sessions=[session])
        return any(is_right(each.reward) for each in subject.scripted)
    return False


def _by_adapter(
    server: EnvironmentServer, source: str, teacher: str, base_url: str, given: dict[str, Any], command: str
) -> list[str]:
    say = given.pop("say", None)
    said = given.keys() & {"tasks", "one_task", "rotation"}
    tasks, unknown = ([], "") if said else tasks_by_name(server, given)
    session, why = given | ({"tasks": tasks} if tasks else {}), "the server lists these"
    first = first_resets(server, session)
    found = {name: DerivedSetting(value, "as you said") for name, value in given.items()}
    is_one_start = not (tasks or said) and not any(difference(first[0].whole, each.whole) for each in first)
    if is_one_start:
        tasks, is_cut_short = tasks_by_level(server, given)
        unknown = unknown or "a name of levels that there was no time to try" * is_cut_short
    if is_one_start and tasks:
        session, why = given | {"tasks": tasks}, "these levels begin differently"
        first = first_resets(server, session)
    if tasks:
        found = {"tasks": DerivedSetting(tasks, why)} | found
    elif not said & {"tasks", "rotation"}:
        found = kind_of_start(server, first, given, unknown) | found
        if "seed_as" in found.keys() - given.keys():
            session = session | {"seed_as": found["seed_as"].value}
            first = first_resets(server, session)
    if session.get("tasks") and "seeded_tasks" not in given and are_seeded(server, session):
        found = {"seeded_tasks": DerivedSetting(True, "the seed decides as well how a task begins")} | found
    found = ({} if "question" in given else question_at(server, first, session)) | found
    settings = {name: each.value for name, each in found.items()}
    spec = completed(EnvironmentSpec(name=ANY, settings=settings, say=say), server)
    if not spec.settings.keys() & {"new_sessions", "rotation"} and (counted := after_a_step(server, spec)):
        found |= counted
        spec = spec.with_settings(spec.settings | {"new_sessions": True})
    if spec.questions == 1 and "one_task" not in given and (hidden_by := by_seed(server, spec)):
        found = hidden_by | {name: each for name, each in found.items() if name != "one_task"}
        spec = without(spec, "one_task", tasks=rows_of(hidden_by["tasks"].value))
    subject = Subject(server, spec, Needs(0, 0, SESSIONS), range(SEEDS))
    report = audit(subject, quick=True)
    if report.wrong is not None:
        shown = "".join(f" ({each})" for each in report.wrong.evidence[:1] if each.saw not in report.wrong.found)
        raise Stop(f"{server.url} cannot be trained on: {report.wrong.found}{shown}.", report.wrong.remedy)
    if report.granted > 1 and (shared := _shared(subject)):
        raise Stop(f"{server.url} cannot be trained on: {shared[0]}.", shared[1])
    if "tasks" in (few := {} if "seeded_tasks" in given else few_starts(server, spec)):
        found = few | {name: each for name, each in found.items() if name not in ("tasks", "seeded_tasks")}
        spec = without(spec, "seeded_tasks")
    spec = spec.with_settings(spec.settings | {name: each.value for name, each in found.items()})
    played = random_episodes(server, spec)
    if not any(each.taken for each in played) and BUGS.search(said := one_line(played[-1].last, 160)):
        raise Stop(f"{server.url} cannot be trained on as it is: every step fails in its own code ({said}).", MENDED)
    found = rewards_and_turns(played) | found
    spec = spec.with_settings(spec.settings | {name: each.value for name, each in found.items()})
    found |= {"say": DerivedSetting(say, "as you said")} if say else last_text_call(spec.make().schemas, played)
    about = f"Written by `apprentice env adopt {source}`. {earned(played)}{left_out(spec, first[0])}"
    place = _place(server, command, report.granted)
    return recipe_lines(about, metadata_of(server).name, spec, found, place, teacher, base_url)


def _shared(subject: Subject) -> tuple[str, str] | None:
    """What another session's episode changes of that of a session, and the remedy; None if nothing does."""
    try:
        if shown := _changed_by_another(subject) or _beside_another(subject, grading):
            return f"all its sessions play one episode ({shown})", ONE_EACH
        shown = _beside_another(subject, interleaved)
        return (f"its sessions draw from one random generator ({shown})", OWN_DRAW) if shown else None
    except (Refused, BadReply, SessionLost):  # the audit has played it: a second session is no reason to refuse it
        return None
    finally:
        wait_for(shut(subject.sessions))


def _changed_by_another(subject: Subject) -> str:
    session, other = subject.sessions[0], subject.fresh(1)
    try:
        subject.question(subject.seeds[0])
        before = session.state()
        take(episode := Episode(other, subject.seeds[1]), any_call(episode))
        now = session.state()
    except BadReply:  # a server need not tell its state
        return ""
    of_episode = [name for name in ("episode_id", "step_count") if before.get(name) != now.get(name)]
    return f"state.{of_episode[0]} of one changed with a reset and a step of another" if of_episode else ""


def _beside_another(subject: Subject, check: Check) -> str:
    """What a check finds that plays in two sessions; empty where a reset takes long, or no answer tells them apart."""
    if max(subject.sessions[0].resets) >= QUICK or (check is grading and len({*subject.questions.values()}) == 1):
        return ""
    found = check.run(subject)
    return one_line(found.found, 200) if found.status == "failed" else ""


def _place(server: EnvironmentServer, command: str, granted: int) -> DerivedSetting:
    """The recipe's section `server`."""
    why = f"it grants {granted} of {SESSIONS}"
    if command:
        copies = ", copies: 4" if granted == 1 else ""
        return DerivedSetting(f"{{command: {quoted(command)}{copies}, sessions: {max(granted, 2)}}}", why)
    why += "" if granted > 1 else "; max_concurrent_envs of create_app raises that, server.urls names copies"
    return DerivedSetting(f"{{url: {quoted(server.url)}, sessions: {max(granted, 2)}}}", why)
