"""How many tokens of a completion the model's context has room for.

In: the questions, the model's configuration. Out: the longest completion; Stop where a question alone fills it.
"""

import json
from pathlib import Path
from typing import Any

from apprentice.envs.base import ToolEnvironment, tool_schemas
from apprentice.tasks.episodes.episode import prompt
from apprentice.tasks.episodes.rendering import prompt_ids
from apprentice.tasks.models.checkpoints import context_length
from apprentice.tasks.models.tokenizer import question_too_long
from apprentice.tasks.reporting import announce

LONGEST = 16
"""Questions, those of the most letters, whose tokens are counted."""


def within_context(
    wanted: int, folder: Path, tokenizer: Any, instance: ToolEnvironment, used: list[dict[str, Any]]
) -> int:
    """Return the tokens of a completion that the model's context has room for after the longest questions.

    Raises Stop where a question alone fills it.
    """
    longest = sorted(used, key=lambda row: len(row["question"]))[-LONGEST:]
    lengths = [
        len(prompt_ids(tokenizer, prompt(part, row["question"]), tool_schemas(part)))
        for row in longest
        for part in [instance._part(row["seed"])]
    ]
    context = context_length(json.loads((folder / "config.json").read_text()))
    room = context - max(lengths)
    if room < 1:
        raise question_too_long(max(lengths), "the model", context)
    if room < wanted:
        announce.warn(
            f"The longest question takes {max(lengths)} of the model's {context} tokens: completions have {room}, and "
            f"grpo.max_completion_length allows {wanted}."
        )
    return min(room, wanted)
