"""Kinds: of episodes by their outcome, and of questions by their tags.

The outcome of an episode: in an evaluation right, or the kind of its failure; in rollouts kept, or why dropped.

Accuracy by kind of question, the episodes most worth reading, and how the teacher compares with the scorer. In:
evaluated episodes of several models on the same questions; the tags that the environment gives a question. Out: one
row per kind, and per question of a training its kind.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path
from typing import Any

from apprentice.envs.catalog import EnvironmentSpec
from apprentice.envs.player import Player
from apprentice.envs.reward import is_right
from apprentice.tasks.analysis.thought_faults import MARK, Check
from apprentice.tasks.episodes.episode import last_text, problems
from apprentice.tasks.episodes.record import EvaluatedEpisode, arguments_of, ends_in_text, same_text
from apprentice.tasks.episodes.thinking import THOUGHT
from apprentice.tasks.reporting.errors import Stop
from apprentice.tasks.statistics.intervals import clustered_interval
from apprentice.tasks.statistics.rates import answers_of

THOUGHTS = r"</?(?:think|thinking|thought|reasoning)>|<\|channel\|>"
"""What no text may hold, a last one neither."""
LEAKED = re.compile(rf"{THOUGHTS}|{MARK.pattern}", re.IGNORECASE)
"""What no text beside a thought may hold."""
REASONING = re.compile(
    rf"{THOUGHTS}|step by step|\blet(?:'s| me| us) (?:think|see|figure)"
    r"|\bI (?:need|should|have) to\b|^\s*(?:okay|hmm|wait|first)\b",
    re.IGNORECASE,
)
"""What a text beside a call holds where it is reasoning."""
RIGHT = "right"
BROKE = "environment failed"
CELLS = {"both": (True, True), "lost": (True, False), "won": (False, True), "neither": (False, False)}
"""By name, whether the one model is right, and the other."""


def outcome_of(record: EvaluatedEpisode) -> str:
    """Right, or why not: the environment, the answer, or a fault of the calls.

    In a game of several turns the last one decides: a model that made calls and then none broke off, and a fault counts
    only where every turn had one.
    """
    if record.is_right:
        return RIGHT
    if record.broken:
        return BROKE
    if after := record.broke_off_after:
        return f"broke off after {after}"
    if record.causes and len(record.causes) >= record.turns:
        return record.causes[0]
    return "partly right" if record.score > 0 else "no answer in its turns" if record.unfinished else "wrong answer"


def failures_by_kind(episodes: dict[str, list[EvaluatedEpisode]]) -> list[dict[str, Any]]:
    """One row per kind of failure, the last model's most frequent first: the number of episodes of each model."""
    counts = {name: Counter(map(outcome_of, records)) for name, records in episodes.items()}
    kinds = {kind: [counts[name][kind] for name in reversed(counts)] for name in counts for kind in counts[name]}
    kinds.pop(RIGHT, None)
    ordered = sorted(kinds, key=lambda kind: kinds[kind], reverse=True)
    return [{"kind": kind, "models": {name: counts[name][kind] for name in counts}} for kind in ordered]


