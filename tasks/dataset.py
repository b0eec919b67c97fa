"""Takes conversations that exist in place of a collection, once the environment has confirmed them.

In: a file, a folder or a dataset of the Hub, the environment, its questions. Out: `Rollouts`: rollouts.jsonl, and
verification.json (counts by cause; the place, field and cause of each row that is left out).
Why: a row may be forged, or of another prompt. So only an assistant's turns are taken from it: the question's seed is
found by the row's text, the calls are played again, and prompt, replies and reward are the environment's own. So is a
text at the end where the environment scores one (`say`). A row that cannot be confirmed names its field that is wrong.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.envs.pool import EnvironmentPool
from apprentice.envs.reward import ROUNDING, is_right
from apprentice.envs.tools import are_tools_of, tools_text
from apprentice.envs.wire.metrics import count
from apprentice.envs.wire.session import Refused, SessionLost
from apprentice.tasks.artifacts.foreign.rows import part_of_rows, rows_of
from apprentice.tasks.artifacts.types import COUNTED, Questions, Rollouts
from apprentice.tasks.engine.limits import leases
from apprentice.tasks.engine.stage import Drawn, StageContext, stage
from apprentice.tasks.episodes.episode import Episode, problems, prompt, turn_of
from apprentice.tasks.episodes.notations import arguments_in, check_loss, check_texts, without_thoughts
from apprentice.tasks.episodes.record import Message, Record, ends_in_text
from apprentice.tasks.episodes.texts import KnownTexts, read_json, same_text, stands_in
from apprentice.tasks.episodes.thinking import THOUGHT
from apprentice.tasks.files.question_lists import read_questions
from apprentice.tasks.formats.conversations import Conversation, ForeignTurn, NotAConversation, conversation_of
from apprentice.tasks.formats.padding import check_characters, without_padding
from apprentice.tasks.formats.served_log import conversations
from apprentice.tasks.judgement.contamination import held_out_texts
from apprentice.tasks.question_texts import ask
from apprentice.tasks.reporting import announce
from apprentice.tasks.reporting.errors import Stop, as_stop
from apprentice.tasks.rescore import act_again, difference, in_order, is_same
from apprentice.tasks.settings.spec import TRAINED_ON, Column, DatasetSpec

UNKNOWN = "no seed is known that asks this question"


class KnownQuestions:
    """The questions that rows may answer.

    Args:
        seeds: The seed of each question by its text, normalized.
        evaluation_texts: The questions of the evaluation, normalized.
    """

    def __init__(self, seeds: dict[str, int], evaluation_texts: set[str]):
        self.evaluation_texts = evaluation_texts
        self._seeds = seeds
        self._questions = KnownTexts(seeds)
        self._known_texts = KnownTexts(sorted(evaluation_texts))

    def seed_of(self, text: str) -> int | None:
        """The seed of the question that equals a text, or of the longest one inside it."""
        within = text if text in self._seeds else self._questions.longest_in(text)
        return None if within is None else self._seeds[within]

    def is_evaluated(self, text: str) -> bool:
        """Whether a text holds a question of the evaluation."""
        return self._known_texts.longest_in(text) is not None


class Checked(NamedTuple):
    """What the environment made of a row."""

    record: Record | None
    field: str = ""
    """The field that is wrong, where the row is refused or not verified."""
    cause: str = ""
    notes: tuple[str, ...] = ()
    """What was replaced by the environment's own, and where its reward is another one."""
    by_person: bool = False
    """Whether a person has judged a row that is not verified."""


