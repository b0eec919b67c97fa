"""Looks at an OpenEnv server that somebody else published, for a recipe that trains on it: `env adopt`.

In: a URL, a Space, or a folder with a server's code. Out: the recipe's text; Stop with the reason where the server
cannot be trained on.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from apprentice.envs.catalog import ANY, EnvironmentSpec, part_of
from apprentice.envs.openenv.discovered import NoTools
from apprentice.envs.openenv.env import Environment
from apprentice.envs.openenv.observation import NAMES, STATE, hidden, whole
from apprentice.envs.openenv.tasks import rows_of
from apprentice.envs.player import Player
from apprentice.envs.reward import is_right
from apprentice.envs.wire.metadata import metadata_of, schema_fails
from apprentice.envs.wire.passing import difference, leaves
from apprentice.envs.wire.reply import BadReply, Reply, one_line
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.envs.wire.waiting import wait_for
from apprentice.flows.audit.audit import audit
from apprentice.flows.audit.connection import answers, calls_itself, known_as, shut
from apprentice.flows.audit.isolation import grading
from apprentice.flows.audit.play.first_resets import BUGS, MENDED, QUESTION, Start, first_resets
from apprentice.flows.audit.play.guesses import any_call
from apprentice.flows.audit.play.listed_tasks import are_seeded, tasks_by_level, tasks_by_name
from apprentice.flows.audit.play.random_calls import earned, last_text_call, random_episodes, rewards_and_turns
from apprentice.flows.audit.play.subject import Needs, Recorded, Subject, play, take
from apprentice.flows.audit.seeds import IGNORES_SEEDS, lead_elsewhere
from apprentice.flows.cli.choice import environment_of, server_at
from apprentice.flows.recipe.adopted_recipe import Finding, quoted, recipe_lines, training_lines
from apprentice.flows.runtime.package_server import package_server
from apprentice.flows.runtime.servers import completed
from apprentice.tasks.episodes.episode import Episode
from apprentice.tasks.episodes.texts import same_text
from apprentice.tasks.reporting.errors import Stop

SESSIONS = 16
"""Sessions that are asked for: more hide more of a teacher's latency, and a recipe can ask for more later."""
SECONDS = 10.0
"""After which no further one begins."""
SEEDS = 3
"""Seeds whose question is asked twice: a reset may take seconds."""
RESETS = 24
"""Resets of a session that are compared, where they differ: half of them may be tasks that it goes through in turn."""
REPEATS, REPEAT_SECONDS = 8, 3.0
"""Further resets under one seed, and for how long."""
ASKED, FEW = 200, 100
"""Seeds that are asked for their start, and from how many different ones on windows have enough of their own."""
PATIENCE = 20.0
"""Seconds to wait for a server that does not answer."""
QUICK = 0.3
"""Seconds of a reset up to which answers of two sessions are graded beside each other."""


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
    lines = None if given else _by_own_environment(server, teacher, base_url)
    if lines is None:
        lines = _by_adapter(server, source, teacher, base_url, given, command)
    return "\n".join(lines) + "\n"


def _by_own_environment(server: EnvironmentServer, teacher: str, base_url: str) -> list[str] | None:
    """Return the recipe of an environment of this project, if one of the server's name plays it."""
    name = known_as(calls_itself(server))
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
    subject = Subject(server, spec, Needs(0, 0, 1), range(SEEDS), sessions=[Recorded(server)])
    try:
        return any(is_right(each.reward) for each in subject.scripted)
    except (Refused, BadReply, SessionLost):
        return False
    finally:
        wait_for(shut(subject.sessions))


