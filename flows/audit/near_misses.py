"""Checks of wrong last calls: that none counts as right, that a nearer one earns more, and that stopping earns no more.

In: a `Subject` with open sessions, and its scripted episodes. Out: verdicts. A near miss is a scripted episode in which
one argument of its last call has another value: one that the question or a reply shows, one of another question, one
that is made up, or several in a list. Several arguments change at once where a line of a reply, or another question,
has values of all.
"""

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import Any, NamedTuple

from apprentice.envs.reward import ROUNDING, is_right
from apprentice.flows.audit.play.audited_episodes import AuditedEpisode, play, replayed
from apprentice.flows.audit.play.check import check
from apprentice.flows.audit.play.findings import NO_SCRIPT, CheckResult, Severity, does_not_apply, failed, passed
from apprentice.flows.audit.play.subject import FEWEST, FIRST, SEVERAL, Subject, lower_bound
from apprentice.tasks.episodes.episode import Call

ACCEPTED = 0.5
"""Share of a kind of near misses, above which it is the grader that accepts them, not chance."""
GAIN = 0.01
"""Of the reward, by which stopping must earn more than a wrong last call."""
BAR = 0.1
"""Share of right last calls, from which stopping that pays below it is an error."""
UNCHANGED = "no argument of the script's last call can be changed a little"
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?!\w|\.\d)")
WORD = re.compile(r"\w[\w@#/:+.-]*\w|\w")
"""An id, a date, a name or a word: without the marks at its end."""
ONE_OFF, MADE_UP, OPTION = "a value that is one off", "a value that is made up", "another value of its list"
FIRST_SHOWN, LAST_SHOWN = "the first such value that is shown", "the last such value that is shown"
OTHER_SHOWN, OF_ANOTHER = "another value that is shown", "the value of another question"
AMONG = "the right value between two wrong ones"
OTHER_LINE, OTHER_CALL = "another line that is shown", "the right call of another question"
TOGETHER = (OTHER_LINE, OTHER_CALL)
"""Ways that change several arguments, so that they fit one another."""


class NearMiss(NamedTuple):
    """A scripted episode with another value of one argument, or of several that fit one another."""

    right: AuditedEpisode
    place: int
    """Of the call that is changed: the script's last one that can be."""
    argument: str
    """Its name; the names of several, with commas between."""
    way: str
    """Where the value is from."""
    played: AuditedEpisode

    @property
    def value(self) -> Any:
        """The argument's right value; None of several arguments."""
        return self.right.calls[self.place][1].get(self.argument)

    @property
    def is_accepted(self) -> bool:
        return is_right(self.played.reward)


def near_misses(subject: Subject) -> list[NearMiss]:
    """Return near misses of the right ones of the scripted episodes; plays them at the first call.

    Raises Refused, BadReply, SessionLost.
    """
    if subject.near_misses is None:
        right = [each for each in subject.scripted if is_right(each.reward) and each.calls]
        planned = [(each.seed, *change) for each in right for change in _changes(each, right, _properties(subject))]
        subject.tried = [(seed, calls) for seed, calls, _ in planned]
        episodes = subject.play_all([(seed, replayed(calls)) for seed, calls in subject.tried])
        subject.near_misses = [made_of(played) for (*_, made_of), played in zip(planned, episodes, strict=False)]
    return subject.near_misses


def _properties(subject: Subject) -> dict[str, dict[str, Any]]:
    """Return the schemas of each tool's arguments; a last text is no tool, and has none."""
    functions = [tool["function"] for tool in subject.players[0].schemas]
    return {each["name"]: each["parameters"].get("properties", {}) for each in functions}


def _changes(
    each: AuditedEpisode, right: Sequence[AuditedEpisode], schemas: Mapping[str, dict[str, Any]]
) -> Iterator[tuple[list[Call], Callable[[AuditedEpisode], NearMiss]]]:
    """Yield the calls of an episode's near misses, and what makes one of its episode: of the last call that has any."""
    for place in reversed(range(len(each.calls))):
        tool, given = each.calls[place]
        properties = schemas.get(tool, {})
        found = [
            (name, way, {name: other})
            for name, value in given.items()
            for way, other in _others(each, place, name, value, properties.get(name, {}), right).items()
            if str(other) != each.correct
        ]
        found += _together(each, place, right)
        for names, way, others in found:
            changed = given | others
            if changed != given:
                calls = [*each.calls[:place], (tool, changed), *each.calls[place + 1 :]]
                yield calls, partial(NearMiss, each, place, names, way)
        if found:
            return


