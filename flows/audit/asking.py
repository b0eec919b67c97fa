"""Checks what an environment asks: what its questions cost, what its tools say, what gives the answer away.

In: a `Subject` with open sessions. Out: verdicts.
"""

import json
import re
import unicodedata
from collections.abc import Iterator
from statistics import mean, median
from typing import Any

from apprentice.envs.openenv.env import Environment as Adapter
from apprentice.envs.player import TextCall
from apprentice.envs.wire.reply import BadReply
from apprentice.flows.audit.play.audited_episodes import AuditedEpisode, play, replayed
from apprentice.flows.audit.play.check import check
from apprentice.flows.audit.play.faults import fault_in_schema
from apprentice.flows.audit.play.findings import CheckEvidence, CheckResult, does_not_apply, failed, passed
from apprentice.flows.audit.play.subject import Subject
from apprentice.tasks.episodes.episode import Call, prompt

LONG = 8192
"""Tokens of a prompt that few small students have room for."""
SPECIAL = re.compile(r"<\|[a-z_]+\|>|</?tool_(?:call|response)>|\[/?INST\]")
"""Text by which chat templates mark turns and calls."""
SLOW = 1.0
"""Seconds of a reset that 95% must not exceed, less those of a step: the way to the server is not the question's."""
TIMES = 100
"""Steps that a reset may take as long as; the shortest step counts, which other work on the machine delayed least."""
BRIEF = 0.1
"""Seconds of a reset that are never slow, however short a step is."""
EPISODES = 10_000
"""Of a training without a recipe."""
LEAKS = 8
"""Episodes in which an answer is looked for."""
SHOWN_BY = r"(?:answer|solution|correct|expected|label|target)\w*\W{0,4}(?:is|was|be)?\W{0,4}"


