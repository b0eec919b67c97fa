"""Checks that episodes share nothing: with one another, with the episode before, with an earlier error.

In: a `Subject` with open sessions. Out: verdicts.
"""

import json
from collections.abc import Iterable

from apprentice.envs.wire.passing import leaves, masked_fields
from apprentice.envs.wire.reply import BadReply, ServerError
from apprentice.flows.audit.exploits import constant_calls
from apprentice.flows.audit.play.audited_episodes import AuditedEpisode, play, replayed, take
from apprentice.flows.audit.play.check import check
from apprentice.flows.audit.play.findings import CheckEvidence, CheckResult, does_not_apply, failed, passed
from apprentice.flows.audit.play.guesses import any_call
from apprentice.flows.audit.play.subject import Subject
from apprentice.tasks.episodes.episode import Episode

QUESTIONS, CALLS, PAIRS = 6, 16, 4
"""How many questions are answered by how many calls, and how many pairs of questions each call is tried on."""
SHARED = "Keep everything that an episode changes in attributes that a reset sets anew, none in the class or module."


def _differs(alone: AuditedEpisode, now: AuditedEpisode) -> bool:
    return (alone.question, alone.reward, _masked(alone.replies)) != (now.question, now.reward, _masked(now.replies))


def _masked(replies: Iterable[str]) -> list[str]:
    """Replies without the ids and times that change on every call."""
    return [masked_fields(each) for each in replies]


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
            replies = [each["content"] for each in episode.messages if each["role"] == "tool"]
            if (episode.reward, _masked(replies)) != (alone.reward, _masked(alone.replies)):
                if _differs(*(play(subject.fresh(), alone.seed, replayed(alone.calls)) for _ in range(2))):
                    return does_not_apply("an episode goes otherwise each time, also in a session alone")
                said = f"beside another session the reward is {episode.reward}, alone {alone.reward}"
                if episode.reward == alone.reward:
                    said = f"beside another session the replies are {replies!r}, alone {[*alone.replies]!r}"
                beside = CheckEvidence(
                    other.seed if alone is one else one.seed, (), "played meanwhile in another session"
                )
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
                if (beside := episode.reward) != rewards[seed]:
                    again = play(subject.fresh(), seed, replayed([(name, json.loads(given))]))
                    if again.reward != rewards[seed]:
                        return does_not_apply("one answer has several rewards, also in a session alone")
                    said = f"beside another session an answer earns {beside}, alone {rewards[seed]}"
                    meanwhile = CheckEvidence(other if seed == one else one, (), "asked meanwhile in another session")
                    return failed(said, SHARED, by_seed[seed].evidence(), meanwhile)
    if not compared:
        return passed("two sessions have a state of their own; no answer is known that is right for one question alone")
    return passed(f"{compared} right and wrong answers beside another session earned what they do alone")


def _state_of_another(subject: Subject, one: int, other: int) -> CheckEvidence | None:
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
    path = next((path for path, value in now.items() if path not in moving and states[1].get(path) != value), None)
    if path is None:
        return None
    saw = f"{path} was {states[1].get(path)!r}, and after a step with seed {other} in another session {now[path]!r}"
    return CheckEvidence(one, (), saw)


@check("isolation.reset", "error", "An episode depends on the one before it, which no record shows.")
def reset(subject: Subject) -> CheckResult:
    for before, alone in subject.within(zip(subject.known, subject.known[1:], strict=False)):
        environment = subject.fresh()
        episode = Episode(environment, before.seed)
        take(episode, any_call(episode))
        now = play(environment, alone.seed, replayed(alone.calls))
        if _differs(alone, now):
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
        if _differs(alone, now):
            said = "after an action that it answered with an error the session goes otherwise"
            return failed(said, SHARED, alone.evidence(), now.evidence())
    return passed("after errors a session plays as before")


CHECKS = (interleaved, grading, reset, after_error)
