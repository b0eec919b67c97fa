"""Checks that a server works for an environment and a recipe, and says how to fix it if not.

In: a server, an environment, the sessions needed. Out: findings, each with a fix. `apprentice env check` shows all; a
run makes the same checks before it buys anything, and stops at the first error.

Plays a few episodes on a server, to check that it speaks an environment's protocol.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from statistics import median
from time import perf_counter
from typing import Any, Literal, NamedTuple

from apprentice.envs.base import ToolEnvironment
from apprentice.envs.catalog import EnvironmentSpec, known, next_call, part_of
from apprentice.envs.wire.metadata import metadata_of
from apprentice.envs.wire.reply import BadReply, Reply
from apprentice.envs.wire.server import EnvironmentServer, Space
from apprentice.envs.wire.session import CRASHED, AtCapacity, Refused, Session, SessionLost
from apprentice.envs.wire.waiting import wait_for
from apprentice.flows.recipe.recipe import Recipe
from apprentice.tasks.episodes.episode import Episode

PLAYED = 2
"""Episodes that are played to the end; for the other seeds only the question is requested."""
ANY = {"string": "0", "integer": 0, "number": 0.0, "boolean": False, "array": [], "object": {}}


class Timed(Session):
    """A session that records the duration of its round trips."""

    def __init__(self, server: EnvironmentServer):
        super().__init__(server)
        self.resets: list[float] = []
        self.steps: list[float] = []

    def reset(self, **question: Any) -> Reply:
        begun = perf_counter()
        reply = super().reset(**question)
        self.resets.append(perf_counter() - begun)
        return reply

    def step(self, action: dict[str, Any]) -> Reply:
        begun = perf_counter()
        reply = super().step(action)
        self.steps.append(perf_counter() - begun)
        return reply


class Seen(NamedTuple):
    """What the episodes showed."""

    questions: list[str]
    again: list[str]
    """The questions of the same seeds in reverse order, on another session if there is one: they differ if the server
    counts its resets or draws at random."""
    rewards: list[float]
    broken: list[str]
    """Why episodes could not be played to the end, except crashes on a guessed move."""
    resets: list[float]
    steps: list[float]


def play_a_few(spec: EnvironmentSpec, sessions: Sequence[Timed], seeds: Sequence[int]) -> Seen:
    """Play a few episodes. Raises Refused, SessionLost, and anything that another environment's replies provoke."""
    one, other = spec.make(sessions[0]), spec.make(sessions[-1])
    played = [_play(spec, one, seed) for seed in seeds[:PLAYED]]
    questions = [episode.question for episode in played]
    questions += [Episode(one, seed).question for seed in seeds[PLAYED:]]
    again = [Episode(other, seed).question for seed in reversed(seeds)][::-1]
    return Seen(
        questions,
        again,
        [episode.reward for episode in played if episode.reward is not None],
        [episode.broken for episode in played if episode.broken],
        [took for session in dict.fromkeys((sessions[0], sessions[-1])) for took in session.resets],
        sessions[0].steps,
    )


class Played(NamedTuple):
    """The result of one episode."""

    question: str
    reward: float | None
    broken: str


def _play(spec: EnvironmentSpec, environment: ToolEnvironment, seed: int) -> Played:
    episode, guessed = Episode(environment, seed), False
    while not episode.done:
        try:
            name, arguments = next_call(spec.name, spec.settings, episode.messages, 0.0, seed)
        except ValueError:  # no script, or it does not know this question
            name, arguments = _any_move(episode)
            guessed = True
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"call_{episode.turns}", "type": "function", "function": function}
        episode.step({"role": "assistant", "content": None, "tool_calls": [call]})
    may_crash = guessed and episode.broken.startswith(CRASHED)
    return Played(episode.question, episode.reward, "" if may_crash else episode.broken)


def _any_move(episode: Episode) -> tuple[str, dict[str, Any]]:
    function = episode.tools[0]["function"]
    return function["name"], {
        name: schema["enum"][0] if "enum" in schema else ANY.get(str(schema.get("type", "string")), "0")
        for name, schema in function["parameters"].get("properties", {}).items()
    }


AT_ONCE = 16
"""Sessions that are opened concurrently."""
PATIENCE = 10.0
"""Seconds that a server may fail during a check."""
IGNORES_SEEDS = (
    "A question is its seed, so a server that ignores seeds cannot be used: take one whose reset draws the question "
    "from the seed, or serve its source with such a reset."
)
SEEDS = range(5)
"""Seeds of the questions that are requested without a recipe."""


