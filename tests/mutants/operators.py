"""The small faults that Python code can have: every one of a file, found in its syntax tree.

A condition is negated or its bound moved by one, a statement left out, an argument left to its default, a constant
moved, a function ended early or its result lost. Texts, log lines, annotations, docstrings and layout stay as they are.
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

BOUNDS: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn}
OPPOSITES |= {ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is}
TEXTS = ("help", "description", "title", "metavar", "rich_help_panel", "short_help", "epilog", "strict")
"""Arguments that only a reader sees; `strict` of zip, as an assertion, states what holds anyway."""
LAYOUT = ("indent", "flush", "maxsize", "color", "marker", "capsize", "linestyle", "labelrotation", "dpi", "figsize")
LAYOUT += ("xlabel", "ylabel", "title_justify")
"""How a file or a picture looks that says the same, and how much a cache holds."""
UNMOVED = ("timeout",)
"""Arguments that a test could tell from their double only by waiting for them; they still are dropped."""
WAITS = ("wait_exponential", "wait_random", "wait_random_exponential", "wait_fixed")
"""tenacity's calls that say how long a retry waits, which only waiting could tell as well."""
LARGE = 1000
"""From here on a whole number is doubled, not moved by one: such a bound is a round figure."""
LOG = ("debug", "info", "warning", "error", "exception", "critical")
TYPES = ("cast", "TypeVar", "NewType", "TypeAdapter", "NamedTuple", "TypedDict", "ParamSpec")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS_AND_BLOCKS = (ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.If, ast.Try)


class Mutant(NamedTuple):
    """One small fault: bytes `start` to `end` of a file replaced."""

    file: str
    operator: str
    function: str
    """Name of the function or class around it; empty at a module's top."""
    statement: tuple[int, int]
    """First and last line of the statement, of a compound one its head."""
    start: int
    end: int
    replacement: str
    old: str
    """The lines that it changes, as they are, in one line. With `function` and `new` it names the mutant."""
    new: str

    def broken(self, text: str) -> str:
        content = text.encode()
        return (content[: self.start] + self.replacement.encode() + content[self.end :]).decode()


def mutants_of(file: str, text: str) -> list[Mutant]:
    """Every mutant of a file, in the order of its text."""
    found = list(_Finder(file, text).module())
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end, mutant.operator, mutant.replacement))