def _together(
    each: AuditedEpisode, place: int, right: Sequence[AuditedEpisode]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield other values of several arguments, as another line of a reply has them, or another question's call."""
    (tool, given), draw = each.calls[place], random.Random(each.seed)
    lines = "\n".join([each.question, *each.replies[:place]]).splitlines()
    for line in lines:
        at = {name: _alike(value, line).index(value) for name, value in given.items() if value in _alike(value, line)}
        at = {name: nth for name, nth in at.items() if not _is_text(given[name])}
        found = [{name: _alike(given[name], other)[nth:][:1] for name, nth in at.items()} for other in lines]
        whole = [{name: value for name, (value,) in other.items()} for other in found if all(other.values())]
        if len(at) > 1 and (whole := [other for other in whole if all(other[name] != given[name] for name in at)]):
            yield ", ".join(at), OTHER_LINE, draw.choice(whole)
            break
    calls = [given for other in right for called, given in other.calls if called == tool and other is not each]
    if len(given) > 1 and calls:
        yield ", ".join(given), OTHER_CALL, draw.choice(calls)


def _others(
    each: AuditedEpisode, place: int, name: str, value: Any, schema: Mapping[str, Any], right: Sequence[AuditedEpisode]
) -> dict[str, Any]:
    """Return other values of an argument by where they are from: at most one of each kind."""
    draw = random.Random(each.seed)
    if options := [option for option in schema.get("enum", ()) if option != value]:
        return {OPTION: draw.choice(options)}
    if isinstance(value, bool):
        return {OPTION: not value}
    shown = shown_like(value, "\n".join([each.question, *each.replies[:place]]))
    found: dict[str, Any] = {}
    if shown:
        found = {FIRST_SHOWN: shown[0], LAST_SHOWN: shown[-1], OTHER_SHOWN: draw.choice(shown)}
    tool = each.calls[place][0]
    others = [given[name] for other in right for called, given in other.calls if called == tool and name in given]
    if others := [other for other in others if other != value and type(other) is type(value)]:
        found[OF_ANOTHER] = draw.choice(others)
    if isinstance(value, str | int | float):
        found |= {ONE_OFF: _changed(value, 0), MADE_UP: _made_up(value)}
    if isinstance(value, str) and schema:  # none of a last text, in which the right value stands among words
        # of its kind, since a grader may well skip what is none; between them, since it may read the last one alone
        wrong = [*dict.fromkeys([*others, *shown, *([] if _is_text(value) else [_made_up(value), _changed(value, 0)])])]
        found |= {AMONG: f"{wrong[0]}, {value}, {wrong[-1]}"} if len(wrong) > 1 else {}
    return found


def _made_up(value: Any) -> Any:
    """Return another value of the same form, which is far off: a grader may take one that is near for right."""
    if isinstance(value, str) and any(letter.isdigit() for letter in value):
        return re.sub(r"\d", lambda digit: str((int(digit[0]) + 5) % 10), value)
    return _changed(value, 1)


def shown_like(value: Any, text: str) -> list[Any]:
    """Return what a text shows of the same form as a value, and not the value: each once, in their order. Words count
    only where the text has the value itself."""
    found = [each for each in dict.fromkeys(_alike(value, text)) if each != value]
    return found if not _is_text(value) or value in WORD.findall(text) else []


def _alike(value: Any, text: str) -> list[Any]:
    """Return all that a text shows of a value's form: numbers, ids with the same letters, else ids or words of the same
    shape."""
    if isinstance(value, int | float):
        numbers = [float(each) for each in NUMBER.findall(text)]
        return [int(each) for each in numbers if each.is_integer()] if isinstance(value, int) else numbers
    if not isinstance(value, str):
        return []
    words = WORD.findall(text)
    alike = [each for each in words if _form(each) == _form(value)]
    return alike if set(alike) - {value} else [each for each in words if _shape(each) == _shape(value)]


def _form(text: str) -> str:
    return re.sub(r"\d+", "9", text)


def _shape(text: str) -> str:
    return re.sub(r"[a-z]+", "a", re.sub(r"[A-Z]+", "A", _form(text)))


@check(
    "reward.near_miss", "error", "GRPO learns a wrong call that counts as right, and the filter keeps such episodes."
)
def near_miss(subject: Subject) -> CheckResult:
    if not subject.scripted:
        return does_not_apply(NO_SCRIPT)
    if not (tried := near_misses(subject)):
        return does_not_apply(UNCHANGED)
    by_kind: dict[tuple[str, str, str], list[NearMiss]] = defaultdict(list)
    for each in (each for each in tried if each.way != ONE_OFF):
        by_kind[each.right.calls[each.place][0], each.argument, each.way].append(each)
    accepted = {
        kind: some
        for kind, some in by_kind.items()
        if len(some) >= SEVERAL and lower_bound([each.is_accepted for each in some]) > ACCEPTED
    }
    free = {kind[:2] for kind in accepted if kind[2] in (MADE_UP, OPTION)}
    is_any_graded = len(free) < len({kind[:2] for kind in by_kind if kind[2] not in TOGETHER})
    comments = {kind[:2] for kind, some in accepted.items() if kind[:2] in free and _is_text(some[0].value)}
    comments = comments if is_any_graded else set()
    accepted = {kind: some for kind, some in accepted.items() if kind[:2] not in comments}
    if not accepted:
        any_text = "".join(f"any text counts for `{argument}` of {tool}; " for tool, argument in sorted(comments))
        said = f"no {'other ' if comments else ''}near miss counts as right often"
        return passed(f"{any_text}{said}, in {len(tried)} episodes of {len(by_kind)} kinds")

    def weight(kind: tuple[str, str, str]) -> Severity:
        return "warning" if kind[:2] in free and is_any_graded else "error"

    tool, argument, way = worst = min(accepted, key=weight)  # errors first
    some = accepted[worst]
    wrong = [each for each in some if each.is_accepted]
    what = "any value" if (tool, argument) in free else way
    said = f"{what} counts as right for `{argument}` of {tool}, on {len(wrong)} of {len(some)} questions"
    others = sorted({kind[1] for kind in accepted if kind[:2] != worst[:2]})
    said += f"; the same for {', '.join(others)}" if others else ""
    remedy = "Compare it with what is right for the question, not with what there is."
    remedy += " If it may be anything, ignore this." if is_any_graded and (tool, argument) in free else ""
    shown = wrong[0].played.evidence(), wrong[0].right.evidence()
    return failed(said, remedy, *shown, severity=weight(worst))


def _is_text(value: Any) -> bool:
    """Whether a value is text without a digit, which is perhaps a comment if nobody grades it."""
    return isinstance(value, str) and not any(letter.isdigit() for letter in value)


class Stopped(NamedTuple):
    """What breaking off after some calls earns, on average over the episodes that have more calls."""

    calls: int
    stop: float
    wrong: float
    right: float
    gain: float
    """By which stopping earns more than a wrong last call, less its standard errors."""
    episodes: list[tuple[AuditedEpisode, AuditedEpisode]]
    """Each broken off, and with a wrong last call."""

    @property
    def bar(self) -> float:
        """The share of right last calls below which stopping earns more."""
        return min((self.stop - self.wrong) / max(self.right - self.wrong, 1e-9), 1.0)


@check("reward.stopping", "error", "GRPO learns to break off: it earns more than a call that may be wrong.")
def stopping(subject: Subject) -> CheckResult:
    """Compare an episode that its player ends, as in GRPO and the evaluation, with one whose last call is wrong."""
    if not subject.scripted:
        return does_not_apply(NO_SCRIPT)
    if not (wrong := _wrong_ends(subject)):
        return does_not_apply(f"{UNCHANGED}, or every change counts as right")
    longest = max(len(right.calls) for right, _ in wrong)
    found = [each for calls in range(longest) if (each := _stopped(subject, calls, wrong)) is not None]
    if not found:
        return does_not_apply("too few episodes could be broken off")
    best = max(found, key=lambda each: round(each.gain, 6))  # of equals the earliest stop
    after = f"{best.calls} call{'' if best.calls == 1 else 's'}"
    said = (
        f"stopping after {after} earns {best.stop:.2g} on average, a wrong last call {best.wrong:.2g}, the right one "
        f"{best.right:.2g}, over {len(best.episodes)} episodes"
    )
    if best.gain <= GAIN:
        return passed(said)
    said += f": who is right in less than {best.bar:.0%} of the last calls earns more by breaking off"
    remedy = "Let a wrong last call earn no less than the stop, or give no reward for looking."
    stopped, missed = best.episodes[0]
    shown = stopped.evidence(f"no further call, reward {stopped.reward:g}"), missed.evidence()
    return failed(said, remedy, *shown, severity="error" if best.bar >= BAR else "warning")


def _wrong_ends(subject: Subject) -> list[tuple[AuditedEpisode, list[AuditedEpisode]]]:
    """Return each right episode with its near misses that are wrong: those that ended it, if any did."""
    by_seed: dict[int, list[NearMiss]] = defaultdict(list)
    for each in near_misses(subject):
        if not each.is_accepted and each.played.reward is not None:
            by_seed[each.right.seed].append(each)
    return [
        (some[0].right, [each.played for each in some if each.played.ended] or [each.played for each in some])
        for some in by_seed.values()
    ]


def _stopped(
    subject: Subject, calls: int, wrong: Sequence[tuple[AuditedEpisode, list[AuditedEpisode]]]
) -> Stopped | None:
    longer = [(right, missed) for right, missed in wrong if len(right.calls) > calls]
    episodes = subject.play_all([(right.seed, replayed(right.calls[:calls])) for right, _ in longer])
    played = [
        (stop, missed, right)
        for stop, (right, missed) in zip(episodes, longer, strict=False)
        if stop.reward is not None and not stop.ended
    ]
    if len(played) < min(FEWEST, len(wrong)):
        return None
    stops = [stop.reward or 0.0 for stop, _, _ in played]
    wrongs = [mean(each.reward or 0.0 for each in missed) for _, missed, _ in played]
    rights = mean(right.reward or 0.0 for _, _, right in played)
    gain = lower_bound([stop - other for stop, other in zip(stops, wrongs, strict=True)])
    shown = [(stop, missed[0]) for stop, missed, _ in played]
    return Stopped(calls, mean(stops), mean(wrongs), rights, gain, shown)


@check("reward.ordered", "warning", "GRPO is led away from the goal by partial credit.")
def ordered(subject: Subject) -> CheckResult:
    if not (played := [each for each in subject.scripted if each.reward is not None]):
        return does_not_apply(NO_SCRIPT)
    remedy = "Let a better answer earn at least as much as a worse one, and an episode's reward not fall."
    for each in played:
        last = each.reward or 0.0
        before = max((reward for reward in each.rewards[:-1] if reward is not None), default=last)
        if before > last + ROUNDING:
            return failed(f"the reward falls from {before:g} to {last:g} at the end", remedy, each.evidence())
    near, far = ([each for each in _missed(subject, played, way) if each.reward is not None] for way in (0, 1))
    if not near or not far:
        return does_not_apply(UNCHANGED)
    close, apart = (mean(each.reward or 0.0 for each in some) for some in (near, far))
    found = f"a near miss earns {close:.2g} on average, an answer far off {apart:.2g}"
    if close < apart - 0.05:
        return failed(found, remedy, near[0].evidence(), far[0].evidence())
    return passed(found)


def _missed(subject: Subject, played: Iterable[AuditedEpisode], far: int) -> Iterator[AuditedEpisode]:
    """Play the script's episodes again with another last call: a near miss, or one far off."""
    properties = _properties(subject)
    for each in subject.within(list(played)[:FIRST]):
        tool, given = each.calls[-1]
        changed = {name: _changed(value, far) for name, value in given.items()}
        is_choice = any("enum" in one for one in properties.get(tool, {}).values())
        if changed != given and not is_choice:
            yield play(subject.fresh(), each.seed, replayed([*each.calls[:-1], (tool, changed)]))


def _changed(value: Any, far: int) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value + (1 if not far else 1000)
    if isinstance(value, str) and value:
        other = {
            letter: "9" if letter.isdigit() and letter != "9" else "q" if letter != "q" else "z" for letter in value
        }
        return "".join(other[letter] for letter in value) if far else value[:-1] + other[value[-1]]
    return value


CHECKS = (ordered, near_miss, stopping)