class Verifier:
    """Has the environment confirm one row. Called in several threads at once."""

    def __init__(
        self, environment: EnvironmentSpec, known: KnownQuestions, columns: dict[Column, str], thoughts: bool = False
    ):
        self._environment = environment
        self._thoughts = thoughts
        self._known = known
        self._columns = columns
        self._parts = environment.make().parts()
        self._players = [environment.played_by(part) for part in self._parts]

    def __call__(self, instance: Player, row: Any) -> Checked:
        """Raises SessionLost."""
        try:
            claim = conversation_of(row, self._columns).thinking(self._thoughts)
            check_characters(claim)
            known = map(_name, self._players)
            if claim.environment and _name(claim.environment) not in known:  # the replay tells the version
                cause = f"it is {claim.environment!r}, not {' or '.join(map(repr, self._players))}"
                raise NotAConversation("environment", cause)
            if claim.about.get("failed_at"):  # it has no reward, and nobody learns from it
                seed = claim.seed or 0
                return Checked(self._record(seed, instance.part(seed), row["messages"], None, claim))
            question, _ = _split(claim.messages)
            if same_text(question) in self._known.evaluation_texts:
                raise NotAConversation("messages", "its question stands in the evaluation set")
            return self._played(instance, claim, question) or self._unverified(claim, question)
        except NotAConversation as wrong:
            return Checked(None, wrong.field, wrong.cause)
        except ValidationError as error:  # of the other fields of a rollout
            first = error.errors(include_url=False)[0]
            return Checked(None, ".".join(map(str, first["loc"])), first["msg"])

    def _played(self, instance: Player, claim: Conversation, question: str) -> Checked | None:
        """The row as the environment confirms it; None where no known seed asks its question."""
        text = same_text(question)
        for seed in dict.fromkeys((claim.seed, self._known.seed_of(text))):
            if seed is None:
                continue
            try:
                episode = Episode(instance, seed)
            except Refused:  # a seed that this environment does not have
                continue
            own_text = same_text(episode.question)
            if not stands_in(own_text, text):
                continue
            if own_text in self._known.evaluation_texts:
                raise NotAConversation("messages", "its question stands in the evaluation set")
            part = episode.player
            acts, notes = _fitting(part, claim)
            then = [*episode.messages, *_without_last_replies(acts)]
            act_again(episode, then)
            if episode.done and len(then) == len(episode.messages) + 1 and ends_in_text(then):
                then, notes = then[:-1], [*notes, "a closing turn is left out"]
            elif part.takes_text and ends_in_text(then):
                then = [*episode.messages[:2], *acts]  # a last text depends on every reply before it
            if differs := episode.broken or difference(episode, then):
                raise NotAConversation("messages", differs)
            if claim.reward is not None and not is_same(claim.reward, episode.reward):
                notes.append("the environment gives another reward")
            check_loss(episode.messages)
            record = self._record(seed, part, episode.messages, episode.reward, claim)
            return Checked(record.model_copy(update={"correct": part.correct or ""}), notes=tuple(notes))
        return None

    def _unverified(self, claim: Conversation, question: str) -> Checked:
        """The row as it claims to be, with the environment's prompt. Raises NotAConversation."""
        text = same_text(question)
        if self._known.is_evaluated(text):
            raise NotAConversation("messages", "its question stands in the evaluation set")
        part = next(
            (part for part in self._parts if _name(self._environment.played_by(part)) == _name(claim.environment)),
            self._parts[0] if len(self._parts) == 1 else None,
        )
        if part is None:
            raise NotAConversation("environment", f"which one of the mixture is not known, and {UNKNOWN}")
        acts, _ = _fitting(part, claim)
        if claim.waits and claim.reward is None:
            raise NotAConversation("right", "it waits for a verdict: set right to true or false")
        low, high = part.reward_range
        reward = 1.0 if claim.reward is None else claim.reward
        if part.environment.bounded and not low - ROUNDING <= reward <= high + ROUNDING:
            raise NotAConversation("reward", f"{reward:g} is not from {low:g} to {high:g}")
        acts = acts[:-1] if len(acts) > 1 and ends_in_text(acts) and not part.takes_text else acts
        said = [turn | {"content": turn["content"] or ""} for turn in acts]
        check_texts([*claim.said(), *arguments_in(said)], part.schemas, claim.tools)
        check_loss(said)
        record = self._record(0, part, [*prompt(part, question), *said], reward, claim)
        if claim.seed is None:
            return Checked(record, "messages", UNKNOWN, by_person=claim.waits)
        return Checked(record, "seed", f"seed {claim.seed} asks another question, and {UNKNOWN}")

    def _record(
        self, seed: int, part: Player, messages: list[Message], reward: float | None, claim: Conversation
    ) -> Record:
        environment, tools = self._environment.played_by(part), tools_text(part.tools)
        own = {"seed": seed, "environment": environment, "messages": messages, "tools": tools, "reward": reward}
        return Record.model_validate(claim.about | own | {"takes_text": part.takes_text})


def _name(environment: str) -> str:
    return environment.rpartition(" ")[0] or environment


def _split(messages: list[ForeignTurn]) -> tuple[str, list[Message]]:
    """The text before the first turn of an assistant, and from there on the turns with a reply to each call; the
    content of a reply is None where the row has none."""
    first = next((at for at, turn in enumerate(messages) if turn.role == "assistant"), None)
    if first is None:
        raise NotAConversation("messages", "no turn of an assistant")
    texts = [turn.content or "" for turn in messages[:first] if turn.role == "user"]
    if not texts:
        raise NotAConversation("messages", "no question of a user")
    turns: list[Message] = []
    waiting: list[Message] = []
    for at, turn in enumerate(messages[first:], first):
        if turn.role == "assistant":
            turns.append(turn.as_message())
            waiting = [
                {"role": "tool", "name": call.name, "content": None} | ({"tool_call_id": call.id} if call.id else {})
                for call in turn.tool_calls
            ]
            turns += waiting
        elif turn.role == "tool":
            named = [each for each in waiting if turn.tool_call_id in (None, each.get("tool_call_id"))]
            named = named or [each for each in waiting if "tool_call_id" not in each]
            if not named:
                raise NotAConversation(f"messages.{at}", "a tool's reply to no call before it")
            named[0]["content"] = turn.content
            waiting = [each for each in waiting if each is not named[0]]
        else:
            raise NotAConversation(f"messages.{at}", f"a message of a {turn.role} after the first turn")
    return "\n".join(texts), turns


