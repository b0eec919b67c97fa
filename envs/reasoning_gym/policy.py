"""A scripted teacher for Reasoning Gym: answers, and errs by design.

In: the dataset, the messages as the student would see them, the question's seed. Out: one call of `answer`.
Why: without an account someone must play the teacher. Of three datasets it knows only the question's text, like any
teacher, and works the answer out; of the others it asks an oracle. It is wrong on a fixed share of the questions (the
same ones every time), so that the reward filter has work to do.
"""

import re
from collections.abc import Callable
from typing import Any

from apprentice.envs.policy import digest, errs, question_in
from apprentice.envs.reasoning_gym import oracle

TAKES_SEED = True
"""`call` is told the question's seed."""


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
    """Raises ValueError where neither a script nor the oracle can play."""
    if settings["dataset"] not in SOLVERS:
        oracle.check(settings)


def call(
    settings: dict[str, Any], messages: list[dict[str, Any]], error_rate: float, seed: int | None = None
) -> tuple[str, dict[str, Any]]:
    """The tool and the arguments of the policy's next turn. Raises ValueError where the oracle knows no answer."""
    question = question_in(messages)
    draw, wrong = digest(question), errs(question, error_rate)
    if solver := SOLVERS.get(settings["dataset"]):
        answer = solver(question)
        return "answer", {"answer": answer[:-1] + oracle.another(answer[-1], draw[4]) if wrong else answer}
    return "answer", {"answer": oracle.answer(settings, question, seed, draw[4] if wrong else None)}
