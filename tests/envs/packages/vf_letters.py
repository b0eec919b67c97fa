"""An environment for the `verifiers` package, written with its own classes and nothing of this project.

Loaded by `verifiers.load_environment("vf-letters", kind=…)`.
"""

from typing import Any

import verifiers as vf  # type: ignore[import-not-found]
from datasets import Dataset

WORDS = ["pear", "plum", "apple", "cherry", "fig", "quince", "melon", "date"]


def letters(word: str) -> int:
    """How many letters a word has.

    Args:
        word: The word.
    """
    if not word.isalpha():
        raise ValueError("this is no word")
    return len(word)


def correct(completion: Any, answer: str, **_: Any) -> float:
    last = completion[-1]
    content = last["content"] if isinstance(last, dict) else last.content
    if content == "crash":
        raise RuntimeError("the judge does not answer")
    return float(content.strip() == answer)


class Twice(vf.MultiTurnEnv):
    """Asks whether one is sure."""

    async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
        return [{"role": "user", "content": "Are you sure?"}]


def load_environment(kind: str = "single", **given: Any) -> Any:
    rows = {
        "question": [f"How many letters has {word!r}?" for word in WORDS],
        "answer": [str(len(word)) for word in WORDS],
    }
    common = {
        "dataset": Dataset.from_dict(rows),
        "eval_dataset": Dataset.from_dict({name: each[::-1] for name, each in rows.items()}),
        "rubric": vf.Rubric(funcs=[correct]),
        "system_prompt": "Answer with a number.",
    }
    if kind == "tools":
        return vf.ToolEnv(tools=[letters], max_turns=3, **common)
    if kind == "twice":
        return Twice(max_turns=2, **common)
    return vf.SingleTurnEnv(**common)
