"""Looks at an OpenEnv server that somebody else published, and writes a recipe that trains on it: `env adopt`.

In: a URL, a Space, or a folder with a server's code. Out: a recipe of some twenty lines, each with what was found and
why the line follows from it; Stop with the reason where it cannot be trained on.
"""

import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import yaml

from apprentice.envs.catalog import ANY, EnvironmentSpec, part_of
from apprentice.envs.openenv.discovered import NoTools
from apprentice.envs.openenv.env import Environment
from apprentice.envs.openenv.observation import NAMES, STATE, whole
from apprentice.envs.wire.metadata import metadata_of
from apprentice.envs.wire.passing import difference, leaves
from apprentice.envs.wire.reply import BadReply, Reply, one_line
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.flows.audit.asking import IGNORES_SEEDS
from apprentice.flows.audit.audit import audit
from apprentice.flows.audit.connection import answers, calls_itself, known_as
from apprentice.flows.audit.guesses import any_call
from apprentice.flows.audit.subject import AuditedEpisode, Needs, Recorded, Subject, play
from apprentice.flows.cli.choice import environment_of, server_at
from apprentice.flows.runtime.servers import completed, environment_server
from apprentice.tasks.reporting.errors import Stop

SESSIONS = 16
"""Sessions that are asked for: more hide more of a teacher's latency, and a recipe can ask for more later."""
PLAYED = 8
"""Episodes that are played with random calls."""
SECONDS = 10.0
"""After which no further one begins."""
SEEDS = 3
"""Seeds whose question is asked twice: a reset may take seconds."""
LONGEST = 30
"""Turns after which such an episode is left."""
QUESTION = re.compile(r"prompt|question|task|instruction|problem|query|goal|message|text|observation", re.IGNORECASE)
"""Names of what is more likely a question than another text."""
TASK_LISTS = ("/tasks", "/task_list", "/scenarios")
"""Where servers that take a task by its name list them, if they do."""


class Adopted(NamedTuple):
    """A recipe, and what stands in its lines."""

    name: str
    lines: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


@contextmanager
def adoptable(given: str) -> Iterator[EnvironmentServer]:
    """Yield the server that a URL, a Space or a folder names; a folder is served while the block runs. Raises Stop."""
    folder = Path(given).expanduser()
    if folder.is_dir():
        server = EnvironmentServer(command=command_of(folder), patience=60.0)
        with environment_server(ANY, server, SESSIONS, lambda text: None) as urls:
            yield server.at(*urls)
        return
    if re.fullmatch(r"[\w.-]+/[\w.-]+", given):
        host = re.sub(r"[^a-z0-9]+", "-", given.lower())
        given = f"https://{host}.hf.space"
    yield server_at(given)


def command_of(folder: Path) -> str:
    """Return the command that serves an OpenEnv package, from its manifest. Raises Stop."""
    manifest = folder / "openenv.yaml"
    try:
        app = (yaml.safe_load(manifest.read_text()) or {}).get("app") or "server.app:app"
    except (OSError, yaml.YAMLError, AttributeError) as error:
        raise Stop(
            f"{folder} is no OpenEnv package: {manifest.name} cannot be read ({error}).",
            "Name the folder that has openenv.yaml, or the URL of a server that runs.",
        ) from None
    where, package = folder.resolve(), folder.resolve().name
    if (where / "__init__.py").exists():  # its server may import the package's own modules from above
        where, app = where.parent, f"{package}.{app}"
    return f"uvicorn --app-dir {where} {app} --host 127.0.0.1 --port {{port}}"


