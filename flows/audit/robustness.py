"""Checks that no call and no client harms the server.

In: a `Subject` with open sessions. Out: verdicts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from time import monotonic, perf_counter
from typing import Any
from urllib.parse import urlsplit

from apprentice.envs.player import Player
from apprentice.envs.wire.reply import BadReply, ServerError
from apprentice.envs.wire.session import AtCapacity, SessionLost
from apprentice.envs.wire.waiting import wait_for
from apprentice.flows.audit.connection import each_opened, shut
from apprentice.flows.audit.play.audited_episodes import always, play, replayed, take
from apprentice.flows.audit.play.check import check
from apprentice.flows.audit.play.findings import CheckEvidence, CheckResult, does_not_apply, failed, passed
from apprentice.flows.audit.play.recorded import Recorded
from apprentice.flows.audit.play.subject import Subject
from apprentice.tasks.episodes.episode import Call, Episode

ODD: tuple[Any, ...] = (
    *(None, [], {}, 10**30, -1, 1e300, True, ""),
    *("x" * 15_000, "\x00\x1b[2J", "🙂 한국어 ١٢", "\ud83d", "(" * 500, '{"a": [1', "../../etc/passwd"),
)
"""Values that a model may pass for any argument."""
SLOWEST = 3.0
"""Seconds that a reply to an odd call may take, or ten times the longest one so far."""
FREED = 5.0
"""Seconds within which a session must be given back."""
SLOWER = 2.0
"""Times as long as at first that an episode may take after many others."""
MEGABYTES = 30.0
"""By which the server's memory may grow in 1,000 episodes."""


@contextmanager
def _impatient(subject: Subject) -> Iterator[Player]:
    """A player with a session of its own that takes a slow reply for none, and tries once more only."""
    longest = max((took for each in subject.sessions for took in (*each.resets, *each.steps)), default=0.0)
    timeout = min(subject.server.message_timeout, max(SLOWEST, 10 * longest))
    server = subject.server.model_copy(update={"message_timeout": timeout, "patience": 2 * timeout})
    session = Recorded(server, attempts=1)
    wait_for(subject.sessions[-1].shut())  # its place
    try:
        yield subject.spec.make(session)
    finally:
        wait_for(shut([session]))


@check("robustness.arguments", "error", "A model's odd call ends the episode without a reward, or stops the run.")
def arguments(subject: Subject) -> CheckResult:
    seed, count, until = subject.seeds[0], 0, monotonic() + 1.5 * subject.extent.seconds
    remedy = "Tell the player what is wrong (a ValueError in a game); let nothing else escape, and nothing take long."
    for calls in _odd_calls(subject):
        with _impatient(subject) as environment:
            try:
                episode = Episode(environment, seed)
                take(episode, *calls)
                said, saw = "a call crashes the environment" if episode.broken else "", episode.broken
            except SessionLost as lost:
                said, saw = "a call is never answered", str(lost)
        if said:
            fault = subject.fault_in(seed, calls)
            return failed(f"{said}{f': {fault}' if fault else ''}", remedy, CheckEvidence(seed, calls, saw))
        count += 1
        if monotonic() > until:
            break
    return passed(f"{count} odd messages were answered: wrong types, long and strange texts, unknown tools, two calls")


def _odd_calls(subject: Subject) -> Iterator[tuple[Call, ...]]:
    yield ()
    yield (("no_such_tool", {}),)
    for tool in subject.players[0].schemas:
        function = tool["function"]
        names = function["parameters"].get("properties", {})
        yield ((function["name"], {}),)
        for value in ODD:
            yield ((function["name"], dict.fromkeys(names, value)),)
        yield ((function["name"], dict.fromkeys(names, "0")),) * 2


@check("robustness.after_end", "error", "Clients that go on after the end earn the reward by trying again.")
def after_end(subject: Subject) -> CheckResult:
    tried = 0
    others = [*subject.known[1:], *subject.known[:1]]
    for right, other in subject.within(zip(subject.known, others, strict=True)):
        environment, session = subject.fresh(), subject.sessions[0]
        play(environment, right.seed, replayed(right.calls))
        actions = list(session.actions)
        lost = play(subject.fresh(), right.seed, always(other.calls[0]))
        if not lost.ended or not actions or lost.reward is None:
            continue
        tried += 1
        try:
            again = session.ask(actions[-1])
        except (ServerError, BadReply):  # as it should
            continue
        except (OSError, EOFError):
            return failed("a call after the end is never answered", "Answer it with an error.", lost.evidence())
        if again.reward is not None and again.reward > max(lost.reward, session.replies[-1].reward or 0.0):
            saw = f"reward {lost.reward:g}, and after the end {again.reward:g} for {actions[-1]}"
            return failed("a call after the end earns a reward", "Raise ValueError once done.", lost.evidence(saw))
    return passed(f"{tried} calls after the end earned nothing") if tried else does_not_apply("no episode was lost")


