"""How the scripted teacher works answers out, in short written steps that a small model can follow.

In: a question's text, and for a wrong answer a source of slips. Out: the steps and the answer that they lead to. A slip
is made in one step, and the later steps go on from it.
"""

import ast
import operator
import re
from collections.abc import Callable
from functools import reduce
from random import Random
from typing import Any

Worked = tuple[str, str]
"""The working, and the answer."""


def chain_sum(question: str, slip: Random | None) -> Worked:
    """Sums the terms from left to right, each by its tens and its ones."""
    terms = [int(term.replace(" ", "")) for term in re.findall(r"[-+]?\s*\d+", question[question.rindex(":") + 1 :])]
    counting = _Paper(None, 0)
    reduce(counting.add, terms)
    paper = _Paper(slip, counting.steps)
    total = reduce(paper.add, terms)
    return paper.text(), str(total)


def basic_arithmetic(question: str, slip: Random | None) -> Worked | None:
    """Works an expression out as it is read: brackets first, then products, then sums. None for a question without
    one."""
    found = max(re.findall(r"[-\d(][-+*/()\d ]*[\d)]", question), key=len, default="")
    try:
        tree = ast.parse(found.strip(), mode="eval").body
    except SyntaxError:
        return None
    counting = _Paper(None, 0)
    _value(tree, counting)
    if not counting.steps:
        return None
    paper = _Paper(slip, counting.steps)
    result = _value(tree, paper)
    return paper.text(), str(result)


def spell_backward(question: str, slip: Random | None) -> Worked:
    """Spells the word letter by letter, and then the letters from the last to the first."""
    letters = [*question.split()[-1]]
    turned = letters[::-1]
    if slip is not None:
        place = slip.randrange(len(turned))
        turned[place : place + 1] = [] if len(turned) > 1 else ["x"]
    return f"{' '.join(letters)} backward {' '.join(turned)}", "".join(turned)


def number_filtering(question: str, slip: Random | None) -> Worked | None:
    """Compares each number with the bound, in their order. None for a question of another wording."""
    found = re.search(r"(Keep|Remove) all numbers (larger|smaller) than (-?[\d.]+) in this list: \[(.*?)\]", question)
    if found is None:
        return None
    keeps, larger, bound = found[1] == "Keep", found[2] == "larger", found[3]
    numbers = re.findall(r"'(-?[\d.]+)'", found[4])
    wrong = slip.randrange(len(numbers)) if slip is not None and numbers else None
    lines, kept = [], []
    for place, number in enumerate(numbers):
        order = (float(number) > float(bound)) - (float(number) < float(bound))
        stays = ((order == (1 if larger else -1)) == keeps) != (place == wrong)
        lines.append(f"{number} {'<=>'[order + 1]} {bound} {'keep' if stays else 'drop'}")
        kept += [number] if stays else []
    return f"{', '.join(lines)}.", str(kept)


WORKERS: dict[str, Callable[[str, Random | None], Worked | None]] = {
    "basic_arithmetic": basic_arithmetic,
    "chain_sum": chain_sum,
    "number_filtering": number_filtering,
    "spell_backward": spell_backward,
}


class _Paper:
    """What is written down.

    Attributes:
        steps: How many steps were made.
    """

    def __init__(self, slip: Random | None, steps: int):
        """`steps`: how many there will be, of which a slip is made in one."""
        self.steps = 0
        self._lines: list[list[str]] = []
        self._slip = slip
        self._at = slip.randrange(steps) if slip is not None and steps else None

    def text(self) -> str:
        return " ".join(f"{', '.join(line)}." for line in self._lines)

    def add(self, total: int, term: int) -> int:
        """Adds by the places of the term, the largest first. Where a number is below zero, adds or subtracts without
        signs, and then says what that makes of the sum: a small model seldom learns to count below zero."""
        self._lines.append([])
        if total >= 0 and total + term >= 0:
            return self._by_places(total, term)
        if (total < 0) == (term < 0):
            sign, amount = -1, self._by_places(abs(total), abs(term))
        else:
            less, more = sorted((total, term), key=abs)
            sign, amount = -1 if more < 0 else 1, self._by_places(abs(more), -abs(less))
        return self._step(total, "-" if term < 0 else "+", abs(term), sign * amount)

    def _by_places(self, total: int, term: int) -> int:
        for part in _parts(term):
            total = self._step(total, "-" if term < 0 else "+", abs(part), total + part)
        return total

    def note(self, left: int, sign: str, right: int, result: int) -> int:
        self._lines.append([])
        return self._step(left, sign, right, result)

    def turn(self, value: int) -> int:
        """Takes the other sign of what was worked out."""
        self._lines.append([])
        return self._step(0, "-" if value >= 0 else "+", abs(value), -value)

    def _step(self, left: int, sign: str, right: int, result: int) -> int:
        if self._slip is not None and self.steps == self._at:
            result += self._slip.choice((-10, -1, 1, 10))
        self.steps += 1
        self._lines[-1].append(f"{left} {sign} {right} = {result}")
        return result


def _parts(term: int) -> list[int]:
    """A number's places that are not zero, such as 30 and 8 of 38; a zero has one."""
    sign, digits = (-1 if term < 0 else 1), str(abs(term))
    parts = [sign * int(digit) * 10 ** (len(digits) - place) for place, digit in enumerate(digits, 1) if digit != "0"]
    return parts or [0]


PRODUCTS: dict[type[ast.operator], tuple[str, Callable[[int, int], int]]] = {
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.floordiv),  # as Reasoning Gym divides
}


def _value(node: Any, paper: _Paper) -> int:
    if isinstance(node, ast.Constant):
        return int(str(node.value))
    if isinstance(node, ast.UnaryOp):
        inner = _value(node.operand, paper)
        if not isinstance(node.op, ast.USub):
            return inner
        return -inner if isinstance(node.operand, ast.Constant) else paper.turn(inner)
    left, right = _value(node.left, paper), _value(node.right, paper)
    if isinstance(node.op, ast.Add | ast.Sub):
        return paper.add(left, right if isinstance(node.op, ast.Add) else -right)
    sign, apply = PRODUCTS[type(node.op)]
    return paper.note(left, sign, right, apply(left, right))