def adopt(
    server: EnvironmentServer, source: str, teacher: str, base_url: str = "", given: dict[str, Any] | None = None
) -> Adopted:
    """Return a recipe for the server. Raises Stop with the reason where it cannot be trained on.

    Args:
        source: What the user named: a folder's server is started by its command.
        teacher: The teacher's model, and the address of its endpoint.
        given: Settings of the environment that the user knows, such as its tasks.
    """
    given = given or {}
    answered = answers(server)
    if answered.status == "failed":
        raise Stop(f"{server.url} cannot be trained on: {answered.found}.", answered.remedy)
    server = server.model_copy(update={"patience": min(server.patience, 20.0), "sessions": SESSIONS})
    if not given and (known := _own_environment(server, teacher, base_url)) is not None:
        return known
    known_settings = FoundSettings(given, "as you said")
    first = _first_resets(server, given)
    starts = FoundSettings({}, "") if "tasks" in given else _starts(server, first, given)
    own = FoundSettings({}, "") if "question" in given else _question(server, first[0], given)
    spec = completed(EnvironmentSpec(name=ANY, settings={**own.settings, **starts.settings, **given}), server)
    subject = Subject(server, spec, Needs(0, 0, SESSIONS), range(SEEDS))
    report = audit(subject, quick=True)
    if report.wrong is not None:
        raise Stop(f"{server.url} cannot be trained on: {report.wrong.found}.", report.wrong.remedy)
    played = _played(server, spec)
    about = metadata_of(server)
    lines = _written(
        spec, server, source, report.granted, about.name, [known_settings, own, starts, *_rewards(played)], played
    )
    return Adopted(lines.name, [*lines.lines, *_training(spec, lines.turns, teacher, base_url)])


def _own_environment(server: EnvironmentServer, teacher: str, base_url: str) -> Adopted | None:
    """Return the recipe of this project that plays the server, if its own environment of that name does."""
    name = known_as(calls_itself(server))
    if name is None or name == ANY:
        return None
    spec, _ = environment_of(name)
    if spec.mixed or audit(Subject(server, spec, Needs(0, 0, 1), range(4)), quick=True).wrong is not None:
        return None
    scripted = bool(part_of(name, "policy"))
    lines = [
        f"# Written by `apprentice env adopt {server.url}`: the environment {name} of this project plays this server.",
        f"name: {name.replace('_', '-')}",
        f"environment: {{name: {name}, settings: {_quoted(spec.settings)}}}",
        f"server: {{url: {_quoted(server.url)}, sessions: 8}}",
    ]
    training = _training(spec, spec.make().max_turns, teacher, base_url)
    if scripted and not base_url:
        training[0] = "teacher: {scripted_error_rate: 0.1}  # a script plays this; a model does as well"
    return Adopted(name, [*lines, *training])


class FoundSettings(NamedTuple):
    """Settings of the environment, and what they follow from."""

    settings: dict[str, Any]
    why: str


class _Start(NamedTuple):
    """What a reset replies, and the texts of the session's state after it."""

    reply: Reply
    texts: dict[str, str]

    @property
    def whole(self) -> Reply:
        return self.reply._replace(observation=self.reply.observation | {"state": self.texts})


def _first_resets(server: EnvironmentServer, given: dict[str, Any], seeds: Sequence[int] = (1, 1, 2)) -> list[_Start]:
    """The first resets of a session, under these seeds. Raises Stop if a reset needs more than a seed."""
    session, found = Recorded(server), []
    rows = given.get("tasks") or [{}]
    try:
        for seed in seeds:
            reply = session.reset(**{"seed": seed} | given.get("reset", {}) | rows[(seed - 1) % len(rows)])
            try:
                state = session.state()
            except BadReply:  # a server need not tell its state
                state = {}
            found.append(_Start(reply, {path: each for path, each in leaves(state) if isinstance(each, str)}))
    except (Refused, BadReply, SessionLost) as error:
        raise Stop(
            f"{server.url} cannot be trained on as it is: its reset fails without more than a seed ({error}).",
            "Say what a reset needs: --set reset='{scenario: …}', or --set tasks='[{task_id: …}, …]'.",
        ) from error
    finally:
        session.close()
    return found


def _question(server: EnvironmentServer, first: _Start, given: dict[str, Any]) -> FoundSettings:
    """Which parts of a reset are the question, where the environment cannot tell by itself."""
    session = Recorded(server)
    try:
        Environment.completed(given, session)
    except NoTools as none:
        said = one_line(whole(first.reply.observation), 200) or "nothing"
        raise Stop(
            f"{server.url} cannot be trained on as it is: {none}; its reset says {said!r}.",
            "If a reset needs more than a seed, say it: --set reset='{scenario: …}'. Else its author has to mend it.",
        ) from none
    except (BadReply, ValueError):
        pass
    else:
        return FoundSettings({}, "the question is what a reset shows")
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
    return FoundSettings(
        {"question": likely[:2]}, f"the texts of a reset are at {', '.join(path for path, _ in found)}"
    )