@check("robustness.given_back", "error", "A long run ends because the server has no session left.")
def given_back(subject: Subject) -> CheckResult:
    if not subject.is_full:
        return does_not_apply("how many sessions the server grants is not known")
    wait_for(_open_all(subject.sessions))
    for place, session in enumerate(subject.sessions):
        session.vanish() if place % 2 else session.close()
    until = monotonic() + FREED
    wait_for(_open_all(subject.sessions))
    while missing := [session for session in subject.sessions if not session.is_open]:
        if monotonic() > until:
            said = f"{len(missing)} of {subject.granted} sessions were not given back within {FREED:g} s"
            return failed(said, "Let the server's close() return at once; end a session whose connection is gone.")
        wait_for(_open_all(missing))
    return passed(f"{subject.granted} sessions were given back, half of them by clients that vanished")


async def _open_all(sessions: list[Recorded]) -> None:
    await each_opened([session for session in sessions if not session.is_open])


@check("robustness.capacity", "warning", "At its limit the server hangs instead of refusing, so a run waits for long.")
def capacity(subject: Subject) -> CheckResult:
    if not subject.is_full:
        wait_for(_open_all(subject.sessions))
        session = Recorded(subject.server, attempts=1)
        try:
            wait_for(session.open())
            return does_not_apply(f"it grants more than the {subject.granted} sessions that were opened")
        except AtCapacity:
            subject.is_full = True
        except SessionLost as lost:
            remedy = "Refuse it with CAPACITY_REACHED, as OpenEnv's server does."
            return failed(f"one session more than {subject.granted} is neither granted nor refused: {lost}", remedy)
        finally:
            wait_for(shut([session]))
    return passed(f"it grants {subject.granted} sessions and refuses the next one")


@check("robustness.growth", "warning", "A run of many thousand episodes slows down, or ends for want of memory.")
def growth(subject: Subject) -> CheckResult:
    environment, played = subject.players[0], subject.known
    took: list[float] = []
    start_megabytes, until = _megabytes(subject.server.url), monotonic() + subject.extent.seconds
    for each in islice(cycle(played), subject.extent.samples):
        before = perf_counter()
        play(environment, each.seed, replayed(each.calls))
        took.append(perf_counter() - before)
        if monotonic() > until:
            break
    quarter = len(took) // 4
    if quarter < 5:
        return does_not_apply(f"{len(took)} episodes within {subject.extent.seconds:g} s are too few to see it")
    quarters = [sorted(took[place * quarter : (place + 1) * quarter]) for place in range(4)]
    parts = [1000 * part[quarter // 10] for part in quarters]  # the quickest tenth: a busy machine slows the others
    found = f"an episode took {parts[0]:.1f} ms at first and {parts[3]:.1f} ms after {len(took)}"
    if sorted(parts) == parts and parts[3] > SLOWER * parts[0] + 2.0:
        return failed(found, "Keep no list of all episodes.")
    if start_megabytes is None or (ended := _megabytes(subject.server.url)) is None:
        return passed(f"{found}; the memory of a server that runs elsewhere is not known")
    grown = (ended - start_megabytes) * 1000 / len(took)
    if grown > MEGABYTES and ended - start_megabytes > MEGABYTES / 3:
        return failed(f"the server's memory grows by {grown:.0f} MB in 1,000 episodes", "Let go of ended episodes.")
    return passed(f"{found}; memory grew by {max(grown, 0):.0f} MB in 1,000 episodes")


def _megabytes(url: str) -> float | None:
    """Return the memory of the child process that serves `url`; None if another process serves it."""
    import psutil

    port = urlsplit(url).port
    for child in psutil.Process().children():
        if any(each.laddr and each.laddr.port == port and each.status == "LISTEN" for each in child.net_connections()):
            return child.memory_info().rss / 1e6
    return None


CHECKS = (arguments, after_end, capacity, given_back, growth)