def _by_adapter(
    server: EnvironmentServer, source: str, teacher: str, base_url: str, given: dict[str, Any], command: str
) -> list[str]:
    say = given.pop("say", None)
    said = given.keys() & {"tasks", "one_task", "rotation"}
    tasks, unknown = ([], "") if said else tasks_by_name(server, given)
    asked, why = given | ({"tasks": tasks} if tasks else {}), "the server lists these"
    first = first_resets(server, asked)
    found = {name: Finding(value, "as you said") for name, value in given.items()}
    is_one_start = not (tasks or said) and not any(difference(first[0].whole, each.whole) for each in first)
    if is_one_start and (tasks := tasks_by_level(server, given)):
        asked, why = given | {"tasks": tasks}, "these levels begin differently"
        first = first_resets(server, asked)
    if tasks:
        found = {"tasks": Finding(tasks, why)} | found
    elif not said & {"tasks", "rotation"}:
        found = _starts(server, first, given, unknown) | found
    if asked.get("tasks") and "seeded_tasks" not in given and are_seeded(server, asked):
        found = {"seeded_tasks": Finding(True, "the seed decides as well how a task begins")} | found
    found = ({} if "question" in given else _question(server, first, asked)) | found
    settings = {name: each.value for name, each in found.items()}
    spec = completed(EnvironmentSpec(name=ANY, settings=settings, say=say), server)
    if not spec.settings.keys() & {"new_sessions", "rotation"} and (counted := _after_a_step(server, spec)):
        found |= counted
        spec = spec.with_settings(spec.settings | {"new_sessions": True})
    if spec.questions == 1 and "one_task" not in given and (hidden_by := _by_seed(server, spec)):
        found = hidden_by | {name: each for name, each in found.items() if name != "one_task"}
        spec = _without(spec, "one_task", tasks=rows_of(hidden_by["tasks"].value))
    subject = Subject(server, spec, Needs(0, 0, SESSIONS), range(SEEDS))
    report = audit(subject, quick=True)
    if report.wrong is not None:
        raise Stop(f"{server.url} cannot be trained on: {report.wrong.found}.", report.wrong.remedy)
    if report.granted > 1 and (shared := _shared(subject)):
        raise Stop(
            f"{server.url} cannot be trained on: all its sessions play one episode ({shared}).",
            "Its author has to give create_app the class, or a function that makes an environment, in place of one "
            "that returns the same each time.",
        )
    if "tasks" in (few := {} if "seeded_tasks" in given else _few_starts(server, spec)):
        found = few | {name: each for name, each in found.items() if name not in ("tasks", "seeded_tasks")}
        spec = _without(spec, "seeded_tasks")
    spec = spec.with_settings(spec.settings | {name: each.value for name, each in found.items()})
    played = random_episodes(server, spec)
    if not any(each.taken for each in played) and BUGS.search(said := one_line(played[-1].last, 160)):
        raise Stop(f"{server.url} cannot be trained on as it is: every step fails in its own code ({said}).", MENDED)
    found = rewards_and_turns(played) | found
    spec = spec.with_settings(spec.settings | {name: each.value for name, each in found.items()})
    found |= {"say": Finding(say, "as you said")} if say else last_text_call(spec.make().schemas, played)
    about = f"Written by `apprentice env adopt {source}`. {earned(played)}{_left_out(spec, first[0])}"
    place = _place(server, command, report.granted)
    return recipe_lines(about, metadata_of(server).name, spec, found, place, teacher, base_url)


def _shared(subject: Subject) -> str:
    """What shows that another session's episode changed that of a session; empty if nothing does."""
    try:
        return _changed_by_another(subject) or _graded_by_another(subject)
    except (Refused, BadReply, SessionLost):  # the audit has played it: a second session is no reason to refuse it
        return ""
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


def _graded_by_another(subject: Subject) -> str:
    if max(subject.sessions[0].resets) >= QUICK or len({*subject.questions.values()}) == 1:
        return ""
    graded = grading.run(subject)
    return graded.found if graded.status == "failed" else ""


def _after_a_step(server: EnvironmentServer, spec: EnvironmentSpec) -> dict[str, Finding]:
    """A session for each episode, where a reset after a step shows what the first one of a session does not: a count
    of all its steps, or what is left of the episode before."""
    session = Recorded(server)
    player = spec.make(session)
    try:
        first = play(player, 0, lambda episode: None if episode.turns else any_call(episode)).question
        if same_text(player.ask(0)) == same_text(first):
            return {}
        player.renew()
        if same_text(player.ask(0)) != same_text(first):
            return {}
    except (Refused, BadReply, SessionLost):
        return {}
    finally:
        session.close()
    return {"new_sessions": Finding(True, "a reset after a step shows another start than the first one of a session")}