class _Finder:
    def __init__(self, file: str, text: str):
        self.file = file
        self.content = text.encode()
        self.starts = [0]
        for line in self.content.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.tree = ast.parse(text)

    def module(self) -> Iterator[Mutant]:
        yield from self.body(self.tree.body, "")

    def body(self, statements: list[ast.stmt], function: str) -> Iterator[Mutant]:
        for statement in statements:
            if not _is_for_types_or_main(statement):
                yield from self.statement(statement, function)

    def statement(self, statement: ast.stmt, function: str) -> Iterator[Mutant]:
        if _is_text(statement) or isinstance(statement, ast.Assert):
            return
        if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            inner = f"{function}.{statement.name}".lstrip(".")
            first = min([statement.lineno, *(each.lineno for each in statement.decorator_list)])
            head = (first, statement.body[0].lineno - 1)
            heads: list[ast.expr | None] = [*statement.decorator_list]
            if isinstance(statement, FUNCTIONS):
                heads += [*statement.args.defaults, *statement.args.kw_defaults]
                yield from self.early_end(statement, inner)
            for each in heads:
                if each is not None:
                    yield from self.expression(each, inner, head)
            yield from self.body(statement.body, inner)
            return
        blocks = [value for _, value in ast.iter_fields(statement) if isinstance(value, list) and value]
        blocks = [value for value in blocks if isinstance(value[0], ast.stmt | ast.excepthandler | ast.match_case)]
        last = statement.end_lineno or statement.lineno
        if blocks:
            last = max(statement.lineno, _first_line(blocks) - 1)
        head = (statement.lineno, last)
        yield from self.dropped(statement, function, head)
        if not isinstance(statement, ast.Raise):
            for name, value in ast.iter_fields(statement):
                for each in value if isinstance(value, list) else [value]:
                    if isinstance(each, ast.expr) and name != "annotation":
                        test = name == "test" and isinstance(statement, ast.If | ast.While)
                        yield from self.expression(each, function, head, condition=test)
                    elif isinstance(each, ast.withitem):
                        yield from self.expression(each.context_expr, function, head)
        for block in blocks:
            for each in block:
                if isinstance(each, ast.stmt):
                    yield from self.body([each], function)
                else:
                    yield from self.body(each.body, function)

    def dropped(self, statement: ast.stmt, function: str, head: tuple[int, int]) -> Iterator[Mutant]:
        if isinstance(statement, ast.Expr):
            value = statement.value.value if isinstance(statement.value, ast.Await) else statement.value
            left_out = isinstance(value, ast.Call) and not _is_log(value)
        elif isinstance(statement, ast.Assign):
            left_out = all(isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets)
        else:
            left_out = isinstance(statement, ast.AugAssign | ast.Raise | ast.Delete | ast.Continue | ast.Break)
        if left_out:
            yield self.mutant("statement dropped", function, head, statement, "pass")
        if isinstance(statement, ast.Return) and not _is_nothing(statement.value):
            yield self.mutant("result lost", function, head, statement, "return None")

    def early_end(self, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Iterator[Mutant]:
        last = function.body[-1]
        yields = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))
        if isinstance(last, LOOPS_AND_BLOCKS) and not yields and len(function.body) > 1:
            yield self.mutant("ended early", name, (last.lineno, last.lineno), last, "return None")

    def expression(
        self, node: ast.expr, function: str, head: tuple[int, int], condition: bool = False
    ) -> Iterator[Mutant]:
        if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Call) and (_is_log(node) or _is_of_types(node) or _is_a_wait(node))
        ):
            return
        if condition:
            yield from self.negated(node, function, head)
        if isinstance(node, ast.BoolOp):
            other = ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
            yield self.mutant("and for or", function, head, node, f"({ast.unparse(other)})")
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            kind = type(node.ops[0])
            moved = BOUNDS.get(kind) or (None if condition else OPPOSITES.get(kind))
            if moved is not None:
                other = ast.Compare(node.left, [moved()], node.comparators)
                operator = "bound moved" if kind in BOUNDS else "negated"
                yield self.mutant(operator, function, head, node, f"({ast.unparse(other)})")
        if isinstance(node, ast.Constant):
            yield from self.moved(node, function, head)
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg and keyword.arg not in (*TEXTS, *LAYOUT):
                    others = [each for each in node.keywords if each is not keyword]
                    other = ast.Call(node.func, node.args, others)
                    yield self.mutant("argument dropped", function, head, node, ast.unparse(other))
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.keyword):
                if child.arg in (*TEXTS, *LAYOUT, *UNMOVED):
                    continue
                yield from self.expression(child.value, function, head)
            elif isinstance(child, ast.comprehension):
                yield from self.expression(child.iter, function, head)
                for test in child.ifs:
                    yield from self.expression(test, function, head, condition=True)
            elif isinstance(child, ast.arguments):
                for default in [*child.defaults, *child.kw_defaults]:
                    if default is not None:
                        yield from self.expression(default, function, head)
            elif isinstance(child, ast.expr):
                test = isinstance(node, ast.IfExp) and child is node.test
                yield from self.expression(child, function, head, condition=test)

    def negated(self, node: ast.expr, function: str, head: tuple[int, int]) -> Iterator[Mutant]:
        if isinstance(node, ast.Constant):
            return
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            other = node.operand
        else:
            other = ast.UnaryOp(ast.Not(), node)
        yield self.mutant("negated", function, head, node, f"({ast.unparse(other)})")

    def moved(self, node: ast.Constant, function: str, head: tuple[int, int]) -> Iterator[Mutant]:
        if isinstance(node.value, bool):
            yield self.mutant("constant moved", function, head, node, str(not node.value))
        elif isinstance(node.value, int):
            other = node.value * 2 if node.value >= LARGE else node.value + 1
            yield self.mutant("constant moved", function, head, node, str(other))
        elif isinstance(node.value, float):
            yield self.mutant("constant moved", function, head, node, str(node.value * 2 or 1.0))

    def mutant(
        self, operator: str, function: str, head: tuple[int, int], node: ast.stmt | ast.expr, text: str
    ) -> Mutant:
        start = self.starts[node.lineno - 1] + node.col_offset
        last = node.end_lineno or node.lineno
        end = self.starts[last - 1] + (node.end_col_offset or 0)
        before = self.content[self.starts[node.lineno - 1] : start].decode()
        after = self.content[end : self.starts[last]].decode()
        old = _in_one_line(before + self.content[start:end].decode() + after)
        return Mutant(self.file, operator, function, head, start, end, text, old, _in_one_line(before + text + after))


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def _first_line(blocks: list[list[ast.AST]]) -> int:
    lines = [getattr(node, "lineno", None) for block in blocks for node in block]
    return min([line for line in lines if line is not None], default=10**9)


def _is_nothing(value: ast.expr | None) -> bool:
    """Whether it is None or as good as None: what then is lost makes no difference."""
    return value is None or (isinstance(value, ast.Constant) and not value.value)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant | ast.JoinedStr)


def _is_for_types_or_main(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.If):
        return False
    return ast.unparse(statement.test) in ("TYPE_CHECKING", "__name__ == '__main__'")


def _is_log(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id == "note"  # a line of the run's log (tasks/reporting/progress.py)
    return isinstance(function, ast.Attribute) and function.attr in LOG and "log" in ast.unparse(function.value).lower()


def _is_a_wait(call: ast.Call) -> bool:
    return ast.unparse(call.func).rpartition(".")[2] in WAITS


def _is_of_types(call: ast.Call) -> bool:
    return ast.unparse(call.func).rpartition(".")[2] in TYPES
