"""Checks that what the environment's author wrote does what the stages take it for: attributes, script, slices, play.

In: a `Subject` with open sessions. Out: verdicts, with the file, the line and the method.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from apprentice.envs.catalog import environment_class, game_of, known, module_of, policy_of, server_app
from apprentice.envs.game import SAY, takes_text
from apprentice.envs.wire.reply import BadReply, one_line
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.flows.audit.near_misses import near_misses
from apprentice.flows.audit.play.audited_episodes import AuditedEpisode, play
from apprentice.flows.audit.play.check import check
from apprentice.flows.audit.play.faults import (
    Fault,
    fault_at,
    fault_of,
    files_at,
    files_of,
    is_deliberate,
    said_of,
    script_fault,
)
from apprentice.flows.audit.play.findings import (
    BREAKS,
    CORRECT,
    TOOL,
    CheckEvidence,
    CheckResult,
    does_not_apply,
    failed,
    passed,
)
from apprentice.flows.audit.play.subject import FEWEST, Subject

SOME = 8
"""Near misses whose calls are made again, to see what the tools themselves raise and return."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_str(value: Any) -> bool:
    return isinstance(value, str)


def _is_range(value: Any) -> bool:
    numbers = isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(n, int | float) for n in value)
    return numbers and all(map(isfinite, value)) and value[0] < value[1]


WANTED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "version": ("a text", _is_text),
    "instructions": ("a text", _is_str),
    "max_turns": ("a whole number, 1 or more", lambda n: isinstance(n, int) and not isinstance(n, bool) and n > 0),
    "phrases": ("a tuple of texts", lambda given: isinstance(given, tuple | list) and all(map(_is_str, given))),
    "reward_range": ("two numbers, the lower one first", _is_range),
}
"""What every attribute of an environment is, and whether a value is that."""


def declared_fault(name: str, settings: Mapping[str, Any]) -> Fault | None:
    """Return what is wrong with an environment's attributes under its settings; None if nothing is."""
    try:
        cls = environment_class(name)
    except AttributeError:
        file = Path(module_of(name).__file__ or name)
        return Fault(file, 1, "", "it has no subclass of Game, and no class Environment")
    files = files_of(name)
    author = game_of(name) or cls
    attribute = ""
    try:
        if getattr(author, "__abstractmethods__", None):
            return fault_at(author, f"it has no {', '.join(sorted(author.__abstractmethods__))}")
        made = cls(cls.Settings.model_validate(dict(settings)))
        for attribute, (what, fits) in WANTED.items():
            if not fits(value := getattr(made, attribute)):
                said = f"{attribute} is {one_line(repr(value), 100)}, not {what}"
                return fault_at(author, said, attribute)
    except Exception as error:  # whatever its author's code raises
        said = said_of(error)
        return fault_of(error, files) or (fault_at(author, said, attribute) if files else None)
    return None


@check("code.class", "error", BREAKS, quick=True)
def declared(subject: Subject) -> CheckResult:
    if fault := declared_fault(subject.spec.name, subject.spec.settings):
        return failed(str(fault), CORRECT)
    return passed(f"{', '.join(WANTED)} are what they should be")


def code_finding(given: str, error: Exception) -> CheckResult | None:
    """Return what is wrong with the code of an environment that cannot be imported, described or served.

    Args:
        given: Its name, or the path of its file or folder.
        error: What it ended with; None is returned where that does not come from the code.
    """
    files = files_at(given)
    fault = fault_of(error, files)
    name = given if given in known() else next((file.stem for file in files if file.stem in known()), "")
    if fault is None and name:
        fault = declared_fault(name, {}) or _fault_of_server(name, files)
    return declared.finding(failed(str(fault), CORRECT)) if fault else None


def _fault_of_server(name: str, files: Sequence[Path]) -> Fault | None:
    """Return where the environment's server cannot be made."""
    try:
        server_app(name, 1)
    except Exception as error:  # whatever its author's code raises
        return fault_of(error, files)
    return None


@check("code.traits", "error", "An evaluation stops where it sorts its questions into slices.", quick=True)
def traits(subject: Subject) -> CheckResult:
    assert subject.seen is not None
    player = subject.players[0]
    game = game_of(subject.spec.name)
    method = game.traits if game else type(player.environment).slices
    names: set[str] = set()
    for seed, question in zip(subject.seeds, subject.seen.questions, strict=False):
        try:
            found = player.environment.slices(seed, question)
        except Exception as error:  # whatever its author's code raises
            said = said_of(error)
            fault = fault_of(error, subject.files) or fault_at(method, said)
            return failed(str(fault), CORRECT, CheckEvidence(seed, (), question))
        fits = isinstance(found, Mapping) and all(
            isinstance(name, str) and isinstance(value, str | int) for name, value in found.items()
        )
        if not fits:
            said = f"it returns {one_line(repr(found), 100)}, not names with a text or a whole number each"
            return failed(str(fault_at(method, said)), CORRECT, CheckEvidence(seed, (), question))
        names |= found.keys()
    return passed(f"{len(subject.seen.questions)} questions have slices: {', '.join(sorted(names)) or 'none'}")


