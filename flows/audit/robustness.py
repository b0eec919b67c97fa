"""Checks that sessions share nothing, and that no call and no client harms the server.

In: a `Subject` with open sessions. Out: verdicts.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from time import monotonic, perf_counter
from typing import Any
from urllib.parse import urlsplit

from apprentice.envs.player import Player
from apprentice.envs.wire.passing import leaves
from apprentice.envs.wire.reply import BadReply, ServerError
from apprentice.envs.wire.session import AtCapacity, SessionLost
from apprentice.envs.wire.waiting import wait_for
from apprentice.flows.audit.connection import each_opened, shut
from apprentice.flows.audit.exploits import constant_calls
from apprentice.flows.audit.guesses import any_call
from apprentice.flows.audit.subject import (
    AuditedEpisode,
    CheckResult,
    Evidence,
    Recorded,
    Subject,
    always,
    check,
    does_not_apply,
    failed,
    passed,
    play,
    replayed,
    take,
)
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
QUESTIONS, CALLS, PAIRS = 6, 16, 4
"""How many questions are answered by how many calls, and how many pairs of questions each call is tried on."""
SHARED = "Keep everything that an episode changes in attributes that a reset sets anew, none in the class or module."


def _differs(subject: Subject, alone: AuditedEpisode, now: AuditedEpisode) -> bool:
    return (alone.question, alone.reward, alone.replies) != (now.question, now.reward, now.replies)


@check("isolation.interleaved", "error", "Rollouts of one group change each other's rewards.")
def interleaved(subject: Subject) -> CheckResult:
    if len(subject.sessions) < 2:
        return does_not_apply("the server grants one session")
    for one, other in subject.within(zip(subject.known[::2], subject.known[1::2], strict=False)):
        episodes = [Episode(subject.fresh(place), each.seed) for place, each in enumerate((one, other))]
        for place in range(max(len(one.calls), len(other.calls))):
            for episode, each in zip(episodes, (one, other), strict=True):
                if place < len(each.calls) and not episode.done:
                    take(episode, each.calls[place])
        for episode, alone in zip(episodes, (one, other), strict=True):
            replies = tuple(each["content"] for each in episode.messages if each["role"] == "tool")
            if (episode.reward, replies) != (alone.reward, alone.replies):
                said = f"beside another session the reward is {episode.reward}, alone {alone.reward}"
                beside = Evidence(other.seed if alone is one else one.seed, (), "played meanwhile in another session")
                return failed(said, SHARED, alone.evidence(), beside)
    return passed(f"{len(subject.known)} episodes, two at a time action by action, went as they do alone")


@check("isolation.grading", "error", "Answers are graded by another rollout's question: right ones count as wrong.")
def grading(subject: Subject) -> CheckResult:
    """Ask two questions in two sessions, then answer: the answers that earn most on one of them alone, and others."""
    if len(subject.sessions) < 2:
        return does_not_apply("the server grants one session")
    seeds = subject.many[:QUESTIONS]
    if shown := _state_of_another(subject, *seeds[:2]):
        return failed("a session's state is that of another session's episode", SHARED, shown)
    alone: dict[tuple[str, str], dict[int, AuditedEpisode]] = {}
    for call in subject.within(constant_calls(subject, CALLS)):
        alone[call[0], json.dumps(call[1])] = {seed: play(subject.fresh(), seed, replayed([call])) for seed in seeds}
    compared = 0
    for (name, given), by_seed in alone.items():
        rewards = {seed: each.reward for seed, each in by_seed.items()}
        pairs = [(one, other) for one in seeds for other in seeds if rewards[one] != rewards[other]][:PAIRS]
        for one, other in pairs:
            episodes = [Episode(subject.fresh(place), seed) for place, seed in enumerate((one, other))]
            for episode, seed in zip(episodes, (one, other), strict=True):
                take(episode, (name, json.loads(given)))
                compared += 1
                if episode.reward != rewards[seed]:
                    again = play(subject.fresh(), seed, replayed([(name, json.loads(given))]))
                    if again.reward != rewards[seed]:
                        return does_not_apply("one answer has several rewards, also in a session alone")
                    said = f"beside another session an answer earns {episode.reward}, alone {rewards[seed]}"
                    beside = Evidence(other if seed == one else one, (), "asked meanwhile in another session")
                    return failed(said, SHARED, by_seed[seed].evidence(), beside)
    if not compared:
        return passed("two sessions have a state of their own; no answer is known that is right for one question alone")
    return passed(f"{compared} right and wrong answers beside another session earned what they do alone")


def _state_of_another(subject: Subject, one: int, other: int) -> Evidence | None:
    """Return what shows that a reset or a step of one session changed another one's state; None if nothing does."""
    first, second = subject.fresh(0), subject.fresh(1)
    session = subject.sessions[0]
    try:
        first.ask(one)
        states = [dict(leaves(session.state())) for _ in range(2)]
        moving = {path for path, value in states[1].items() if states[0].get(path) != value}
        episode = Episode(second, other)
        take(episode, any_call(episode))
        now = dict(leaves(session.state()))
    except BadReply:  # a server need not tell its state
        return None
    changed = [path for path, value in now.items() if path not in moving and states[1].get(path) != value]
    if not changed:
        return None
    path = changed[0]
    saw = f"{path} was {states[1].get(path)!r}, and after a step with seed {other} in another session {now[path]!r}"
    return Evidence(one, (), saw)