def _says(path: str, value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and not NAMES.search(path) and "metadata" not in path


def _starts(server: EnvironmentServer, first: list[_Start], given: dict[str, Any]) -> FoundSettings:
    """Whether the seed is the question, there is one start, or tasks have names. Raises Stop for random starts."""
    if tasks := _listed_tasks(server):
        return FoundSettings({"tasks": tasks}, f"the server lists {len(tasks)} tasks")
    one, again, other = (each.whole for each in first)
    if differs := difference(one, again):
        fresh = [_first_resets(server, given, seeds=(seed,))[0].whole for seed in (1, 1, 2)]
        if not difference(fresh[0], fresh[1]):
            settings = {"new_sessions": True} | ({} if difference(fresh[0], fresh[2]) else {"one_task": True})
            return FoundSettings(settings, "the first reset of a session is the same each time, and the next is not")
        raise Stop(
            f"{server.url} cannot be trained on: the same seed gave two different starts ({differs}).", IGNORES_SEEDS
        )
    if not difference(one, other):
        return FoundSettings({"one_task": True}, "other seeds gave the same start: there is one task")
    return FoundSettings({}, "the same seed gave the same start, and another seed another")


def _listed_tasks(server: EnvironmentServer) -> list[dict[str, Any]]:
    """Tasks by name, where the server lists them; those whose resets differ."""
    import httpx

    for path in TASK_LISTS:
        try:
            listed = httpx.get(f"{server.url}{path}", timeout=server.message_timeout).json()
        except (httpx.HTTPError, ValueError):
            continue
        rows = listed.get("tasks", listed.get("scenarios")) if isinstance(listed, dict) else listed
        names = [name for row in rows if (name := _name_of(row))] if isinstance(rows, list) else []
        if len(set(names)) > 1:
            return [{"task_id": name} for name in dict.fromkeys(names)]
    return []


def _name_of(row: Any) -> str | int | None:
    named = [row.get(name) for name in ("task_id", "id", "name", "scenario")] if isinstance(row, dict) else [row]
    return next((each for each in named if isinstance(each, str | int) and not isinstance(each, bool)), None)


class RandomEpisode(NamedTuple):
    """An episode of random calls: the rewards of its steps, whether the environment ended it, its last reply."""

    rewards: list[float]
    turns: int
    ended: bool
    last: str
    is_taken: bool
    """Whether the server took any of its calls."""


def _played(server: EnvironmentServer, spec: EnvironmentSpec) -> list[RandomEpisode]:
    draw, session = random.Random(0), Recorded(server)
    player = spec.with_settings(spec.settings | {"max_turns": LONGEST}).make(session)
    found = []
    try:
        until = monotonic() + SECONDS
        for seed in range(PLAYED):
            if found and monotonic() > until:
                break
            ended: AuditedEpisode = play(player, seed, lambda episode: any_call(episode, draw))
            steps = [reply.reward for reply in session.replies[1:] if reply.reward is not None]
            said = "".join(ended.replies[-1:])
            found.append(RandomEpisode(steps, len(ended.calls), ended.ended, said, len(session.replies) > 1))
    except (Refused, BadReply, SessionLost) as error:
        if not found:
            raise Stop(
                f"{server.url} cannot be trained on: no episode could be played ({error}).", "See its log."
            ) from error
    finally:
        session.close()
    return found


def _rewards(played: Sequence[RandomEpisode]) -> list[FoundSettings]:
    """Whether the rewards of an episode are summed, and how many turns it has."""
    several = [each for each in played if sum(reward != 0 for reward in each.rewards) > 1]
    found = []
    if several and any(len(set(each.rewards)) > 1 or len(each.rewards) > 1 for each in several):
        found.append(FoundSettings({"reward": "sum"}, "steps before the last one have rewards as well"))
    ended = [each.turns for each in played if each.ended]
    turns = min(LONGEST, 2 * max(ended)) if ended else LONGEST // 2
    why = f"random calls ended episodes after {min(ended)} to {max(ended)}" if ended else "random calls ended none"
    return [*found, FoundSettings({"max_turns": turns}, why)]


class _Lines(NamedTuple):
    name: str
    lines: list[str]
    turns: int


def _written(
    spec: EnvironmentSpec,
    server: EnvironmentServer,
    source: str,
    granted: int,
    called: str,
    found: Sequence[FoundSettings],
    played: Sequence[RandomEpisode],
) -> _Lines:
    player = spec.make()
    tools = ", ".join(
        f"{each.name}({', '.join(each.schema['function']['parameters'].get('properties', {}))})"
        for each in player.tools
    )
    named = re.sub(
        r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9.]+", "-", called.removesuffix("Environment").removesuffix("_env")
    )
    name = named.strip("-.").lower() or "environment"
    rewards = [sum(each.rewards) for each in played]
    earned = f"Random calls earned {min(rewards):g} to {max(rewards):g}."
    if not any(each.is_taken for each in played):
        earned = f"No random call was taken; the last one: {one_line(played[-1].last, 160)}"
    kind = "typed actions" if spec.settings.get("actions") == "typed" else "MCP tools"
    lines = [
        f"# Written by `apprentice env adopt {source}`. {earned}",
        f"name: {name}",
        f"environment:  # {kind}: {tools[:90]}",
        f"  instructions: {_quoted(_prompt(called, player.tools))}",
    ]
    turns = 10
    for each in found:
        for field, value in each.settings.items():
            if any(line.startswith(f"  {field}: ") for line in lines):
                continue  # what the user said comes first
            turns = value if field == "max_turns" else turns
            lines.append(f"  {field}: {_quoted(value)}  # {each.why}")
    folder = Path(source).expanduser()
    place = f"command: {_quoted(command_of(folder))}" if folder.is_dir() else f"url: {_quoted(server.url)}"
    place += ", copies: 4" if folder.is_dir() and granted == 1 else ""
    more = (
        ""
        if granted > 1 or folder.is_dir()
        else "; max_concurrent_envs of create_app raises that, server.urls names copies"
    )
    lines.append(f"server: {{{place}, sessions: {max(granted, 2)}}}  # it grants {granted} of {SESSIONS}{more}")
    return _Lines(name, lines, turns)