@check("code.script", "error", "The scripted teacher plays nothing, or the filter drops what it played.")
def script(subject: Subject) -> CheckResult:
    try:
        policy = policy_of(subject.spec.name)
    except ValueError as none:
        return does_not_apply(str(none))
    for name in ("check", "call"):
        if not callable(getattr(policy, name, None)):
            return failed(str(script_fault(policy, f"there is no function {name}", name)), CORRECT)
    try:
        policy.check(subject.spec.settings)
    except Exception as error:  # whatever its author's code raises
        if is_deliberate(error, subject.files):
            return does_not_apply(f"the script cannot play under these settings: {error}")
        said = said_of(error)
        return failed(str(fault_of(error, subject.files) or script_fault(policy, said, "check")), CORRECT)
    played = len(subject.scripted)
    if subject.script_faults:
        return _failing(subject, f"after {played} episodes that it played" if played else "on the first question")
    for seed in subject.many[:FEWEST]:
        try:
            play(subject.fresh(), seed, lambda episode: subject.script(episode, 1.0))
        except ValueError:  # it does not know this, or fails
            break
    if subject.script_faults:
        return _failing(subject, "where it is to be wrong (error_rate=1.0)")
    if not played:
        return does_not_apply(f"the script knows no answer to the question of seed {subject.many[0]}")
    return passed(f"it played {played} episodes, and {FEWEST} wrong ones, with calls that fit the tools")


def _failing(subject: Subject, when: str) -> CheckResult:
    first = subject.script_faults[0]
    return failed(f"{first.saw} ({when})", CORRECT, first._replace(saw="the script's next call fails"))


@check("code.play", "error", "An episode ends without a reward, or the model reads None.")
def played(subject: Subject) -> CheckResult:
    """Look at the episodes of the other checks, and make the calls of some again."""
    for seed, said in subject.refused.items():
        if fault := subject.fault_in(seed):
            return failed(str(fault), CORRECT, CheckEvidence(seed, (), said))
    planned = [*subject.scripted, *(each.played for each in near_misses(subject))]
    episodes = [*planned, *subject.guessed]
    if broken := next((each for each in episodes if each.broken), None):
        fault = subject.fault_in(broken.seed, broken.calls)
        is_sure = fault is not None or broken in planned  # what is guessed may be no call that a server must take
        shown = broken.evidence(broken.broken)
        return failed(str(fault or broken.broken), TOOL, shown, severity="error" if is_sure else "warning")
    for each in subject.within([*subject.guessed, *subject.scripted[:FEWEST], *planned[-SOME:]]):
        if fault := _client_fault(subject, each) or _wrong_value(subject, each):
            return failed(str(fault), TOOL, each.evidence())
    return passed(f"{len(episodes)} episodes, right, wrong and guessed, were played without an error of the code")


def _client_fault(subject: Subject, played: AuditedEpisode) -> Fault | None:
    """Return where a tool of the class itself fails, which the model would read as the error of its call."""
    player = subject.fresh()
    player.ask(played.seed)
    for name, arguments in played.calls:
        if player.done:
            return None
        try:
            player.act(name, arguments)
        except (ValueError, BadReply, Refused, SessionLost):
            continue
        except Exception as error:  # whatever its author's code raises
            if fault := fault_of(error, subject.files):
                return fault
    return None


def _wrong_value(subject: Subject, played: AuditedEpisode) -> Fault | None:
    """Return which tool of a game in one file returns something else than text."""
    game = game_of(subject.spec.name)
    if game is None:
        return None
    playing = game(game.Settings.model_validate(subject.spec.settings))
    playing.ask(played.seed)
    for name, arguments in played.calls:
        method = getattr(game, name, None)
        if playing.done or method is None:
            return None
        try:
            inspect.signature(method).bind(playing, **arguments)
            said = method(playing, **arguments)
        except (ValueError, TypeError):  # told to the model, or found on the server
            continue
        if not isinstance(said, str) and not (name == SAY and takes_text(game)):
            return fault_at(method, f"it returns {one_line(repr(said), 100)}, not the text that the model reads")
    return None
