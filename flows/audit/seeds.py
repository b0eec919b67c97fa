"""Checks that a seed is a question: the same one each time, in every process and session, and another one elsewhere.

In: a `Subject` with open sessions. Out: verdicts.
"""

from collections.abc import Iterator, Mapping
from math import exp

from apprentice.envs.catalog import part_of
from apprentice.envs.openenv.discovered import DiscoveredEnvironment as Adapter
from apprentice.envs.openenv.env import Settings
from apprentice.envs.wire.passing import NAMES, difference, leaves, masked, narrowed
from apprentice.envs.wire.reply import BadReply, one_line
from apprentice.envs.wire.session import Refused
from apprentice.flows.audit.play.audited_episodes import play, replayed
from apprentice.flows.audit.play.check import check
from apprentice.flows.audit.play.findings import CheckEvidence, CheckResult, does_not_apply, failed, passed
from apprentice.flows.audit.play.other_seeds import IGNORES_SEEDS, lead_elsewhere
from apprentice.flows.audit.play.subject import Subject
from apprentice.tasks.episodes.texts import same_text

OF_THE_SEED = "Draw the question from random.Random(seed) alone, and keep nothing outside the session."
ONE = (
    "If it always begins with the same start, say so: environment.one_task: true trains on that one. If its reset "
    "takes a task by its name, list them: environment.tasks: [{task_id: …}, …]."
)
AS_TASKS = "The seed decides what follows all the same: environment.tasks: 100 makes tasks of the first 100 seeds."
OF_THE_REPLY = (
    "If what differs is no part of the task, name the other fields of the reply: environment.reply: […]. If it is, "
    "the environment's author can draw it from random.Random(seed) in place of random."
)
NONE = "its reset may take 0 for no seed"
NOT_NONE = (
    "Its author can mend it: `if seed is not None` in place of `if seed`. Until then begin the windows behind it: "
    "windows.collect.start: 1, and so on."
)
DISTINCT = 0.2
"""Share of the seeds that must have a question of their own."""
OVERLAP = 0.2
"""Share of the evaluation's questions that training may contain; the filter and GRPO leave them out."""


def differing(first: Mapping[int, str], second: Mapping[int, str]) -> Iterator[CheckEvidence]:
    """Yield the seeds whose questions differ."""
    for seed, question in second.items():
        if first[seed] != question:
            yield CheckEvidence(seed, (), f"{first[seed]!r}, and then {question!r}")


def _seeded(subject: Subject) -> str:
    """Return the remedy for seeds that do not count: of the environment's author, or of who chose the server."""
    if subject.elsewhere:
        return OF_THE_SEED
    name = subject.spec.name
    return f"Serve this version: apprentice env serve {name}" if part_of(name, "server") else IGNORES_SEEDS


@check("seeds.repeat", "error", "Evaluation, filter and a resumed run take other questions than were recorded.", True)
def repeat(subject: Subject) -> CheckResult:
    assert subject.seen is not None
    answers = [dict(zip(subject.seeds, each, strict=True)) for each in (subject.seen.questions, subject.seen.again)]
    if found := list(differing(*answers)):
        said = "the same seed gave two different questions"
        if [each.seed for each in found] == [0] and len(subject.seeds) > 1:
            return failed(f"seed 0 gave two different questions, and no other seed did: {NONE}", NOT_NONE, *found)
        if len(set(answers[0].values()) | set(answers[1].values())) == 2 * len(subject.seeds):
            said = f"{said}: each reset draws a new start, or counts on, whatever seed it is given"
        return failed(said, _seeded(subject), *found[:1])
    if hidden := _hidden_draw(subject):
        said = "the same seed gave the same question, but not the same episode"
        return failed(said, OF_THE_REPLY if hidden.calls else _seeded(subject), hidden)
    return passed("the same seed gave the same question in two sessions")


def _hidden_draw(subject: Subject) -> CheckEvidence | None:
    """Return what differs between two episodes of one seed though their question does not, such as a secret word: a
    text of the state, or a reply to the same calls. None if nothing does; only of a server of somebody else's."""
    if not isinstance(subject.players[0].environment, Adapter) or len(subject.sessions) < 2:
        return None
    seed, states = subject.seeds[0], []
    for place in (0, 1):
        subject.question(seed, place)
        try:
            state = dict(leaves(subject.sessions[place].state()))
        except BadReply:  # a server need not tell its state
            state = {}
        states.append({path: masked(each) for path, each in state.items() if isinstance(each, str)})
    for path in states[0].keys() & states[1].keys():
        if states[0][path] != states[1][path] and not NAMES.search(path):
            shown = [one_line(states[place][path], 100) for place in (0, 1)]
            return CheckEvidence(seed, (), f"state.{path} is {shown[0]!r}, and then {shown[1]!r}")
    assert subject.seen is not None
    first = subject.seen.played[0]
    replies = []
    for place in (0, 1):
        play(subject.players[place], first.seed, replayed(first.calls))
        replies.append(subject.sessions[place].replies)
    own = subject.players[0].environment.settings
    if isinstance(own, Settings):
        replies = [
            [narrowed(each, own.reply if place else own.question) for place, each in enumerate(of)] for of in replies
        ]
    differ = (found for then, now in zip(*replies, strict=False) if (found := difference(then, now)))
    return next((CheckEvidence(first.seed, first.calls, each) for each in differ), None)