def _without_last_replies(turns: list[Message]) -> list[Message]:
    """The turns without the content of the replies after the last call: no action can depend on them."""
    last = max((at for at, turn in enumerate(turns) if turn.get("tool_calls")), default=0)
    return turns[:last] + [turn | {"content": None} if turn["role"] == "tool" else turn for turn in turns[last:]]


def _fitting(part: Player, claim: Conversation) -> tuple[list[Message], list[str]]:
    """The turns as calls of the environment's tools, and the changes for that.

    Raises NotAConversation for a call that does not fit, or is in a notation that is not read. Where the row has the
    environment's own tools, a call that does not fit is the player's mistake and stays.
    """
    tools = part.schemas
    notes = []
    system = next((turn.content for turn in claim.messages if turn.role == "system"), None)
    if system is not None and system != part.instructions:
        notes.append("the system prompt is replaced by the environment's")
    own = are_tools_of(part.tools, claim.tools)
    if claim.tools and not own:
        notes.append("the tools' schemas are replaced by the environment's")
    messages = [without_padding(turn, tools, own) for turn in claim.messages]
    _, turns = _split(messages)
    calls = any(turn.get("tool_calls") for turn in turns)
    if not (calls and claim.environment):  # a text of our own players beside their calls is as they said it
        check_texts(claim.said(), tools, claim.tools)
    if not calls and not part.takes_text:
        turns, notes = _as_call(turns, tools), [*notes, "an answer in words is taken as the call"]
    for at, turn in enumerate(messages):
        for number, call in enumerate([] if own else turn.tool_calls):
            if found := problems({"tool_calls": [call.as_message()]}, tools):
                called = f"{call.name}({call.arguments[:80]}); the environment takes {_signatures(tools)}"
                raise NotAConversation(f"messages.{at}.tool_calls.{number}", f"{found[0]}: {called}")
    return turns, notes


def _as_call(turns: list[Message], tools: list[dict[str, Any]]) -> list[Message]:
    """A single answer in words as the call of the only tool, where that takes one argument."""
    function = tools[0]["function"]
    taken = function["parameters"]["properties"]
    text = without_thoughts(str(turns[0].get("content") or "")).strip()
    if len(turns) > 1 or len(tools) > 1 or len(taken) != 1 or not text:
        raise NotAConversation("messages", f"no call of a tool; the environment takes {_signatures(tools)}")
    ((argument, schema),) = taken.items()
    value = text if schema.get("type") == "string" else read_json(text, text)
    arguments = json.dumps({argument: value}, ensure_ascii=False)
    kept = {name: turns[0][name] for name in ("weight", THOUGHT) if name in turns[0]}
    return [turn_of(function["name"], arguments) | kept, {"role": "tool", "name": function["name"], "content": None}]


def _signatures(tools: Iterable[dict[str, Any]]) -> str:
    functions = [tool["function"] for tool in tools]
    return ", ".join(f"{each['name']}({', '.join(each['parameters']['properties'])})" for each in functions)


VERIFIED = "verified by the environment"
REPORT = "verification.json"
LONGEST = 160
"""Characters of a cause in the table; verification.json has all."""


@stage(produces=Rollouts, version=2, title="Rollouts of {spec.path}", drawn=Drawn("Rollouts", "episodes", "episodes"))
def take_rollouts(
    context: StageContext, spec: DatasetSpec, environment: EnvironmentSpec, questions: Questions, unverified: str
) -> dict[str, Any]:
    """Publishes the rows that the environment confirms. Raises Stop when none is left, or the environment is lost.

    Args:
        unverified: "keep" to take rows at their word whose question no known seed asks; "drop" to leave them out.
    """
    known = _known(context, spec, environment, questions)
    server = context.run.servers.environment(environment.name)
    keeps = unverified == "keep"
    records: dict[bytes, Record] = {}
    twice: list[str] = []
    part = part_of_rows(spec)
    report = RowReport(f"{spec.path}{part.said}", keeps)
    with (
        as_stop(SessionLost, "The environment is out of reach: {}.", "Check that it runs, then run again."),
        EnvironmentPool(environment, server, say=announce.warn, lease=leases) as pool,
    ):
        verify = Verifier(environment, known, spec.columns, spec.thoughts)
        checked = in_order(pool, lambda instance, row: verify(instance, row.data), conversations(rows_of(spec, part)))
        for number, (row, found) in enumerate(checked, 1):
            count("episodes")
            report.add(row.where, found)
            record = found.record
            if record is None or (found.cause and not keeps):
                continue
            if found.cause:  # no seed of the environment
                judged_by = "person" if found.by_person else "no"
                record = record.model_copy(update={"seed": -number, "verified": judged_by})
            elif keeps:
                record = record.model_copy(update={"verified": "yes"})
            if (line := record.line()) in records:
                twice.append(row.where)
            records[line] = record
    report.write(context.out)
    show_report(context.out)
    if not records:
        raise report.nothing()
    if twice:
        announce.warn(f"{len(twice)} rows stand in {spec.path} twice and count once, such as {twice[0]}.")
    (context.out / "rollouts.jsonl").write_bytes(b"".join(records))
    totals = {name: sum(getattr(record, name) for record in records.values()) for name in COUNTED}
    return {"episodes": len(records), "failed": sum(bool(record.failed_at) for record in records.values()), **totals}


