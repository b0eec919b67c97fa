"""Episodes as rows of a table and as transcripts: in the report's page, and for `apprentice view`.

In: files of episodes, of evaluations or of rollouts. Out: short rows for filters, and one transcript an episode. In the
page both are JSON within a budget: repeated texts are stored once, and the number of episodes that do not fit is given.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from apprentice.envs.reward import is_right
from apprentice.flows.pages.html import as_script
from apprentice.tasks.analysis.outcomes import outcome_of, why_dropped
from apprentice.tasks.analysis.thought_faults import Check, check_of
from apprentice.tasks.episodes.record import EvaluatedEpisode
from apprentice.tasks.episodes.thinking import THOUGHT

BUDGET = 1_500_000
"""Bytes of episodes in a page of at most 2 MB."""
AROUND = 120
"""Bytes of a transcript beside its texts."""
KEPT, HELD_OUT = "kept", "held out"
Slices = Callable[[int, dict[str, Any]], list[str]]
"""Takes an episode's place and its line; returns the slices that its question belongs to."""


class EpisodeSource(NamedTuple):
    """One file of episodes."""

    model: str
    question_set: str
    """The set of questions: models of the same set are shown side by side."""
    path: Path
    evaluation_texts: frozenset[str] = frozenset()
    """Normalized questions of the evaluation, which the filter drops from rollouts."""
    thoughts: Check | None = None
    """The filter's check of a student that thinks. Without it, one that needs no tokenizer where an episode thinks."""
    slices: Slices = lambda _, line: [
        f"{slice_name} {kind}" for slice_name, kind in json.loads(line.get("traits", "{}")).items()
    ]


class Words(dict[str, int]):
    """Texts by number; each has one number, which it gets when it is asked for first."""

    def __missing__(self, text: str) -> int:
        return self.setdefault(text, len(self))


class Reader:
    """Turns lines of sources into rows; the kinds and the slices that rows name by number grow with it."""

    def __init__(self, sources: list[EpisodeSource]):
        self.sources = sources
        self.kinds, self.slices = Words(), Words()

    def row(self, source: int, number: int, line: bytes) -> list[Any]:
        """Source, place, seed, sample, reward, kind, turns, tokens, slices; of line `number` of a source."""
        read = json.loads(line)
        of = self.sources[source]
        if "place" in read:
            place, sample, turns, kind = (
                read["place"],
                read["sample"],
                read["turns"],
                outcome_of(EvaluatedEpisode.model_validate(read)),
            )
        else:
            place, sample = number, 0
            turns = sum(message["role"] == "assistant" for message in read["messages"])
            thinks = any(message.get(THOUGHT) for message in read["messages"])
            check = of.thoughts or (check_of() if thinks else None)
            kind = why_dropped(read, of.evaluation_texts, check) or KEPT
        slices = [self.slices[each] for each in of.slices(place, read)]
        tokens = read.get("completion_tokens") or None  # older code did not count those of evaluations
        reward = 1.0 if is_right(read["reward"]) else read["reward"]  # the page compares it with 1
        return [source, place, read["seed"], sample, reward, self.kinds[kind], turns, tokens, slices]

    def head(self) -> dict[str, Any]:
        """The words that rows name by number."""
        sources = [[each.model, each.question_set] for each in self.sources]
        return {"sources": sources, "kinds": [*self.kinds], "slices": [*self.slices]}


def transcript(line: bytes) -> dict[str, Any]:
    """What an episode's page shows: messages, the environment's answer, faults; facts: the reward's parts, tokens, …"""
    read = json.loads(line)
    known = ("environment", "attempts", "asked_again", "prompt_tokens", "completion_tokens", "cost_usd", "player")
    causes = [*read.get("causes", []), read.get("broken"), read.get("failed_at"), read.get("cause")]
    parts = {f"reward: {name}": score for name, score in json.loads(read.get("scores", "{}")).items()}
    return {
        "messages": [shown for each in read["messages"] for shown in _shown(each)],
        "correct": read["correct"],
        "faults": [cause for cause in causes if cause],
        "facts": parts | {name: read[name] for name in known if read.get(name)},
    }


def embedded(sources: list[EpisodeSource], first: set[int], budget: int = BUDGET) -> str:
    """The episodes as JSON for a `<script>` element, with every `<` escaped.

    Args:
        first: Places of the first source's questions whose transcripts are kept before others.
        budget: Bytes; rows come before transcripts, and transcripts of short episodes do not wait for long ones.
    """
    reader, texts = Reader(sources), Words()
    rows, lines, left_out, spent = [], [], 0, 0
    for source, of in enumerate(sources):
        with of.path.open("rb") as file:
            for number, line in enumerate(file):
                row = reader.row(source, number, line)
                spent += len(json.dumps(row))
                if spent > budget // 2:
                    left_out += 1
                else:
                    rows.append(row)
                    lines.append(line)
    question_set = sources[0].question_set
    order = sorted(
        range(len(rows)), key=lambda n: not (sources[rows[n][0]].question_set == question_set and rows[n][1] in first)
    )
    transcripts: list[Any] = [None] * len(rows)
    for number in order:
        shown = transcript(lines[number])
        new = sum(len(json.dumps(text)) for text in texts_of(shown) if text not in texts) + AROUND
        if spent + new <= budget:
            spent += new
            transcripts[number] = _numbered(shown, texts)
    data = reader.head() | {"rows": rows, "left_out": left_out, "texts": [*texts], "transcripts": transcripts}
    return as_script(data)


def _shown(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a message's thought, apart from the call that it leads to, and the message."""
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls") or []]
    if message.get(THOUGHT):
        yield {"role": "thought", "content": message[THOUGHT], "calls": []}
    yield {"role": message["role"], "content": message.get("content") or "", "calls": calls}


def texts_of(shown: dict[str, Any]) -> Iterator[str]:
    """What a search looks at: messages, calls, the environment's answer."""
    for message in shown["messages"]:
        yield message["content"]
        yield from message["calls"]
    yield shown["correct"]


def _numbered(shown: dict[str, Any], texts: Words) -> list[Any]:
    """A transcript whose texts are numbers: messages as role, content and calls, then correct, faults, facts."""
    messages = [
        [each["role"], texts[each["content"]], *(texts[call] for call in each["calls"])] for each in shown["messages"]
    ]
    return [messages, texts[shown["correct"]], shown["faults"], shown["facts"]]