@check("seeds.ignored", "error", "All episodes have one question: the evaluation measures what was trained.", True)
def ignored(subject: Subject) -> CheckResult:
    assert subject.seen is not None
    questions = subject.seen.questions
    if subject.spec.questions == 1:
        return passed("there is one question, of which every seed is another try")
    if len(set(questions)) > 1 or len(questions) == 1:
        return passed("other seeds gave other questions")
    is_adapter = isinstance(subject.players[0].environment, Adapter)
    elsewhere = is_adapter and lead_elsewhere(subject.players[0], subject.seeds)
    if elsewhere and subject.spec.questions:
        return passed("all tasks begin alike, and the same calls lead elsewhere")
    shown = [CheckEvidence(seed, (), repr(questions[0])) for seed in subject.seeds[:2]]
    remedy = AS_TASKS if elsewhere else ONE if is_adapter and not subject.elsewhere else _seeded(subject)
    return failed(f"{len(questions)} seeds gave the same question", remedy, *shown)


@check("seeds.process", "error", "Another server, or the same one started again, asks other questions.")
def process(subject: Subject) -> CheckResult:
    if subject.elsewhere is None:
        return does_not_apply("the server was not started here, so its process cannot be started a second time")
    with subject.made_at(subject.elsewhere) as environment:
        try:
            questions_there = {seed: environment.ask(seed) for seed in subject.many}
        except Refused as refused:
            return passed(f"under another hash seed it refuses rather than ask something else: {refused}")
    if found := list(differing(subject.questions, questions_there)):
        remedy = "Draw from a list or a sorted set: the order of a set, and hash(), differ between processes."
        return failed("another process with another hash seed asks other questions", remedy, *found[:1])
    return passed(f"a process with another hash seed asked the same {len(questions_there)} questions")


@check("seeds.load", "error", "In a busy run rollouts of one question are of several, and cannot be compared.")
def load(subject: Subject) -> CheckResult:
    if len(subject.sessions) < 2:
        return does_not_apply("the server grants one session")
    wanted = [*subject.many, *reversed(subject.many)]
    pairs = subject.at_once(lambda environment, seed: (seed, environment.ask(seed)), wanted)
    if found := [each for pair in pairs for each in differing(subject.questions, dict([pair]))]:
        said = f"{len(found)} of {len(pairs)} questions differ when {len(subject.sessions)} sessions ask at once"
        return failed(said, "Use a random generator of the session's own; random.seed() is shared by all.", *found[:1])
    return passed(f"{len(subject.sessions)} sessions at once got the same questions as one alone")


@check("seeds.windows", "warning", "Training and evaluation share questions; the shared ones are left out of training.")
def windows(subject: Subject) -> CheckResult:
    count = subject.extent.samples
    if subject.recipe is None:
        texts = _texts(subject, range(subject.seeds[0], subject.seeds[0] + count))
        different, n = len(set(texts)), len(texts)
        found = f"{n} seeds gave {different} different questions, so there are about {_pool(different, n)}"
        few = different < DISTINCT * n
        remedy = "Use windows that have fewer questions together, or settings with more questions."
        return failed(found, remedy) if few else passed(found)
    planned = dict(subject.recipe.seed_windows())
    held_out = planned.pop("evaluate")
    evaluated = _texts(subject, held_out.seeds()[: count // 2])
    trained = {each for name in planned for each in _texts(subject, planned[name].seeds()[: count // 2])}
    shared = sum(question in trained for question in evaluated) / max(1, len(evaluated))
    found = f"{shared:.0%} of {len(evaluated)} evaluation questions are among {len(trained)} of training"
    remedy = "Make the windows smaller, or use settings with more questions."
    return failed(found, remedy) if shared > OVERLAP else passed(found)


def _texts(subject: Subject, seeds: range) -> list[str]:
    return [same_text(each) for each in subject.at_once(lambda environment, seed: environment.ask(seed), seeds)]


def _pool(different: int, drawn: int) -> str:
    """Estimate how many questions there are, drawn evenly, when `different` of `drawn` differ."""
    if different == drawn:
        return f"{drawn * (drawn - 1) // 2:,} or more"
    low, high = float(different), 1e9
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * (1 - exp(-drawn / middle)) < different else (low, middle)
    return f"{low:,.0f}"


CHECKS = (process, load, windows)
