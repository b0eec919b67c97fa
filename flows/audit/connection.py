"""Checks that a server answers, grants the sessions needed, and speaks an environment's protocol.

In: a `Subject`. Out: verdicts; the subject's sessions are open afterwards, and its `seen` has a few played episodes.
"""

import asyncio
from collections.abc import Sequence
from statistics import median

from apprentice.envs.catalog import game_of, known, part_of
from apprentice.envs.openenv.discovered import DiscoveredEnvironment
from apprentice.envs.wire.breaker import Space
from apprentice.envs.wire.metadata import metadata_of, why_foreign
from apprentice.envs.wire.reply import BadReply
from apprentice.envs.wire.server import EnvironmentServer
from apprentice.envs.wire.session import CRASHED, AtCapacity, Refused, SessionLost
from apprentice.envs.wire.waiting import wait_for
from apprentice.flows.audit.play.audited_episodes import AuditReply, play
from apprentice.flows.audit.play.check import check
from apprentice.flows.audit.play.faults import fault_of
from apprentice.flows.audit.play.findings import CORRECT, CheckResult, failed, passed
from apprentice.flows.audit.play.guesses import any_call
from apprentice.flows.audit.play.recorded import Recorded
from apprentice.flows.audit.play.subject import Needs, Subject
from apprentice.tasks.episodes.episode import Call, Episode

PLAYED = 2
"""Episodes that are played to the end; for the other seeds only the question is requested."""
AT_ONCE = 16
"""Sessions that are opened concurrently."""
PATIENCE = 10.0
"""Seconds that a server may fail during a check."""
STOPS = "The run cannot be played at all."
UNSTEADY = (
    "Its author can draw what an opponent does from the seed as well: random.Random(seed) in place of random. Some "
    "servers have a setting for it, such as an opponent that plays by a rule; its log says why a step crashed."
)


def answers(server: EnvironmentServer) -> CheckResult:
    """Check that an OpenEnv server answers."""
    import httpx

    runs = f"Check that it runs and that this machine can reach it.{_of_the_space(server)}"
    no_server = f"{server.url} is not the URL of an OpenEnv server; a Space's is https://OWNER-NAME.hf.space"
    try:
        answer = httpx.get(f"{server.url}/health", timeout=server.message_timeout, follow_redirects=True)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return failed(f"it does not answer ({type(error).__name__}: {error})", runs)._replace(may_pass=True)
    if answer.status_code in (401, 403):
        return failed(f"it answers {answer.status_code}", "Make the Space public: it is private.")
    if answer.status_code >= 500:
        return failed(f"it answers {answer.status_code}: asleep, starting or failing", runs)._replace(may_pass=True)
    if answer.status_code != 200 or "json" not in answer.headers.get("content-type", ""):
        return failed(f"/health is not that of an OpenEnv server (status {answer.status_code})", no_server)
    if foreign := wait_for(why_foreign(server)):
        return failed(*foreign)
    return passed("it answers")


@check("health", "error", STOPS, quick=True)
def health(subject: Subject) -> CheckResult:
    return answers(subject.server)


@check("sessions", "error", "Rollouts of a step take turns, and episodes of an evaluation wait.", quick=True)
def sessions(subject: Subject) -> CheckResult:
    """Open as many sessions as are needed; those granted stay open."""
    copies = [each.model_copy(update={"patience": min(PATIENCE, each.patience)}) for each in subject.server.each()]
    count = max(2, *subject.needs)
    subject.sessions = [Recorded(copies[place % len(copies)]) for place in range(count)]
    trouble = wait_for(_open(subject.sessions))
    opened = [session for session in subject.sessions if session.is_open]
    subject.is_full = len(opened) < len(subject.sessions) and not trouble
    subject.sessions, subject.granted = opened, len(opened)
    return _counted(subject.granted, subject.needs, trouble)


@check("wire", "error", STOPS, quick=True)
def wire(subject: Subject) -> CheckResult:
    """Play a few episodes and keep them as `subject.seen`."""
    name = subject.spec.name
    try:
        subject.seen = _play_a_few(subject)
    except (Refused, SessionLost) as error:
        if fault := subject.fault_in_tried():
            return failed(str(fault), CORRECT)
        if isinstance(error, Refused):
            return _foreign(subject, f"it refuses a reset or a step: {error}")
        if not isinstance(error.__cause__, BadReply):
            return failed(f"the connection was lost: {error}", "See the server's log and check again.")
        if _is_adapter(subject):
            said = "the same calls did not lead to the same episode: its replies are drawn at random, or it counts on"
            return failed(f"{said} ({error})", UNSTEADY)
        return _foreign(subject, f"its replies are not those of {name} ({error})")
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # a class that reads another one's replies
        is_own = subject.elsewhere is not None or game_of(name) is not None  # not made for other servers
        if is_own and (fault := fault_of(error, subject.files)):
            return failed(str(fault), CORRECT)
        return _foreign(subject, f"its replies are not those of {name} ({type(error).__name__}: {error})")
    if not any(session.steps for session in subject.sessions):
        return failed("no step was played: the tool sent none", "Use other settings, or a recipe.")
    return passed(f"reset and step are those of {name}")


