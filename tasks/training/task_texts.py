"""A task's texts as token ids: what a prediction of time computes with, and what its answers need room for.

In: questions with the calls that are known, or kept episodes. Out: prompts, training rows, what of them a model writes.
"""

import json
import math
from collections.abc import Iterator, Sequence
from itertools import cycle, groupby, islice
from typing import Any, NamedTuple

from apprentice.envs.player import Player
from apprentice.tasks.episodes.episode import Call, prompt, turn_of
from apprentice.tasks.episodes.example import example_episode
from apprentice.tasks.episodes.rendering import IGNORED, labelled, prompt_ids, row_of, training_row
from apprentice.tasks.episodes.thinking import THOUGHT, thinking_of

FAR = 1.25
"""How much longer than the texts that a prediction assumed those may be that it is made for."""


class Texts(NamedTuple):
    """A task's texts as token ids, one of each for every question."""

    prompts: list[list[int]]
    rows: list[dict[str, list[int]]]
    """Training rows: `input_ids` and `labels`."""
    thought: int = 0
    """The most tokens of a thought; 0 for a student that answers at once."""
    tools: Sequence[dict[str, Any]] = ()

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        environment: Player,
        questions: list[str],
        calls: Sequence[Call],
        thoughts: Sequence[str] = (),
    ) -> "Texts":
        """Those of questions that are answered by one call each.

        Args:
            calls: The right one of each question; without any, each is an example of the environment's first tool.
            thoughts: What leads to each call, for a student that thinks; without any, each has half of its budget.
        """
        tools = environment.schemas
        *_, example, reply = example_episode(tools[0]["function"])
        turns = [turn_of(*call) for call in calls] or [example] * len(questions)
        if thinking := thinking_of(tokenizer):
            half = tokenizer.decode(tokenizer.encode(" 7") * (thinking.max_tokens // 4))  # of two tokens each
            known = list(thoughts) or [half] * len(turns)
            turns = [turn | {THOUGHT: thought} for turn, thought in zip(turns, known, strict=True)]
        chats = [prompt(environment, question) for question in questions]
        whole = (training_row([*each, turn, reply], tools) for each, turn in zip(chats, turns, strict=True))
        prompts = [prompt_ids(tokenizer, each, tools) for each in chats]
        return cls(prompts, [labelled(tokenizer, row) for row in whole], thinking.max_tokens if thinking else 0, tools)

    @classmethod
    def of_rows(cls, tokenizer: Any, kept: Sequence[dict[str, Any]], thought: int) -> "Texts":
        """Those of kept episodes, of one turn or several.

        Args:
            thought: The most tokens of a thought.
        """
        rows = [labelled(tokenizer, row_of(episode)) for episode in kept]
        prompts = [row["input_ids"][: next(_written(row))[0]] for row in rows]
        return cls(prompts, rows, thought, json.loads(kept[0]["tools"]))

    @property
    def turn(self) -> list[int]:
        """What the model writes in an episode, of median length, without a closing turn."""
        return _joined(*self._median)

    @property
    def rest(self) -> list[int]:
        """The same with the replies between its turns."""
        ids, turns = self._median
        return ids[turns[0][0] : turns[-1][1]]

    @property
    def answers(self) -> list[list[int]]:
        """What the model writes in each episode, without a closing turn."""
        return [_joined(*each) for each in self._acts]

    @property
    def turns(self) -> int:
        return len(self._median[1])

    @property
    def written(self) -> list[tuple[int, int, int]]:
        """Of each row the tokens of its longest turn, those that follow its prompt, and its turns; none of them with a
        closing turn."""
        acts = [turns for _, turns in self._acts]
        return [(max(after - first for first, after in each), each[-1][1] - each[0][0], len(each)) for each in acts]

    @property
    def _median(self) -> tuple[list[int], list[tuple[int, int]]]:
        """A row's ids, and where its turns begin and end."""
        return sorted(self._acts, key=lambda each: sum(after - first for first, after in each[1]))[len(self.rows) // 2]

    @property
    def _acts(self) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """The same of each row; the last of several turns closes an episode, and is none of these."""
        turns = [(row["input_ids"], [*_written(row)]) for row in self.rows]
        return [(ids, each[:-1] or each) for ids, each in turns]

    @property
    def lengths(self) -> tuple[int, ...]:
        """What the time depends on: tokens that all prompts begin with, of the longest one, of turn and longest row; of
        episodes with several turns also those after the prompt."""
        from apprentice.tasks.models.shared_prefix import in_common

        longest = max(len(row["input_ids"]) for row in self.rows)
        known = in_common(self.prompts), max(map(len, self.prompts)), len(self.turn), longest
        return known if len(self.rest) == len(self.turn) else (*known, len(self.rest))

    def longest(self, most: int) -> int:
        """Tokens of the longest turn of a batch, which may have `most`."""
        return min(math.ceil(len(self.turn) * 4 / 3), most)

    def exceeds(self, assumed: "Texts") -> bool:
        """Whether a prediction that assumed other texts is far too low for these."""
        lengths, others = (
            (len(each.turn), max(len(row["input_ids"]) for row in each.rows)) for each in (self, assumed)
        )
        return any(length > FAR * other for length, other in zip(lengths, others, strict=True))

    def repeated(self, rows: int, each: int = 1) -> list[list[int]]:
        """So many prompts, `each` times every one."""
        return list(islice(cycle([ids for ids in self.prompts for _ in range(each)]), rows))


def _joined(ids: list[int], turns: list[tuple[int, int]]) -> list[int]:
    return [token for first, after in turns for token in ids[first:after]]


def _written(row: dict[str, list[int]]) -> Iterator[tuple[int, int]]:
    """Where each turn of a training row begins, and where it ends."""
    for is_said, run in groupby(enumerate(row["labels"]), lambda each: each[1] != IGNORED):
        places = [place for place, _ in run]
        if is_said:
            yield places[0], places[-1] + 1
