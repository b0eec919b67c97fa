"""The dataset of SFT, as a student's chat template wants it.

In: a prepared tokenizer, episodes. Out: a dataset that TRL's SFTTrainer renders with a loss on the assistant's turns
only; tokens and labels where TRL has no training variant of the template, and so cannot mask the others.
"""

import json
from typing import TYPE_CHECKING, Any

from apprentice.tasks.episodes.rendering import as_read, chat_format, prompt_ids, row_ids

if TYPE_CHECKING:
    from datasets import Dataset

IGNORED = -100
"""The label of a token without loss."""


def trl_masks(tokenizer: Any) -> bool:
    """Whether TRL finds the assistant's tokens in what the chat template renders."""
    from trl.chat_template_utils import has_generation_markers

    return has_generation_markers(tokenizer.chat_template)


def training_dataset(tokenizer: Any, rows: list[dict[str, Any]]) -> "Dataset":
    """The rows of `training_row`: messages with arguments in the form that the template reads, or tokens and labels."""
    from datasets import Dataset, Features, Json, List, Value

    if not trl_masks(tokenizer):
        return Dataset.from_list([labelled(tokenizer, row) for row in rows])
    if "text" in chat_format(tokenizer).arguments:
        return Dataset.from_list(rows)
    # Json keeps mappings with different keys apart, which Arrow's structures would fill up with nulls
    features = {"messages": List(Json()), "tools": Value("string"), "chat_template_kwargs": Json()}
    read = [row | {"messages": as_read(tokenizer, row["messages"])} for row in rows]
    return Dataset.from_list(read, features=Features(features))


def labelled(tokenizer: Any, row: dict[str, Any]) -> dict[str, list[int]]:
    """A row's token ids, and as labels those that follow a generation prompt up to the end of the assistant's turn.

    The template must render earlier turns the same whatever follows them, which the check before a run makes sure of.
    """
    ids, tools = row_ids(tokenizer, row), json.loads(row["tools"])
    labels = [IGNORED] * len(ids)
    for place, message in enumerate(row["messages"]):
        if message["role"] == "assistant":
            begin = len(prompt_ids(tokenizer, row["messages"][:place], tools))
            end = len(row_ids(tokenizer, row | {"messages": row["messages"][: place + 1]}))
            labels[begin:end] = ids[begin:end]
    return {"input_ids": ids, "labels": labels}