def _by_seed(server: EnvironmentServer, spec: EnvironmentSpec) -> dict[str, Finding]:
    """Seeds as tasks, where every seed has the same start and the same calls lead elsewhere under another seed."""
    session = Recorded(server)
    try:
        if not lead_elsewhere(_without(spec, "one_task").make(session), range(1, 5)):
            return {}
    except (Refused, BadReply, SessionLost):
        return {}
    finally:
        session.close()
    why = "every seed has the same start, and the same calls lead elsewhere: each of so many seeds is a task"
    return {"tasks": Finding(FEW, why)}


def _without(spec: EnvironmentSpec, setting: str, **others: Any) -> EnvironmentSpec:
    return spec.with_settings({name: value for name, value in spec.settings.items() if name != setting} | others)


def _few_starts(server: EnvironmentServer, spec: EnvironmentSpec) -> dict[str, Finding]:
    """The seeds that stand for all starts as tasks, where seeds give too few for windows of their own."""
    if spec.questions is not None:
        return {}
    session, until = Recorded(server), monotonic() + SECONDS
    player, found, asked = spec.make(session), {}, 0
    try:
        while asked < ASKED and monotonic() < until:
            found.setdefault(same_text(player.ask(asked)), asked)
            asked += 1
    except Refused as refused:
        return _ended(player, asked, spec, refused)
    except (BadReply, SessionLost):
        return {}
    finally:
        session.close()
    if asked < 2 * len(found) or len(found) > FEW:
        return {}
    rows = [_row(spec, seed) for seed in found.values()]
    return {"tasks": Finding(rows, f"{asked} seeds gave {len(found)} different starts: each is a task")}


def _row(spec: EnvironmentSpec, seed: int) -> dict[str, Any]:
    """What a reset is sent under a seed, as a task."""
    tasks = spec.settings.get("tasks") or [{}]
    return tasks[seed % len(tasks)] | {spec.settings.get("seed_as") or "seed": seed}


def _ended(player: Player, failed: int, spec: EnvironmentSpec, refused: Refused) -> dict[str, Finding]:
    """The seeds before the first one that fails, as tasks. Raises Stop where later ones do not fail."""
    for seed in range(failed + 1, failed + 1 + SEEDS):
        try:
            player.ask(seed)
        except Refused:
            continue
        raise Stop(
            f"It cannot be trained on: its reset fails under seed {failed}, and not under seed {seed} ({refused}).",
            "Its author has to mend it. Else name rows that it takes: --set tasks='[{seed: 0}, …]'.",
        )
    rows = [_row(spec, seed) for seed in range(failed)]
    tasks = failed if rows == rows_of(failed) else rows
    return {"tasks": Finding(tasks, f"seed {failed} and those after it fail ({one_line(str(refused), 80)})")}


def _place(server: EnvironmentServer, command: str, granted: int) -> Finding:
    """The recipe's section `server`."""
    why = f"it grants {granted} of {SESSIONS}"
    if command:
        copies = ", copies: 4" if granted == 1 else ""
        return Finding(f"{{command: {quoted(command)}{copies}, sessions: {max(granted, 2)}}}", why)
    why += "" if granted > 1 else "; max_concurrent_envs of create_app raises that, server.urls names copies"
    return Finding(f"{{url: {quoted(server.url)}, sessions: {max(granted, 2)}}}", why)


def _question(server: EnvironmentServer, starts: Sequence[Start], given: dict[str, Any]) -> dict[str, Finding]:
    """Which parts of a reset are the question, where the environment cannot tell by itself."""
    first, again, other = starts
    session = Recorded(server)
    try:
        Environment.completed(given, session)
    except NoTools as none:
        if schema_fails(server):
            raise Stop(
                f"{server.url} cannot be trained on as it is: its /schema fails in its own code.", MENDED
            ) from none
        said = one_line(whole(first.reply.observation), 200) or "nothing"
        raise Stop(
            f"{server.url} cannot be trained on as it is: {none}; its reset says {said!r}.",
            "If a reset needs more than a seed, say it: --set reset='{scenario: …}'. Else its author has to mend it.",
        ) from none
    except (BadReply, ValueError):
        pass
    else:
        asked = [path for path, each in first.texts.items() if each == again.texts.get(path) != other.texts.get(path)]
        asked = [path for path in asked if QUESTION.search(path.rpartition(".")[2]) and not NAMES.search(path)]
        if not asked or difference(first.reply, other.reply):
            return {}
        why = "what a reset shows is the same under every seed, and this is not"
        return {"question": Finding([f"{STATE}{path}" for path in asked[:2]], why)}
    finally:
        session.close()
    observed = [(path, each) for path, each in leaves(first.reply.observation) if _says(path, each)]
    known = [(f"{STATE}{path}", each) for path, each in first.texts.items() if _says(path, each)]
    found = observed or known
    likely = [path for path, _ in found if QUESTION.search(path.rpartition(".")[2])] or [path for path, _ in found[:1]]
    if not likely:
        raise Stop(
            f"{server.url} cannot be trained on: neither a reset's observation nor its state holds a text, so a player "
            "would not know the task (openenv-core before 0.10 leaves the observation's metadata out).",
            "Ask its author to put the question into the observation's own fields.",
        )
    places = ", ".join(path for path, _ in found)
    return {"question": Finding(likely[:2], f"the texts of a reset are at {places}")}


