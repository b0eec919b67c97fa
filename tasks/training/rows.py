"""The dataset of SFT: the token ids of whole episodes, with a loss on what the student would have to generate.

In: a prepared tokenizer, episodes. Out: rows for TRL's SFTTrainer, tokens and labels. Why not TRL's own mask: it also
covers what the generation prompt holds (Qwen3's empty think block) and what follows a turn's end (a line end).
"""

import json
from typing import TYPE_CHECKING, Any

from apprentice.tasks.episodes.rendering import chat_format, prompt_ids, row_ids

if TYPE_CHECKING:
    from datasets import Dataset

IGNORED = -100
"""The label of a token without loss."""


def training_dataset(tokenizer: Any, rows: list[dict[str, Any]]) -> "Dataset":
    """The rows of `training_row` as `input_ids` and `labels`."""
    from datasets import Dataset

    return Dataset.from_list([labelled(tokenizer, row) for row in rows])


def labelled(tokenizer: Any, row: dict[str, Any]) -> dict[str, list[int]]:
    """A row's token ids, and as labels those of its assistant's turns that GRPO would count as a completion: what
    follows the generation prompt, up to and including the token that ends the turn.

    The template must render earlier turns the same whatever follows them, which the check before a run makes sure of.
    """
    ids, tools, ends = row_ids(tokenizer, row), json.loads(row["tools"]), chat_format(tokenizer).ends
    labels = [IGNORED] * len(ids)
    for place, message in enumerate(row["messages"]):
        if message["role"] == "assistant":
            begin = len(prompt_ids(tokenizer, row["messages"][:place], tools))
            until = len(row_ids(tokenizer, row | {"messages": row["messages"][: place + 1]}))
            end = next((at + 1 for at in range(begin, until) if ids[at] in ends), until)
            labels[begin:end] = ids[begin:end]
    return {"input_ids": ids, "labels": labels}
