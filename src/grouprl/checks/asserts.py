"""Splits unit tests into calls, which run inside the sandbox, and conditions on return values, which run outside.

The program of `assert abs(area(2) - 12.57) < 0.01` gets only the call `area(2)`. `checks.conditions` computes the rest
outside, on plain data, with a few operations. The program never sees an expected value.
"""

from __future__ import annotations

import ast
import builtins
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grouprl.checks.conditions import ERRORS, FUNCTIONS, OF_ONE_ARGUMENT, OPERATIONS, value

_DEEPEST = 100  # levels of an assert, far below the recursion limit of Python here and inside the sandbox
_NODES = (
    *OPERATIONS,
    *(ast.Compare, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.BinOp, ast.Constant),
    *(ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Subscript, ast.Load),
)


class SplitError(ValueError):
    """A unit test that cannot be split into calls and a condition; the text gives the reason."""


@dataclass(frozen=True)
class Assertion:
    """One assert, split into calls and a condition.

    >>> check = parse_asserts(["assert abs(area(2) - 12.57) < 0.01"])[0]
    >>> check.calls, holds(check, [12.566]), holds(check, [12.6])
    (('area(2)',), True, False)
    """

    source: str  # the assert as written
    calls: tuple[str, ...]  # expressions to evaluate in the program's namespace
    condition: ast.expr  # the name `N` in it means the return value of call N

    @property
    def function(self) -> str:
        """The name of the function that the check calls."""
        return self.calls[0].partition("(")[0]


def parse_asserts(asserts: Sequence[str]) -> tuple[Assertion, ...]:
    """The checks of a problem from its asserts, such as `assert add(2, 3) == 5`.

    An assert consists of literals, comparisons, arithmetic, the functions of `checks.conditions` and calls of the
    program's function. Every part between `and`, `or` and `not` has exactly one call, so that no part is true without
    the program or compares the program with itself. Parts without a call become constants.

    Raises SplitError for no assert, for other syntax, and for calls of more than one function. It also raises for
    constants that cannot be computed in short time, and for `is` with an object that no program can return.
    """
    checks = tuple(map(_split, asserts))
    names = sorted({call.partition("(")[0] for check in checks for call in check.calls})
    if len(names) != 1:
        raise SplitError(f"expected asserts that call one function, got {', '.join(names) or 'no assert'}")
    return checks


