"""A scripted teacher for Reasoning Gym: reads the question, works the answer out, errs by design.

In: the dataset and the messages as the student would see them. Out: one call of `answer`.
Why: without an account someone must play the teacher. It knows only the question's text, like any teacher, and is wrong
on a fixed share of the questions (the same ones every time), so that the reward filter has work to do.
"""

import re
from collections.abc import Callable
from typing import Any

from apprentice.envs.policy import digest, errs, question_in


def _chain_sum(question: str) -> str:
    expression = re.findall(r"[-+]?\s*\d+", question[question.rindex(":") + 1 :])
    return str(sum(int(term.replace(" ", "")) for term in expression))


def _spell_backward(question: str) -> str:
    return question.split()[-1][::-1]


def _palindrome_generation(question: str) -> str:
    letters = question[question.rindex(":") + 1 :].replace(",", " ").split()
    pairs = [letter for letter in dict.fromkeys(letters) for _ in range(letters.count(letter) // 2)]
    middle = [letter for letter in dict.fromkeys(letters) if letters.count(letter) % 2]
    return "".join(pairs + middle + pairs[::-1])


SOLVERS: dict[str, Callable[[str], str]] = {
    "chain_sum": _chain_sum,
    "palindrome_generation": _palindrome_generation,
    "spell_backward": _spell_backward,
}


def check(settings: dict[str, Any]) -> None:
    """Raises ValueError where there is no script for the task."""
    if settings["dataset"] not in SOLVERS:
        raise ValueError(
            f"no scripted policy plays {settings['dataset']!r} (there is one for {', '.join(SOLVERS)}); "
            "name a real teacher: teacher.base_url and teacher.model"
        )


def call(settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float) -> tuple[str, dict[str, Any]]:
    """The tool and the arguments of the policy's next turn."""
    question = question_in(messages)
    answer = SOLVERS[settings["dataset"]](question)
    wrong = errs(question, error_rate)
    return "answer", {"answer": _slip(answer, digest(question)[4]) if wrong else answer}


def _slip(answer: str, draw: int) -> str:
    """The answer with its last character one further: what a hasty solver writes."""
    last = answer[-1]
    order = "0123456789" if last.isdigit() else "abcdefghijklmnopqrstuvwxyz"
    place = order.find(last.lower())
    return answer[:-1] + order[(place + 1 + draw % (len(order) - 1)) % len(order)]