class Needs(NamedTuple):
    """Concurrent sessions of a run."""

    grpo: int
    """With fewer sessions a run stops before it buys anything."""
    evaluate: int
    """With fewer sessions evaluation and collection use smaller batches."""
    collect: int

    @staticmethod
    def of(recipe: Recipe, grpo: bool = True, collect: bool = True) -> "Needs":
        """Return the needs of a run; without GRPO or collection if they are already done."""
        rollouts = recipe.grpo_sessions() if grpo else 0
        return Needs(rollouts, recipe.evaluate.batch_size, recipe.server.sessions if collect else 0)

    def __str__(self) -> str:
        grpo = f"GRPO needs {self.grpo}, " if self.grpo else ""
        evaluate = f"an evaluation uses {self.evaluate}, " if self.evaluate else ""
        collect = f"collection uses {self.collect}" if self.collect else ""
        return f"{grpo}{evaluate}{collect}".removesuffix(", ")


class Finding(NamedTuple):
    what: str
    verdict: Literal["right", "slower", "wrong"]
    found: str
    fix: str = ""
    may_pass: bool = False
    """Whether it may pass later by itself, such as a server that is starting or a Space that wakes up."""


class Checked(NamedTuple):
    findings: list[Finding]
    granted: int
    latency_ms: dict[str, float]
    questions: Sequence[str] = ()
    """The questions that were requested."""

    @property
    def wrong(self) -> Finding | None:
        return next((finding for finding in self.findings if finding.verdict == "wrong"), None)

    @property
    def ok(self) -> bool:
        return self.wrong is None


def check(server: EnvironmentServer, spec: EnvironmentSpec, needs: Needs, seeds: Sequence[int] = SEEDS) -> Checked:
    """Run all checks; stop at an error that makes the later checks meaningless."""
    impatient = server.model_copy(update={"patience": min(PATIENCE, server.patience)})
    if (answered := answers(server)).verdict == "wrong":
        return Checked([answered], 0, {})
    opened = [Timed(impatient) for _ in range(max(2, *needs))]
    try:
        trouble = wait_for(_open(opened))
        granted = [session for session in opened if session.is_open]
        sessions = _sessions(len(granted), needs, trouble)
        if not granted:
            return Checked([answered, sessions], 0, {})
        seen = _seen(server, spec, granted[:2], seeds)
    finally:
        wait_for(_shut(opened))
    if isinstance(seen, Finding):
        return Checked([answered, sessions, seen], len(granted), {})
    latency = {"reset": 1000 * median(seen.resets)} | ({"step": 1000 * median(seen.steps)} if seen.steps else {})
    return Checked([answered, sessions, *_judged(seen, spec, latency)], len(granted), latency, seen.questions)


def _seen(
    server: EnvironmentServer, spec: EnvironmentSpec, sessions: list[Timed], seeds: Sequence[int]
) -> Seen | Finding:
    try:
        return play_a_few(spec, sessions, seeds)
    except Refused as refused:
        return _foreign(server, spec, f"it refuses a reset or a step: {refused}")
    except SessionLost as lost:
        if isinstance(lost.__cause__, BadReply):
            return _foreign(server, spec, f"its replies are not those of {spec.name} ({lost})")
        return Finding("wire", "wrong", f"the connection was lost: {lost}", "See the server's log and check again.")
    except Exception as error:  # another environment's replies may make the class fail in any way
        return _foreign(server, spec, f"its replies are not those of {spec.name} ({type(error).__name__}: {error})")


def answers(server: EnvironmentServer) -> Finding:
    """Check that an OpenEnv server answers."""
    import httpx

    runs = f"Check that it runs and that this machine can reach it.{_of_the_space(server)}"
    no_server = f"{server.url} is not the URL of an OpenEnv server; a Space's is https://OWNER-NAME.hf.space"
    try:
        answer = httpx.get(f"{server.url}/health", timeout=server.message_timeout, follow_redirects=True)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Finding("health", "wrong", f"it does not answer ({type(error).__name__}: {error})", runs, may_pass=True)
    if answer.status_code in (401, 403):
        return Finding("health", "wrong", f"it answers {answer.status_code}", "Make the Space public: it is private.")
    if answer.status_code >= 500:
        return Finding("health", "wrong", f"it answers {answer.status_code}: asleep, starting or failing", runs, True)
    if answer.status_code != 200 or "json" not in answer.headers.get("content-type", ""):
        found = f"/health is not that of an OpenEnv server (status {answer.status_code})"
        return Finding("health", "wrong", found, no_server)
    return Finding("health", "right", "it answers")


def calls_itself(server: EnvironmentServer) -> str:
    """Return the name in a server's metadata, such as EchoEnvironment; empty if it has none."""
    return metadata_of(server).name


def known_as(name: str) -> str | None:
    plain = name.lower().removesuffix("environment").removesuffix("env").replace("_", "").replace("-", "")
    return next((each for each in known() if each.replace("_", "") == plain), None)


