"""Unit tests cut in two: the calls of a program, and the condition on what they return, which is judged outside.

Of `assert abs(area(2) - 12.57) < 0.01` the program gets `area(2)` and nothing else; the rest is worked out here, on
data, by the few operations of this file. Nothing is evaluated as Python, and no expected value ever meets the program.
"""

from __future__ import annotations

import ast
import builtins
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(abs, bool, dict, float, frozenset, int, len, list, max, min, range, round, set, sorted, str, sum, tuple),
        math.isclose,
    )
}
_OPERATIONS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_NODES = (
    *_OPERATIONS,
    *(ast.Compare, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.BinOp, ast.Constant),
    *(ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Subscript, ast.Load),
)


class CannotSplitError(ValueError):
    """A unit test that cannot be cut in two; the text says why."""


@dataclass(frozen=True)
class Check:
    """One assert.

    >>> check = unit_tests(["assert abs(area(2) - 12.57) < 0.01"])[0]
    >>> check.calls, holds(check, [12.566]), holds(check, [12.6])
    (('area(2)',), True, False)
    """

    source: str  # the assert as it was written
    calls: tuple[str, ...]  # expressions for the program
    condition: ast.expr  # in which the name `N` stands for what call N returned

    @property
    def function(self) -> str:
        """The name of the function that it calls."""
        return self.calls[0].partition("(")[0]


def unit_tests(asserts: Sequence[str]) -> tuple[Check, ...]:
    """The checks of a problem from its asserts, such as `assert add(2, 3) == 5`.

    Raises CannotSplitError for none, and for an assert that calls anything but one and the same function, compares the
    program with itself, or is more than calls, literals, comparisons, arithmetic and the functions listed above.
    """
    checks = tuple(_check(source) for source in asserts)
    names = sorted({call.partition("(")[0] for check in checks for call in check.calls})
    if len(names) != 1:
        raise CannotSplitError(f"expected asserts that call one function, got {', '.join(names) or 'no assert'}")
    return checks


def body_of_check(test: str, entry_point: str) -> list[str]:
    """The asserts of `def check(candidate)` (HumanEval), with the function's own name in place of `candidate`.

    Asserts that call nothing, such as `assert True, "this prints if it fails"`, are left out.
    Raises CannotSplitError when there is no such function or it does anything but assert.
    """
    functions = [node for node in _parsed(test).body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    if not functions:
        raise CannotSplitError(f"expected a function check(candidate), got {test[:60]!r}")
    asserts = []
    for statement in functions[-1].body:
        text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not isinstance(statement, ast.Assert | ast.Pass) and not text:
            raise CannotSplitError(f"expected nothing but asserts in check, got {ast.unparse(statement)[:60]!r}")
        if any(isinstance(node, ast.Call) for node in ast.walk(statement)):
            asserts.append(ast.unparse(_Renamed("candidate", entry_point).visit(statement)))
    return asserts


def holds(check: Check, returned: Sequence[Any]) -> bool:
    """Whether an assert passes when its calls returned these values. One that raises, as on a wrong type, does not."""
    try:
        return bool(_value(check.condition, returned))
    except (TypeError, ValueError, ArithmeticError, LookupError, RecursionError):
        return False


def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise CannotSplitError(f"expected Python, got {source[:60]!r}: {error}") from error


def _check(source: str) -> Check:
    match _parsed(source).body:
        case [ast.Assert(test=condition)]:
            cut = _Cut()
            condition = cut.visit(condition)
        case _:
            raise CannotSplitError(f"expected one assert, got {source[:60]!r}")
    if not cut.calls:
        raise CannotSplitError(f"expected an assert that calls a function, got {source[:60]!r}")
    return Check(source, tuple(cut.calls), condition)


@dataclass
class _Renamed(ast.NodeTransformer):
    old: str
    new: str

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.new, node.ctx) if node.id == self.old else node


class _Cut(ast.NodeTransformer):
    """Puts the name `N` in the place of the program's Nth call."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Call):
            return self._call(node)
        if not isinstance(node, _NODES) or (isinstance(node, ast.Dict) and None in node.keys):
            raise CannotSplitError(
                f"expected calls, literals, comparisons and arithmetic, got {ast.unparse(node)[:60]!r}"
            )
        cut = self.generic_visit(node)
        if isinstance(cut, ast.Compare) and sum(map(_has_call, (cut.left, *cut.comparators))) > 1:
            raise CannotSplitError(
                f"expected something to compare the program with, got itself: {ast.unparse(node)[:60]!r}"
            )
        return cut

    def _call(self, node: ast.Call) -> ast.expr:
        name = ast.unparse(node.func).removeprefix("math.")
        if name in _FUNCTIONS:
            arguments = [self.visit(argument) for argument in node.args]
            keywords = [ast.keyword(keyword.arg, self.visit(keyword.value)) for keyword in node.keywords]
            if any(keyword.arg is None for keyword in keywords) or (name == "range" and any(map(_has_call, arguments))):
                raise CannotSplitError(f"expected plain arguments, got {ast.unparse(node)[:60]!r}")
            return ast.Call(ast.Name(name, ast.Load()), arguments, keywords)
        # Another builtin would be looked up among names that the program can change, and might hold what is expected.
        if not isinstance(node.func, ast.Name) or hasattr(builtins, name):
            raise CannotSplitError(f"expected a call of the program's function, got {ast.unparse(node)[:60]!r}")
        self.calls.append(ast.unparse(node))
        return ast.Name(str(len(self.calls) - 1), ast.Load())


def _has_call(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Name) and part.id.isdigit() for part in ast.walk(node))


def _value(node: ast.AST, returned: Sequence[Any]) -> Any:
    """What an expression is worth on data."""

    def value(part: ast.AST) -> Any:
        return _value(part, returned)

    match node:
        case ast.Constant(value=constant):
            return constant
        case ast.Name(id=number):
            return returned[int(number)]
        case ast.List(elts=items):
            return list(map(value, items))
        case ast.Tuple(elts=items):
            return tuple(map(value, items))
        case ast.Set(elts=items):
            return set(map(value, items))
        case ast.Dict(keys=keys, values=values):
            return {value(key): value(item) for key, item in zip(keys, values, strict=True) if key is not None}
        case ast.Subscript(value=items, slice=place):
            return value(items)[value(place)]
        case ast.UnaryOp(op=operation, operand=operand):
            return _OPERATIONS[type(operation)](value(operand))
        case ast.BoolOp(op=operation, values=conditions):
            every = isinstance(operation, ast.And)
            return all(map(value, conditions)) if every else any(map(value, conditions))
        case ast.Compare(left=left, ops=operations, comparators=rights):
            values = list(map(value, (left, *rights)))
            pairs = zip(operations, values, values[1:], strict=False)
            return all(_OPERATIONS[type(operation)](a, b) for operation, a, b in pairs)
        case ast.BinOp(left=left, op=operation, right=right):
            return _arithmetic(operation, value(left), value(right), bounded=_has_call(node))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            named = {keyword.arg: value(keyword.value) for keyword in keywords if keyword.arg}
            return _FUNCTIONS[name](*map(value, arguments), **named)
    raise TypeError(f"cannot work out {node!r}")


def _arithmetic(operation: ast.operator, left: Any, right: Any, *, bounded: bool) -> Any:
    # What the program returned must not make this process work: no powers of it, and no text of it times a billion.
    if bounded and (isinstance(operation, ast.Pow) or not (isinstance(left, Number) and isinstance(right, Number))):
        raise TypeError("expected numbers")
    return _OPERATIONS[type(operation)](left, right)