@check("isolation.reset", "error", "An episode depends on the one before it, which no record shows.")
def reset(subject: Subject) -> CheckResult:
    for before, alone in subject.within(zip(subject.known, subject.known[1:], strict=False)):
        environment = subject.fresh()
        episode = Episode(environment, before.seed)
        take(episode, any_call(episode))
        now = play(environment, alone.seed, replayed(alone.calls))
        if _differs(subject, alone, now):
            said = f"after an episode that was broken off (seed {before.seed}) it goes otherwise"
            return failed(said, SHARED, alone.evidence(), now.evidence())
    return passed("a reset in the middle of an episode leaves nothing of it")


@check("isolation.crash", "error", "One bad action makes every later episode of its session wrong.")
def after_error(subject: Subject) -> CheckResult:
    for alone in subject.within(subject.known[:4]):
        environment, session = subject.fresh(), subject.sessions[0]
        play(environment, alone.seed, replayed(alone.calls))
        for action in [*session.actions[-1:], {"no_such_field": 1}]:
            try:
                session.ask(action)
            except (ServerError, BadReply):  # as it should
                continue
            except (OSError, EOFError):  # the connection is gone; the next episode opens another
                break
        now = play(environment, alone.seed, replayed(alone.calls))
        if _differs(subject, alone, now):
            said = "after an action that it answered with an error the session goes otherwise"
            return failed(said, SHARED, alone.evidence(), now.evidence())
    return passed("after errors a session plays as before")


@contextmanager
def _impatient(subject: Subject) -> Iterator[tuple[Recorded, Player]]:
    """A session of its own that takes a slow reply for none, and tries once more only."""
    longest = max((took for each in subject.sessions for took in (*each.resets, *each.steps)), default=0.0)
    timeout = min(subject.server.message_timeout, max(SLOWEST, 10 * longest))
    server = subject.server.model_copy(update={"message_timeout": timeout, "patience": 2 * timeout})
    session = Recorded(server, attempts=1)
    wait_for(subject.sessions[-1].shut())  # its place
    try:
        yield session, subject.spec.make(session)
    finally:
        wait_for(shut([session]))


@check("robustness.arguments", "error", "A model's odd call ends the episode without a reward, or stops the run.")
def arguments(subject: Subject) -> CheckResult:
    seed, count, until = subject.seeds[0], 0, monotonic() + 1.5 * subject.extent.seconds
    remedy = "Tell the player what is wrong (a ValueError in a game); let nothing else escape, and nothing take long."
    for calls in _odd_calls(subject):
        with _impatient(subject) as (_, environment):
            try:
                episode = Episode(environment, seed)
                take(episode, *calls)
            except SessionLost as lost:
                return failed("a call is never answered", remedy, Evidence(seed, calls, str(lost)))
        if episode.broken:
            return failed("a call crashes the environment", remedy, Evidence(seed, calls, episode.broken))
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
    if subject.is_full:
        return passed(f"it grants {subject.granted} sessions and refuses the next one")
    wait_for(_open_all(subject.sessions))
    session = Recorded(subject.server, attempts=1)
    try:
        wait_for(session.open())
    except AtCapacity:
        subject.is_full = True
        return passed(f"it grants {subject.granted} sessions and refuses the next one")
    except SessionLost as lost:
        remedy = "Refuse it with CAPACITY_REACHED, as OpenEnv's server does."
        return failed(f"one session more than {subject.granted} is neither granted nor refused: {lost}", remedy)
    finally:
        wait_for(shut([session]))
    return does_not_apply(f"it grants more than the {subject.granted} sessions that were opened")


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


CHECKS = (interleaved, grading, reset, after_error, arguments, after_end, capacity, given_back, growth)