def asserts_of_check(test: str, entry_point: str) -> list[str]:
    """The asserts of `def check(candidate)` (HumanEval), with the function's own name in place of `candidate`.

    It skips asserts without a call, such as `assert True, "this prints if it fails"`.
    Raises SplitError when the function is missing or holds other statements than asserts.
    """
    functions = [node for node in _parse(test).body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    if not functions:
        raise SplitError(f"expected a function check(candidate), got {test[:60]!r}")
    asserts = []
    for statement in functions[-1].body:
        text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not isinstance(statement, ast.Assert | ast.Pass) and not text:
            raise SplitError(f"expected nothing but asserts in check, got {ast.unparse(statement)[:60]!r}")
        nodes = list(ast.walk(statement))
        for node in nodes:
            if isinstance(node, ast.Name) and node.id == "candidate":
                node.id = entry_point
        if any(isinstance(node, ast.Call) for node in nodes):
            asserts.append(ast.unparse(statement))
    return asserts


def holds(check: Assertion, returned: Mapping[int, Any] | Sequence[Any]) -> bool:
    """Whether an assert passes for these return values by call number; a call without a return value has no entry.

    An assert does not pass if it raises, for example on a wrong type or a missing value. Nor does it pass if it would
    make more than `checks.conditions.LARGEST` items, characters or bits out of a return value.
    """
    try:
        return bool(value(check.condition, returned))
    except ERRORS:
        return False


def _parse(source: str) -> ast.Module:
    """The syntax tree of a text that Python can parse and compile; it parses `f(await x)` but cannot compile it."""
    try:
        module = ast.parse(source)
        with warnings.catch_warnings(action="ignore"):  # about code that is refused later, such as `is 5`
            compile(module, "assert", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # a lone surrogate, a null, a long sum
        kind = type(error).__name__
        raise SplitError(f"expected Python, got {source[:60]!r}: {kind} {str(error)[:120]!r}") from error
    level: list[ast.AST] = [module]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        raise SplitError(f"expected at most {_DEEPEST} levels, got more: {source[:60]!r}")
    return module


def _split(source: str) -> Assertion:
    """Raises SplitError for a part that does not test the program, or is more than one comparison."""
    match _parse(source).body:
        case [ast.Assert(test=condition)]:
            cut = _CallExtractor(source)
            condition = cut.visit(condition)
        case _:
            raise SplitError(f"expected one assert, got {source[:60]!r}")
    for part in _parts(condition):
        inside = list(ast.walk(part))
        calls = sum(map(_is_call, inside))
        nested = any(isinstance(node, ast.BoolOp) for node in inside)
        display = isinstance(part, ast.List | ast.Tuple | ast.Set | ast.Dict)
        for wrong, expected in (
            (calls == 0, "an assert that calls a function in every part"),
            (calls > 1, "one call in every part, so that no part compares the program with itself"),
            (nested, "`and` and `or` outside of comparisons"),
            (display, "a comparison, not a display, which is always true"),
        ):
            if wrong:
                raise SplitError(f"expected {expected}, got {source[:60]!r}")
    return Assertion(source, tuple(cut.calls), condition)


def _parts(condition: ast.expr) -> Iterator[ast.expr]:
    """The operands of `and`, `or` and `not`, at any depth."""
    match condition:
        case ast.BoolOp(values=inner):
            for part in inner:
                yield from _parts(part)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            yield from _parts(inner)
        case _:
            yield condition


class _CallExtractor(ast.NodeTransformer):
    """Replaces the Nth call of the program by the name `N`, and expressions without a call by constants."""

    def __init__(self, source: str) -> None:
        self._source = source[:60]
        self.calls: list[str] = []

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Call):
            return self._call(node)
        if not isinstance(node, _NODES) or (isinstance(node, ast.Dict) and None in node.keys):
            raise SplitError(f"expected calls, literals, comparisons and arithmetic, got {ast.unparse(node)[:60]!r}")
        cut = self.generic_visit(node)
        if not isinstance(cut, ast.expr):
            return cut
        parts = [child for child in ast.iter_child_nodes(cut) if isinstance(child, ast.expr)]
        constants: list[object] = [part.value for part in (cut, *parts) if isinstance(part, ast.Constant)]
        inside = isinstance(cut, ast.Compare) and {type(operation) for operation in cut.ops} <= {ast.In, ast.NotIn}
        if any(constant is ... or (isinstance(constant, range) and not inside) for constant in constants):
            raise SplitError(f"expected something that a program can return, got {self._source!r}")
        if isinstance(cut, ast.Compare):
            for operation, *sides in zip(cut.ops, (cut.left, *cut.comparators), cut.comparators, strict=False):
                values = [side.value for side in sides if isinstance(side, ast.Constant)]
                singleton = any(constant is None or isinstance(constant, bool) for constant in values)
                if isinstance(operation, ast.Is | ast.IsNot) and not singleton:
                    raise SplitError(f"expected `is` with None, True or False, got {self._source!r}")
        return self._fold_constants(cut, parts)

    def _call(self, node: ast.Call) -> ast.expr:
        name = ast.unparse(node.func)
        if name in FUNCTIONS:
            arguments = [self.visit(argument) for argument in node.args]
            keywords = [ast.keyword(keyword.arg, self.visit(keyword.value)) for keyword in node.keywords]
            parts = [*arguments, *(keyword.value for keyword in keywords)]
            plain = all(keyword.arg is not None for keyword in keywords)
            plain &= name != "range" or not any(_is_call(node) for part in parts for node in ast.walk(part))
            plain &= name not in OF_ONE_ARGUMENT or (len(arguments), len(keywords)) == (1, 0)
            if not plain:
                raise SplitError(f"expected plain arguments of {name}, got {self._source!r}")
            return self._fold_constants(ast.Call(ast.Name(name, ast.Load()), arguments, keywords), parts)
        # The program could replace any other builtin, and its arguments might hold the expected value.
        if not isinstance(node.func, ast.Name) or hasattr(builtins, name):
            raise SplitError(f"expected a call of the program's function, got {ast.unparse(node)[:60]!r}")
        self.calls.append(ast.unparse(node))
        return ast.Name(str(len(self.calls) - 1), ast.Load())

    def _fold_constants(self, node: ast.expr, parts: Sequence[ast.expr]) -> ast.expr:
        if not all(isinstance(part, ast.Constant) for part in parts):
            return node
        try:
            return ast.Constant(value(node, ()))
        except ERRORS as error:
            raise SplitError(f"expected constants that can be computed, got {self._source!r}: {error}") from error


def _is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id.isdigit()