def both_ways(episodes: dict[str, list[EvaluatedEpisode]], pairs: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """For each pair of models, on how many episodes of the same place both, one or none of them is right."""
    found = []
    for one, other in pairs:
        after = {record.place: record.is_right for record in episodes[other]}
        cells = Counter((record.is_right, after[record.place]) for record in episodes[one])
        found.append({"from": one, "to": other} | {name: cells[cell] for name, cell in CELLS.items()})
    return found


def why_dropped(episode: dict[str, Any], evaluation_texts: Set[str], thoughts: Check | None = None) -> str | None:
    """The first reason to drop an episode, or None to keep it.

    Args:
        thoughts: What is wrong with the thought of a turn, for a student that thinks. Without it no turn may reason.
    """
    if episode["failed_at"]:
        return f"failed at the {episode['failed_at']}"
    if not is_right(episode["reward"]):
        return "wrong answer"
    tools = json.loads(episode["tools"])
    turns = [message for message in episode["messages"] if message["role"] == "assistant"]
    for turn in turns:
        ends = turn is turns[-1] and bool(episode.get("takes_text") and last_text(turn, tools))
        if found := [] if ends else problems(turn, tools):
            return found[0]
        text = turn.get("content") or ""
        if thoughts is not None:
            if cause := thoughts(turn, tools):
                return cause
            leak = LEAKED.search(text)
        else:
            leak = re.search(THOUGHTS, text, re.IGNORECASE) if ends else REASONING.search(text)
        if leak or (thoughts is None and turn.get("reasoning_content")):
            return "leaked reasoning text"
    if same_text(episode["messages"][1]["content"]) in evaluation_texts:
        return "stands in the evaluation set"
    return None


MOST_KINDS = 8
"""Maximum kinds of one slice name with a row of their own; rarer kinds are combined."""
OTHERS = "others"
"""Those combined."""
FAILURES = 10
SAMPLES = 4

Episodes = dict[str, list[EvaluatedEpisode]]


def slices(episodes: Episodes) -> list[dict[str, Any]]:
    """One row per slice, a name and a kind: the number of questions, and the accuracy with its interval of each model
    that was asked all of them.

    The names are the environment's (terms, digits, sign, …), and the number of turns of the last model.
    """
    most = max(map(len, episodes.values()))
    values = {name: answers_of(records) for name, records in episodes.items() if len(records) == most}
    rows = []
    for (slice_name, kind), places in places_of_slices(episodes).items():
        models = {}
        for name, by_question in values.items():
            right = [by_question[place] for place in places]
            accuracy = sum(sum(samples) / len(samples) for samples in right) / len(right)
            models[name] = {"accuracy": accuracy, "ci": clustered_interval(right)}
        rows.append({"trait": slice_name, "kind": kind, "n": len(places), "models": models})
    return rows


def places_of_slices(episodes: Episodes) -> dict[tuple[str, str], list[int]]:
    """The questions of each slice (its name and kind), by the place of their first sample."""
    question_slices = _slices_that_differ(list(episodes.values())[-1])
    return {
        (slice_name, kind): places
        for slice_name, kinds in question_slices.items()
        for kind, places in grouped(kinds).items()
    }


def _slices_that_differ(records: list[EvaluatedEpisode]) -> dict[str, dict[int, int | str]]:
    """The kind of every question by each slice name that has several kinds and does not duplicate another. `turns` is
    one only where each question has one sample."""
    several = any(record.sample for record in records)
    found: dict[str, dict[int, int | str]] = {}
    for record in records:
        if record.sample == 0:
            turns = {} if several else {"turns": record.turns}
            for slice_name, kind in (json.loads(record.traits) | turns).items():
                found.setdefault(slice_name, {})[record.place] = kind
    different: dict[str, dict[int, int | str]] = {}
    for slice_name, kinds in found.items():
        if len(set(kinds.values())) > 1 and kinds not in different.values():  # a word is as long as its reverse
            different[slice_name] = kinds
    return different


def grouped(kinds: dict[int, int | str]) -> dict[str, list[int]]:
    """The places of each kind, in the order of the kinds, with the rarest ones combined as "others"."""
    groups: dict[int | str, list[int]] = {}
    for place, kind in kinds.items():
        groups.setdefault(kind, []).append(place)
    frequent = sorted(groups, key=lambda kind: -len(groups[kind]))[:MOST_KINDS]
    order: Callable[[int | str], Any] = lambda kind: (isinstance(kind, str), kind)  # noqa: E731
    named = {str(kind): groups[kind] for kind in sorted(frequent, key=order)}
    rest = [place for kind, places in groups.items() if kind not in frequent for place in places]
    return named | ({OTHERS: rest} if rest else {})


def worst(episodes: Episodes) -> list[EvaluatedEpisode]:
    """The last model's ten worst failures: first those that an earlier model got right, then by lowest reward, then
    those without a valid call."""
    *earlier, last = episodes.values()
    once_right = {record.place for records in earlier for record in records if record.is_right}
    failed = [record for record in last if not record.is_right]
    return sorted(failed, key=lambda r: (r.place not in once_right, r.score, r.valid, r.place))[:FAILURES]


def side_by_side(episodes: Episodes) -> list[dict[str, Any]]:
    """Questions on which the models differ, with each model's answer; filled up with the first questions."""
    places = [record.place for record in next(iter(episodes.values())) if record.sample == 0]
    by_place = {name: {record.place: record for record in records} for name, records in episodes.items()}
    differ = {place for place in places if len({records[place].is_right for records in by_place.values()}) > 1}
    rows = []
    for place in sorted(sorted(places, key=lambda place: (place not in differ, place))[:SAMPLES]):
        played = {name: records[place] for name, records in by_place.items()}
        first = next(iter(played.values()))
        correct = next((record.correct for record in played.values() if record.correct), "")
        answers = {name: {"said": text_of_turns(record), "reward": record.reward} for name, record in played.items()}
        rows.append({"seed": first.seed, "question": first.question, "correct": correct, "models": answers})
    return rows


def text_of_turns(record: EvaluatedEpisode, most: int | None = None) -> str:
    """The model's messages in an episode: calls as `tool(arguments)`, turns separated by arrows.

    Args:
        most: Characters of a thought, whose rest is left out.
    """
    return " → ".join(_line(message, most) for message in record.messages if message["role"] == "assistant")


def _line(message: dict[str, Any], most: int | None = None) -> str:
    """One message of a model, likewise."""
    thought = message.get(THOUGHT) or ""
    if most is not None and len(thought) > most:
        thought = f"{thought[:most]}…"
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls") or []]
    return " ".join(filter(None, [thought, message.get("content"), *calls])).strip()


OF_PARTS = ("environment", "dataset")
"""The slice names that tell the parts of a mixture, or of a composite dataset."""
QUESTIONS, RATE = "curriculum/asked/", "curriculum/rate/"
"""GRPO's metrics by kind: questions asked in a step, and the success rate as it is known after it."""
NO_SLICE = "others"
"""The kind of a question that has none of the slices."""


def kinds_of(environment: EnvironmentSpec, rows: Iterable[dict[str, Any]], by: Sequence[str]) -> dict[int, str]:
    """The slice of each question, by its seed. Raises Stop if they are all of one slice, or a tag is unknown."""
    instance = environment.make()
    question_slices = {row["seed"]: _slices_of_question(instance, row["seed"], row["question"], by) for row in rows}
    known = sorted({name for each in question_slices.values() for name in each})
    for name in by:
        if name not in known:
            raise Stop(
                f"grpo.curriculum.by: no question of {environment} has the tag {name!r}.",
                f"Take one of these: {', '.join(known)}." if known else "This environment has no tags.",
            )
    kinds = {seed: kind_of(each, by) for seed, each in question_slices.items()}
    if len(set(kinds.values())) < 2:
        raise Stop(
            f"grpo.curriculum has nothing to choose: all questions are of one slice, {next(iter(kinds.values()))}.",
            f"Set grpo.curriculum.by to a tag that differs between them ({', '.join(known)}), set levels "
            "(grpo.auto_difficulty), or leave grpo.curriculum out.",
        )
    return kinds


def _slices_of_question(instance: Player, seed: int, question: str, by: Sequence[str]) -> dict[str, int | str]:
    """A mixture's label alone where no other slice is asked for, since others may take seconds to make."""
    label = instance.part(seed).label
    return {"environment": label} if label and not by else instance.slices(seed, question)


def kind_of(question_slices: dict[str, int | str], by: Sequence[str]) -> str:
    """Such as "word_len 3", or the label of a mixture's part."""
    names = [name for name in by or OF_PARTS if name in question_slices]
    named = [str(question_slices[name]) if name in OF_PARTS else f"{name} {question_slices[name]}" for name in names]
    return ", ".join(named) or NO_SLICE


def right_and_wrong(records: Iterable[EvaluatedEpisode], by: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The number of right and of wrong answers to each kind; episodes on which the environment failed count as none."""
    counts: dict[str, tuple[int, int]] = {}
    for record in records:
        if not record.broken:
            kind = kind_of(json.loads(record.traits), by)
            right, wrong = counts.get(kind, (0, 0))
            counts[kind] = right + record.is_right, wrong + (not record.is_right)
    return counts


def kinds_over_time(log: Iterable[dict[str, Any]]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """By kind `asked`, its share of a step's questions, and `rate`, its success rate, each as (step, value). Empty
    without a curriculum."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for entry in log:
        counts = {name.removeprefix(QUESTIONS): value for name, value in entry.items() if name.startswith(QUESTIONS)}
        for kind, count in counts.items():
            of_kind = found.setdefault(kind, {"asked": [], "rate": []})
            of_kind["asked"].append((entry["step"], count / sum(counts.values())))
            of_kind["rate"].append((entry["step"], entry[RATE + kind]))
    return dict(sorted(found.items()))


def calibration(rollouts: Path, environment: EnvironmentSpec) -> dict[str, Any]:
    """Measures the teacher's accuracy. Episodes without a valid call count as wrong; those lost to infrastructure are
    counted separately."""
    instance = environment.make()
    lost = 0
    right: dict[int, float] = {}
    questions: dict[int, str | int] = {}
    kinds: dict[str, dict[int, int | str]] = {}
    compared = {"same text, right": 0, "same text, not right": 0, "other text, right": 0, "other text, not right": 0}
    with (rollouts / "rollouts.jsonl").open() as lines:
        for place, row in enumerate(map(json.loads, lines)):
            if not _counts(row):
                lost += 1
                continue
            right[place] = float(is_right(row["reward"]))
            questions[place] = place
            if len(row["messages"]) > 1:
                questions[place] = same_text(row["messages"][1]["content"])
                for slice_name, kind in instance.slices(row["seed"], row["messages"][1]["content"]).items():
                    kinds.setdefault(slice_name, {})[place] = kind
            answer = _handed_in(row)
            if row["correct"] and answer is not None:
                same = "same text" if answer.strip() == row["correct"].strip() else "other text"
                compared[f"{same}, {'right' if right[place] else 'not right'}"] += 1
    return {
        "episodes": len(right),
        "lost": lost,
        **_rate(right, questions, right),
        "compared": compared,
        "slices": [
            {"trait": slice_name, "kind": kind, "n": len(places), **_rate(right, questions, places)}
            for slice_name, by_place in kinds.items()
            for kind, places in grouped(by_place).items()
            if len(places) < len(right)
        ],
    }


def slices_of(row: dict[str, Any], player: Player, measured: list[dict[str, Any]]) -> list[str]:
    """The slices among those that `calibration` measured to which one of its episodes belongs, as "name kind"."""
    if not _counts(row) or len(row["messages"]) < 2:
        return []
    shown = {(each["trait"], each["kind"]) for each in measured}
    question_slices = player.slices(row["seed"], row["messages"][1]["content"])
    named = (
        (slice_name, str(kind) if (slice_name, str(kind)) in shown else OTHERS)
        for slice_name, kind in question_slices.items()
    )
    return [f"{slice_name} {kind}" for slice_name, kind in named if (slice_name, kind) in shown]


def _counts(row: dict[str, Any]) -> bool:
    """Whether an episode says something of the teacher, and not of infrastructure alone."""
    return row["failed_at"] in ("", "teacher")


def _rate(right: dict[int, float], questions: dict[int, str | int], places: Iterable[int]) -> dict[str, Any]:
    """The share of some episodes that is right, with its interval: a question may be asked under several seeds."""
    by_question: dict[str | int, list[float]] = {}
    for place in places:
        by_question.setdefault(questions[place], []).append(right[place])
    answers = [each for group in by_question.values() for each in group]
    return {"accuracy": sum(answers) / len(answers), "ci": clustered_interval(by_question.values())}


def _handed_in(row: dict[str, Any]) -> str | None:
    """The only argument of the last call, or the last text where that is scored; None without one."""
    messages = row["messages"]
    if row.get("takes_text") and ends_in_text(messages):
        return messages[-1]["content"]
    calls = [call for message in messages for call in message.get("tool_calls") or []]
    given = arguments_of(calls[-1]) if calls else None
    return str(next(iter(given.values()))) if isinstance(given, dict) and len(given) == 1 else None