def _says(path: str, value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and not NAMES.search(path) and "metadata" not in path


def _starts(server: EnvironmentServer, first: list[Start], given: dict[str, Any], unknown: str) -> dict[str, Finding]:
    """Whether the seed is the question, or there is one start. Raises Stop for random starts.

    Args:
        unknown: Where the server lists tasks whose name in a reset is not known.
    """
    one, again, other = (each.whole for each in first)
    if differs := difference(one, again) or next(filter(None, _again(server, given, one, of_a_session=True)), None):
        one, again, other = (first_resets(server, given, seeds=(seed,))[0].whole for seed in (1, 1, 2))
        if difference(one, again) or any(_again(server, given, one, of_a_session=False)):
            raise Stop(
                f"{server.url} cannot be trained on: the same seed gave two different starts ({differs}).",
                IGNORES_SEEDS,
            )
        if not ("one_task" in given or difference(one, other)) and (rotation := _rotation(server, given)):
            return {"rotation": Finding(rotation, f"the resets of a session go through {rotation} starts in turn")}
        new = {"new_sessions": Finding(True, "only the first reset of a session repeats")}
        return _same_start(one, other, unknown) | new
    return _same_start(one, other, unknown)


def _again(server: EnvironmentServer, given: dict[str, Any], one: Reply, *, of_a_session: bool) -> Iterator[str | None]:
    """Yield how further resets under one seed differ from a start, in one session or each in a new one: a start that
    is drawn from two is the same three times in a row for every fourth server."""
    until = monotonic() + REPEAT_SECONDS
    seeds = (1 for _ in range(REPEATS) if monotonic() < until)
    try:
        if of_a_session:
            yield from (difference(one, each.whole) for each in first_resets(server, given, seeds))
        else:
            yield from (difference(one, first_resets(server, given, (seed,))[0].whole) for seed in seeds)
    except Stop:  # they end
        return


def _rotation(server: EnvironmentServer, given: dict[str, Any]) -> int:
    """After how many resets a session begins as at first, and goes on so; 0 if it does not."""
    began = monotonic()
    try:
        first_resets(server, given, seeds=(1,))
        if 2 * RESETS * (monotonic() - began) > SECONDS:
            return 0
        once, again = ([each.whole for each in first_resets(server, given, seeds=(1,) * RESETS)] for _ in range(2))
    except Stop:  # they end
        return 0
    if any(map(difference, once, again)):
        return 0
    turns = range(2, RESETS // 2 + 1)
    return next((turn for turn in turns if not any(map(difference, once, once[turn:]))), 0)


def _same_start(one: Reply, other: Reply, unknown: str) -> dict[str, Finding]:
    if difference(one, other):
        return {}
    why = "other seeds gave the same start: there is one task"
    if unknown:
        why += f", or one of those at {unknown}: what a reset calls it, you know (--set tasks=[{{name: …}}, …])"
    return {"one_task": Finding(True, why)}


def _left_out(spec: EnvironmentSpec, first: Start) -> str:
    """What of a reset no model reads, such as a picture; nothing where the recipe says what is shown."""
    found = [] if spec.settings.get("question") else hidden(first.reply.observation)
    return f" Not shown, as it is no text: {', '.join(found[:4])}." if found else ""