def _play_a_few(subject: Subject) -> AuditReply:
    guessed: set[int] = set()

    def move(episode: Episode) -> Call:
        try:
            call = subject.script(episode)
        except ValueError:  # no script, or it does not know this question
            guessed.add(episode.seed)
            call = any_call(episode)
        before = next((calls for seed, calls in reversed(subject.tried) if seed == episode.seed), ())
        subject.tried.append((episode.seed, [*before, call]))
        return call

    one, seeds = subject.players[0], subject.seeds
    played, rewarded = [], False
    for seed in seeds[:PLAYED]:
        played.append(play(one, seed, move))
        steps = subject.sessions[0].replies[1:]
        rewarded |= not steps or any(reply.reward is not None or reply.done for reply in steps)
    questions = [episode.question for episode in played]
    questions += [subject.question(seed) for seed in seeds[PLAYED:]]
    other = 1 if len(subject.sessions) > 1 else 0
    again = [subject.question(seed, other) for seed in reversed(seeds)][::-1]
    may_crash = [each for each in played if each.seed in guessed and each.broken.startswith(CRASHED)]
    broken = [each for each in played if each.broken and each not in may_crash]
    return AuditReply(questions, again, played, broken, rewarded)


@check("latency", "note", "", quick=True)
def latency(subject: Subject) -> CheckResult:
    took = ", ".join(f"a {what} {each:.1f} ms" for what, each in latency_ms(subject).items())
    return passed(f"{took} (median of {' and '.join(str(len(times)) for times in _times(subject).values())})")


def latency_ms(subject: Subject) -> dict[str, float]:
    """Return the median milliseconds of a reset and a step; without those of which there were none."""
    return {what: 1000 * median(times) for what, times in _times(subject).items() if times}


def _times(subject: Subject) -> dict[str, list[float]]:
    return {
        "reset": [took for session in subject.sessions for took in session.resets],
        "step": [took for session in subject.sessions for took in session.steps],
    }


def known_as(name: str) -> str | None:
    """Return the environment that a server or a package of this name plays, such as echo for EchoEnvironment."""
    plain = name.lower().replace("_", "").replace("-", "")
    for suffix in ("server", "environment", "env"):
        plain = plain.removesuffix(suffix)
    return next((each for each in known() if each.replace("_", "") == plain), None)


async def _open(opened: Sequence[Recorded]) -> str:
    """Open as many sessions as the server grants; return why the next one failed, if not because of the limit.

    A session retries a failed connection itself. One refused at the limit is retried once, after the others.
    """
    refused: list[Recorded] = []
    for start in (0, *range(1, len(opened), AT_ONCE)):  # the first one alone: shows a server that opens none at all
        batch = opened[start : start + AT_ONCE] if start else opened[:1]
        for session, error in zip(batch, await each_opened(batch), strict=True):
            if isinstance(error, AtCapacity):
                refused.append(session)
            elif error is not None:
                return str(error)
        if refused:  # the server may still count a failed connection
            await asyncio.sleep(0.2)
            errors = [each for each in await each_opened(refused) if each is not None]
            if errors:
                return next((str(each) for each in errors if not isinstance(each, AtCapacity)), "")
            refused.clear()
    return ""


async def each_opened(opened: Sequence[Recorded]) -> list[AtCapacity | SessionLost | None]:
    """Open sessions at once and return why each failed; None for those that are open."""
    results = await asyncio.gather(*(session.open() for session in opened), return_exceptions=True)
    for each in results:
        if isinstance(each, BaseException) and not isinstance(each, AtCapacity | SessionLost):
            raise each
    return results  # type: ignore[return-value]


async def shut(opened: Sequence[Recorded]) -> None:
    """Close sessions, also on a server that no longer answers."""
    await asyncio.gather(*(session.shut() for session in opened), return_exceptions=True)


def _counted(granted: int, needs: Needs, trouble: str) -> CheckResult:
    """Judge the number of sessions. `trouble`: why no more could be opened, if not because of the limit."""
    most = max(needs)
    if granted >= max(most, 1):
        return passed(f"it grants at least {granted}; {needs}" if most else f"it grants {granted}")
    if trouble:
        found = f"it opens {granted or 'none'}, and the next one failed: {trouble}; {needs}"
        fix = "See the server's log, make sure that it is an OpenEnv server, and check again."
        return failed(found, fix, severity="note" if granted >= max(needs.train, 1) else None)
    found = f"it grants {granted}; {needs}"
    fix = (
        f"Raise the server's limit: create_app(…, max_concurrent_envs={most}), MAX_CONCURRENT_ENVS={most} where it "
        f"reads that, env serve --max-sessions {most}"
    )
    if granted == 1:
        fix = f"Let its class set SUPPORTS_CONCURRENT_SESSIONS if episodes share no state; {fix[0].lower()}{fix[1:]}"
    if not granted:
        return failed(found, f"{fix}, or wait until other runs finish.")
    if granted < needs.train:
        turns = f"the {needs.train} rollouts of a step take turns, each put back by a reset and its earlier actions"
        return failed(f"{found}; {turns}", f"{fix}, or name several copies (server.urls).", severity="note")
    return failed(found, f"{fix}; with fewer sessions a run is slower.", severity="note")


def _is_adapter(subject: Subject) -> bool:
    """Whether the environment takes its tools from the server, and so plays any server."""
    return isinstance(subject.players[0].environment, DiscoveredEnvironment)


def _foreign(subject: Subject, found: str) -> CheckResult:
    if _is_adapter(subject):
        return failed(found, "See the server's log: its author has to mend it.")
    spec = subject.spec
    name = metadata_of(subject.server).name
    named = f"; its name is {name}" if name else ""
    other = known_as(name)
    served = f", such as: apprentice env serve {spec.name}" if part_of(spec.name, "server") else ""
    fix = f"Use a server of {spec.name}{served}"
    if other and other != spec.name:
        fix = f"It serves another environment: --environment {other}"
    elif other:
        fix = f"Correct the environment's settings, or serve this version: apprentice env serve {spec.name}"
    return failed(found + named, fix)


def _of_the_space(server: EnvironmentServer) -> str:
    if server.space:
        space = Space(server.space)
        space.wake()
        return f" {space}."
    if ".hf.space" in server.url:
        return " A request wakes a sleeping Space: check again in a minute. A paused one needs its owner."
    return ""