def _known(
    context: StageContext, spec: DatasetSpec, environment: EnvironmentSpec, questions: Questions
) -> KnownQuestions:
    """The questions of the recipe's windows and of the given seeds; the collect window's come first."""
    folder = context.fetch(questions)
    evaluation_texts = held_out_texts(folder)
    seeds: dict[str, int] = {}
    given = ask(context, environment, spec.seeds.seeds(), "collect.dataset.seeds") if spec.seeds else {}
    for purpose in TRAINED_ON:
        for row in read_questions(folder, purpose):
            seeds.setdefault(same_text(row["question"]), row["seed"])
    for seed, text in sorted(given.items()):
        seeds.setdefault(same_text(text), seed)
    return KnownQuestions(seeds, evaluation_texts)


def show_report(folder: Path) -> list[dict[str, str]]:
    """Show the table of the rollouts in a folder; return the rows that were left out, none for rollouts of others."""
    if not (folder / REPORT).exists():
        return []
    report = json.loads((folder / REPORT).read_text())
    if report["counts"]:
        announce.table("taken-rows", report["title"], report["counts"])
    return report["left_out"]


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


class RowReport:
    """The rows of one dataset.

    Args:
        path: The dataset, as the recipe names it.
        keeps: Whether rows that could not be verified are taken at their word.

    Attributes:
        left_out: Place, field and cause of each row that is not taken, in the rows' order.
    """

    def __init__(self, path: str, keeps: bool):
        self.left_out: list[dict[str, str]] = []
        self._path = path
        self._keeps = keeps
        self._rows = 0
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    def add(self, where: str, found: Checked) -> None:
        """Count a row."""
        record, field, cause = found.record, _printable(found.field), _printable(found.cause)
        if record is None:
            kind, _, example = cause.partition(": ")
            self._add(f"refused: {kind[:LONGEST]}", f"{where}: {field}" + (f", {example[:LONGEST]}" if example else ""))
        elif found.by_person and self._keeps:
            self._add(f"judged by a person: {'right' if is_right(record.reward) else 'wrong'}", where)
        elif cause:
            self._add(f"not verified, {'kept' if self._keeps else 'dropped'}: {cause}", f"{where}: {field}")
        elif record.failed_at:
            self._add("failed when they were collected", where)
        else:
            self._add(VERIFIED, where)
            self._add("of these with reward 1.0" if is_right(record.reward) else "of these with a lower reward", where)
            for note in found.notes:
                self._add(f"of these: {note}", where)
        if record is None or (cause and not self._keeps):
            self.left_out.append({"where": where, "field": field, "cause": cause, "verified": "no"})
        self._rows += 1

    def write(self, out: Path) -> None:
        """Write verification.json: the title, a line a cause with its first row, the number of other rows."""
        rows = [
            {"rows": what, "count": number, "such as": self._examples[what]} for what, number in self._counts.items()
        ]
        report = {"title": f"{self._rows} rows of {self._path}", "counts": rows, "left_out": self.left_out}
        (out / REPORT).write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n")

    def nothing(self) -> Stop:
        """Return the error for a dataset of which no row is taken."""
        if not self._rows:
            return Stop(f"{self._path} holds no rollouts: its files have no row.", "Check collect.dataset.path.")
        first = self.left_out[0]
        causes = ", ".join(f"{number} × {what}" for what, number in self._counts.most_common(3))
        return Stop(
            f"None of the {self._rows} rows of {self._path} is taken ({causes}); {first['where']}, {first['field']}: "
            f"{first['cause']}.",
            "Take rows of this environment, give the seeds of their questions (collect.dataset.seeds), name their "
            "columns (collect.dataset.columns), set collect.unverified=keep to take them at their word, or "
            "collect.unverified=relabel to have the recipe's teacher judge them.",
        )

    def _add(self, what: str, where: str) -> None:
        self._counts[what] += 1
        self._examples.setdefault(what, where)