async def _open(sessions: Sequence[Timed]) -> str:
    """Open as many sessions as the server grants; return why the next one failed, if not because of the limit.

    A session retries a failed connection itself. One refused at the limit is retried once, after the others.
    """
    refused: list[Timed] = []
    for start in (0, *range(1, len(sessions), AT_ONCE)):  # the first one alone: shows a server that opens none at all
        batch = sessions[start : start + AT_ONCE] if start else sessions[:1]
        for session, error in zip(batch, await _each_opened(batch), strict=True):
            if isinstance(error, AtCapacity):
                refused.append(session)
            elif error is not None:
                return str(error)
        if refused:  # the server may still count a failed connection
            await asyncio.sleep(0.2)
            errors = [each for each in await _each_opened(refused) if each is not None]
            if errors:
                return next((str(each) for each in errors if not isinstance(each, AtCapacity)), "")
            refused.clear()
    return ""


async def _each_opened(sessions: Sequence[Timed]) -> list[AtCapacity | SessionLost | None]:
    results = await asyncio.gather(*(session.open() for session in sessions), return_exceptions=True)
    for each in results:
        if isinstance(each, BaseException) and not isinstance(each, AtCapacity | SessionLost):
            raise each
    return results  # type: ignore[return-value]


async def _shut(sessions: Sequence[Timed]) -> None:
    await asyncio.gather(*(session.shut() for session in sessions), return_exceptions=True)


def _sessions(granted: int, needs: Needs, trouble: str) -> Finding:
    """Judge the number of sessions. `trouble`: why no more could be opened, if not because of the limit."""
    most = max(needs)
    if granted >= max(most, 1):
        return Finding(
            "sessions", "right", f"it grants at least {granted}; {needs}" if most else f"it grants {granted}"
        )
    if trouble:
        found = f"it opens {granted or 'none'}, and the next one failed: {trouble}; {needs}"
        fix = "See the server's log, make sure that it is an OpenEnv server, and check again."
        return Finding("sessions", "slower" if granted >= max(needs.grpo, 1) else "wrong", found, fix)
    found = f"it grants {granted}; {needs}"
    fix = f"Raise max_concurrent_envs on the server (MAX_CONCURRENT_ENVS={most}; env serve --max-sessions {most})"
    if granted == 1:
        fix = f"Let its class set SUPPORTS_CONCURRENT_SESSIONS if episodes share no state; {fix[0].lower()}{fix[1:]}"
    if granted < needs.grpo:
        lower = "lower grpo.batch_size × grpo.gradient_accumulation, or wait until other runs finish"
        return Finding("sessions", "wrong", found, f"{fix}, {lower}.")
    if not granted:
        return Finding("sessions", "wrong", found, f"{fix}, or wait until other runs finish.")
    return Finding("sessions", "slower", found, f"{fix}; with fewer sessions a run is slower.")


def _judged(seen: Seen, spec: EnvironmentSpec, latency: dict[str, float]) -> Iterator[Finding]:
    is_served_here = bool(part_of(spec.name, "server"))
    newer = f"Serve this version: apprentice env serve {spec.name}" if is_served_here else "Correct the server."
    seeded = newer if is_served_here else IGNORES_SEEDS
    yield Finding("wire", "right", f"reset and step are those of {spec.name}")
    if seen.questions != seen.again:
        yield Finding("seeds", "wrong", "the same seed gave two different questions", seeded)
    elif len(set(seen.questions)) == 1 < len(seen.questions):
        yield Finding("seeds", "wrong", f"{len(seen.questions)} seeds gave the same question", seeded)
    else:
        yield Finding("seeds", "right", "the same seed gave the same question in two sessions")
    low, high = spec.make().reward_range
    if seen.broken:
        yield Finding("reward", "wrong", f"an episode could not be played: {seen.broken[0]}", newer)
    elif odd := [reward for reward in seen.rewards if not low <= reward <= high]:
        yield Finding("reward", "wrong", f"a reward was {odd[0]}, not {low:g} to {high:g}", newer)
    elif seen.rewards:
        yield Finding("reward", "right", f"rewards were {min(seen.rewards):g} to {max(seen.rewards):g}")
    if "step" not in latency:
        yield Finding("step", "wrong", "no step was played: the tool sent none", "Use other settings, or a recipe.")
    took = ", ".join(f"a {what} {each:.1f} ms" for what, each in latency.items())
    yield Finding("latency", "right", f"{took} (median of {len(seen.resets)} and {len(seen.steps)})")


def _foreign(server: EnvironmentServer, spec: EnvironmentSpec, found: str) -> Finding:
    name = calls_itself(server)
    named = f"; its name is {name}" if name else ""
    other = known_as(name)
    served = f", such as: apprentice env serve {spec.name}" if part_of(spec.name, "server") else ""
    fix = f"Use a server of {spec.name}{served}"
    if other and other != spec.name:
        fix = f"It serves another environment: --environment {other}"
    elif other:
        fix = f"Correct the environment's settings, or serve this version: apprentice env serve {spec.name}"
    return Finding("wire", "wrong", found + named, fix)


def _of_the_space(server: EnvironmentServer) -> str:
    if server.space:
        space = Space(server.space)
        space.wake()
        return f" {space}."
    if ".hf.space" in server.url:
        return " A request wakes a sleeping Space: check again in a minute. A paused one needs its owner."
    return ""