def _prompt(called: str, tools: Sequence[Any]) -> str:
    """A first system prompt: what is played, and by which calls."""
    about = []
    for tool in tools:
        function = tool.schema["function"]
        does = function["description"].split("\n")[0].rstrip(".")
        about.append(f"`{tool.name}`" + (f" ({does})" if does and does != tool.name else ""))
    plays = f"You play {called}. " if called else ""
    return f"{plays}Act by calling {', '.join(about[:8])}, once in each turn, until the task is solved."


def _quoted(value: Any) -> str:
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True).strip().removesuffix("\n...")
    )


def _training(spec: EnvironmentSpec, turns: int, teacher: str, base_url: str) -> list[str]:
    endpoint = f", base_url: {_quoted(base_url)}" if base_url else ""
    rows = spec.questions
    tries = "tries of one task" if rows == 1 else f"rows of {rows} tasks, or tries of them" if rows else "seeds"
    tokens = 32 if turns <= 2 else 32 * min(turns, 16)
    return [
        f"teacher: {{model: {_quoted(teacher)}{endpoint}}}  # any model that calls tools; no script plays this",
        "student: {build: {max_positions: 4096}}  # for ids and numbers {model: HuggingFaceTB/SmolLM2-135M-Instruct}",
        f"windows: {{collect: {{size: 200}}, grpo: {{size: 200}}, evaluate: {{size: 200}}}}  # {tries}",
        "sft: {epochs: 10, batch_size: 8, gradient_accumulation: 1, learning_rate: 3.0e-3}",
        "grpo: {max_steps: 50, batch_size: 32, gradient_accumulation: 1, num_generations: 8, learning_rate: 3.0e-4,",
        f"  max_completion_length: {tokens}}}",
        "evaluate: {questions: 100, max_new_tokens: 48}",
    ]