@check("questions", "warning", "Each episode waits for its question: rollouts, evaluations and the filter take longer.")
def questions(subject: Subject) -> CheckResult:
    assert subject.questions
    steps = [took for session in subject.sessions for took in session.steps]
    step = min(steps, default=0.0)
    took = sorted(subject.reset_seconds)
    usual, slowest = median(took), took[-(len(took) // 20) - 1]
    found = (
        f"a reset takes {usual:.3g} s (median of {len(took)}; 95% within {slowest:.3g} s), a step {step:.2g} s or more"
    )
    is_slow = slowest - step > SLOW or (usual > BRIEF and bool(steps) and usual > TIMES * step)
    if not is_slow:
        return passed(found)
    remedy = "Make the questions ahead of the resets, or choose settings whose questions are made sooner."
    longest = subject.many[subject.reset_seconds.index(took[-1])]
    shown = CheckEvidence(longest, (), f"its reset took {took[-1]:.3g} s")
    return failed(f"{found}: {mean(took) * 1000:,.0f} s for 1,000 episodes. {_costs(subject)}", remedy, shown)


def _costs(subject: Subject) -> str:
    """Return how long a training waits for its questions."""
    episodes, at_once = EPISODES, max(1, len(subject.sessions))
    if subject.recipe is not None and (sessions := subject.recipe.training_sessions()):
        episodes, at_once = subject.recipe.training_episodes(), sessions
    hours = mean(subject.reset_seconds) * episodes / 3600
    return (
        f"A GRPO of {episodes:,} episodes waits {hours:.2g} h for them where the server makes one at a time, "
        f"{hours / at_once:.2g} h where it makes {at_once}"
    )


@check("version.key", "note", "")
def version(subject: Subject) -> CheckResult:
    spec = subject.spec
    served = "the code here" if subject.elsewhere else f"the server's own, {spec.revision or 'no revision given'}"
    return passed(
        f"in every key: version {spec.version}, digest {spec.code[:12]} of the class; it is served by {served}"
    )


@check("version.original", "error", "The server plays another version of the task than the keys name.")
def original(subject: Subject) -> CheckResult:
    if subject.original is None:
        return does_not_apply("it is served from the code here, or no server of it can run here to compare with")
    with subject.made_at(subject.original) as environment:
        for there in [*subject.known, *subject.guessed]:
            here = play(environment, there.seed, replayed(there.calls))
            if (here.question, here.reward, here.replies) != (there.question, there.reward, there.replies):
                remedy = f"Serve this version there: apprentice env build {subject.spec.name}"
                shown = there.evidence(), here.evidence()
                return failed("the server answers otherwise than the code here", remedy, *shown)
    return passed(f"{len(subject.known)} episodes have the questions, replies and rewards of the code here")


@check("schema.tools", "error", "A model cannot know how to call the tools.", quick=True)
def tools(subject: Subject) -> CheckResult:
    from jsonschema import Draft202012Validator, SchemaError
    from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException

    describe = "Give each tool a docstring with Args, and each argument a type and a description."
    try:
        schemas = [tool["function"] for tool in subject.players[0].schemas]
        for function in schemas:
            Draft202012Validator.check_schema(function["parameters"])
    except (DocstringParsingException, TypeHintParsingException, NameError) as error:
        fault = fault_in_schema(subject.players[0], subject.files)
        return failed(f"a tool has no schema: {fault or ' '.join(str(error).split())[:300]}", describe)
    except SchemaError as error:
        return failed(f"a tool's schema is not valid: {error.message}", "Correct the schema: JSON Schema 2020-12.")
    if not schemas:
        return failed("there are no tools", describe)
    unknown = [
        f"{function['name']}.{name}"
        for function in schemas
        for name in function["parameters"].get("required", [])
        if name not in function["parameters"].get("properties", {})
    ]
    if unknown:
        return failed(f"required arguments without a schema: {', '.join(unknown)}", describe)
    if text := subject.spec.say:
        is_known = _is_mcp(subject) if text.unlisted else _takes(schemas, text)
        if not is_known:
            names = ", ".join(function["name"] for function in schemas)
            said = f"environment.say names {text.tool}({text.argument}), which is no tool with that argument"
            return failed(said, f"Name one of the server's tools and its argument; the tools are {names}.")
    if bare := list(_undescribed(schemas)):
        return failed(f"without description or type: {', '.join(bare)}", describe, severity="warning")
    return passed(f"{', '.join(function['name'] for function in schemas)}: valid, each part described")


def _takes(schemas: list[dict[str, Any]], text: TextCall) -> bool:
    return any(
        function["name"] == text.tool and text.argument in function["parameters"].get("properties", {})
        for function in schemas
    )


def _is_mcp(subject: Subject) -> bool:
    """Whether the server may have tools that it does not list: it is somebody else's, and has MCP tools."""
    environment = subject.players[0].environment
    return isinstance(environment, Adapter) and environment.settings.actions != "typed"


def _undescribed(schemas: list[dict[str, Any]]) -> Iterator[str]:
    for function in schemas:
        if not function.get("description"):
            yield function["name"]
        for name, schema in function["parameters"].get("properties", {}).items():
            if not schema.get("description") or not schema.keys() & {"type", "enum", "anyOf", "oneOf", "$ref"}:
                yield f"{function['name']}.{name}"


@check("schema.text", "warning", "A chat template takes the text for its own marks, or a tokenizer for unknown bytes.")
def text(subject: Subject) -> CheckResult:
    played = [*subject.known, *subject.guessed]
    texts = [(seed, (), question) for seed, question in subject.questions.items()]
    texts += [(each.seed, each.calls, reply) for each in played for reply in each.replies]
    for seed, calls, said in texts:
        odd = sorted(
            {repr(letter) for letter in said if unicodedata.category(letter) == "Cc" and letter not in "\n\t\r"}
        )
        if odd or SPECIAL.search(said) or not said.strip():
            what = f"control characters {', '.join(odd)}" if odd else "marks of a chat template" if said else "no text"
            remedy = "Leave control characters and marks such as <|im_end|> out of questions and replies."
            return failed(f"a question or reply holds {what}", remedy, CheckEvidence(seed, calls, repr(said)))
    return passed(f"{len(texts)} questions and replies are plain text")


@check("schema.lengths", "warning", "Prompts fill the student's context; such questions stop a run or are left out.")
def lengths(subject: Subject) -> CheckResult:
    environment = subject.players[0]
    student = subject.recipe.student if subject.recipe else None
    if student is not None and student.build is None:
        return does_not_apply("a run checks the prompts with the tokenizer of the recipe's model")
    if student is None or student.build is None:
        shown = json.dumps(environment.schemas) + environment.instructions
        counts, room, unit = [(len(shown) + len(each)) // 4 for each in subject.questions.values()], LONG, "about "
    else:
        from apprentice.tasks.episodes.rendering import prompt_ids
        from apprentice.tasks.models.tokenizer import tokenizer_of

        questions = list(subject.questions.values())
        tokenizer, room, unit = tokenizer_of([(environment, questions)]), student.build.max_positions, ""
        schemas = environment.schemas
        counts = [len(prompt_ids(tokenizer, prompt(environment, each), schemas)) for each in questions]
    ordered = sorted(counts)
    middle, most = ordered[len(ordered) // 2], ordered[-1]
    found = f"a prompt has {unit}{middle} tokens (median), at most {most}; there is room for {room}"
    longest = max(subject.questions, key=lambda seed: len(subject.questions[seed]))
    if most >= room:
        remedy = "Make the questions shorter (environment.settings), or choose a student with a longer context."
        return failed(found, remedy, CheckEvidence(longest, (), subject.questions[longest]))
    return passed(found)


def answered(subject: Subject) -> list[AuditedEpisode]:
    """Return episodes whose answer is known and does not occur in the question; empty if there are too few."""
    played = [each for each in subject.known if each.correct and len(each.correct) > 1]
    return played[:LEAKS] if len({each.correct for each in played}) > 1 else []


def _holds(said: str, answer: str | None) -> bool:
    return re.search(rf"(?<!\w){re.escape(str(answer))}(?!\w)", said, re.IGNORECASE) is not None


NO_ANSWERS = "the environment names no answer (`correct`) to look for, or too few different ones"


@check("leaks.question", "error", "The model learns to copy the answer from the question.")
def in_question(subject: Subject) -> CheckResult:
    played = answered(subject)
    shown = [
        each for each in played if re.search(SHOWN_BY + re.escape(str(each.correct)), each.question, re.IGNORECASE)
    ]
    if len(played) < 3:
        return does_not_apply(NO_ANSWERS)
    if len(shown) < len(played):
        return passed(f"no question of {len(played)} names its answer")
    first = shown[0]
    return failed("the question names its answer", "Leave it out.", CheckEvidence(first.seed, (), repr(first.question)))


@check("leaks.reply", "error", "The model learns to read the answer from a reply instead of working it out.")
def in_replies(subject: Subject) -> CheckResult:
    played = [each for each in answered(subject) if not _holds(each.question, each.correct)]
    if len(played) < 3:
        return does_not_apply(NO_ANSWERS + " that the question does not hold")
    first_wrong = {each.seed: other.calls[:1] for each, other in zip(played, [*played[1:], played[0]], strict=True)}
    for named, calls in (("a wrong answer", first_wrong), ("a call that does not fit", None)):
        found = []
        for each in played:
            move = replayed(calls[each.seed] if calls else [_misfit(subject)])
            tried = play(subject.fresh(), each.seed, move)
            replies = tried.replies[:-1] if tried.ended else tried.replies
            if any(_holds(reply, each.correct) for reply in replies):
                found.append(tried)
        if len(found) == len(played):
            remedy = "Leave the answer out of replies and error messages; `correct` has it once the episode is over."
            return failed(f"the reply to {named} has the answer", remedy, found[0].evidence())
    return passed(f"no reply before the end of {2 * len(played)} episodes has the answer")


def _misfit(subject: Subject) -> Call:
    """Return a call whose arguments are lists, whatever their type."""
    function = subject.players[0].schemas[0]["function"]
    return function["name"], {name: [[]] for name in function["parameters"].get("properties", {})}


@check("leaks.hidden", "warning", "A client that shows metadata or state to its model gives the answer away.")
def hidden(subject: Subject) -> CheckResult:
    played = [each for each in answered(subject) if not _holds(each.question, each.correct)]
    if len(played) < 3:
        return does_not_apply(NO_ANSWERS + " that the question does not hold")
    session, environment = subject.sessions[0], subject.fresh()
    places: dict[str, int] = {"the observation of a reset": 0, "the state": 0}
    for each in played:
        environment.ask(each.seed)
        places["the observation of a reset"] += _holds(_text(session.replies[0].observation), each.correct)
        try:
            places["the state"] += _holds(_text(session.state()), each.correct)
        except BadReply:
            continue
    for place, count in places.items():
        if count == len(played):
            remedy = "Keep the answer in private attributes of the server's class until the episode is over."
            return failed(
                f"{place} has the answer", remedy, CheckEvidence(played[0].seed, (), f"it holds {played[0].correct!r}")
            )
    return passed(f"neither state nor observation has the answer, in {len(played)} episodes")


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


CHECKS = (questions, version, original, text, lengths, in_question, in_replies, hidden)
