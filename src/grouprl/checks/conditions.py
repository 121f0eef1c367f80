"""Computes the conditions of unit tests on plain data by a few operations with bounded work.

It evaluates nothing as Python. Each operation checks its cost before it runs, so that neither a return value nor a
mistake in a data file (`10**10**8`) keeps a process busy for long.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from typing import Any

LARGEST = 10**6
"""Most items, characters or bits that an operation may make."""

ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, RecursionError)
"""Errors that `value` raises for operands that do not fit, as Python does, and for too much work."""

_WIDE = re.compile(r"\*|\d{4}")  # a width such as the 5 in "%5d" that comes from the values or is 1000 or more
_WIDEST = 999


class WorkLimitError(ValueError):
    """An operation that would take too much time or memory."""


def value(node: ast.AST, returned: Mapping[int, Any] | Sequence[Any]) -> Any:
    """The value of an expression, in which the name `N` means the return value of call N, `returned[N]`.

    `and` and `or` stop at the part that decides, as in Python. Raises one of ERRORS.
    """

    def part(node: ast.AST) -> Any:
        return value(node, returned)

    match node:
        case ast.Constant(value=constant):
            return constant
        case ast.Name(id=number):
            return returned[int(number)]
        case ast.List(elts=items):
            return list(map(part, items))
        case ast.Tuple(elts=items):
            return tuple(map(part, items))
        case ast.Set(elts=items):
            return set(map(part, items))
        case ast.Dict(keys=keys, values=values):
            return {part(key): part(item) for key, item in zip(keys, values, strict=True) if key is not None}
        case ast.Subscript(value=items, slice=index):
            return part(items)[part(index)]
        case ast.UnaryOp(op=operation, operand=operand):
            return OPERATIONS[type(operation)](part(operand))
        case ast.BoolOp(op=operation, values=conditions):
            return (all if isinstance(operation, ast.And) else any)(map(part, conditions))
        case ast.Compare(left=left, ops=operations, comparators=rights):
            values = list(map(part, (left, *rights)))
            pairs = zip(operations, values, values[1:], strict=False)
            return all(OPERATIONS[type(operation)](a, b) for operation, a, b in pairs)
        case ast.BinOp(left=left, op=operation, right=right):
            return OPERATIONS[type(operation)](part(left), part(right))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            named = {keyword.arg: part(keyword.value) for keyword in keywords if keyword.arg}
            return FUNCTIONS[name](*map(part, arguments), **named)
    raise TypeError(f"cannot compute {node!r}")


def _within(size: int, most: int = LARGEST) -> None:
    if size > most:
        raise WorkLimitError(f"expected at most {most} items, characters or bits")


def _size(data: Any) -> int:
    """The number of items and characters in all levels of the data."""
    match data:
        case int():
            return 1 + data.bit_length() // 64
        case str() | bytes():
            return max(1, len(data))
        case list() | tuple() | set() | frozenset():
            return 1 + sum(map(_size, data))
        case dict():
            return 1 + sum(_size(key) + _size(item) for key, item in data.items())
    return 1


def _bits(*numbers: Any) -> int:
    return sum(number.bit_length() for number in numbers if isinstance(number, int))


def _sum_of_two(left: Any, right: Any) -> Any:
    if not isinstance(left, Number):
        _within(_size(left) + _size(right))
    return left + right


def _product(left: Any, right: Any) -> Any:
    if isinstance(left, Number) and isinstance(right, Number):
        _within(_bits(left, right))
    else:
        times, items = (left, right) if isinstance(left, int) else (right, left)
        _within(_size(items) * times if isinstance(times, int) else 0)
    return left * right


def _quotient(left: Any, right: Any) -> Any:
    _within(_bits(left, right))  # the time grows with the square
    return left // right


def _remainder(left: Any, right: Any) -> Any:
    if isinstance(left, str | bytes):
        text = left if isinstance(left, str) else left.decode("latin-1")
        if _WIDE.search(text):
            raise WorkLimitError(f"expected fields of at most {_WIDEST} characters")
        _within(text.count("%") * (_WIDEST + _size(right)) + len(text))
    else:
        _within(_bits(left, right))
    return left % right


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int):
        _within(max(abs(base) - 1, 0).bit_length() * exponent)
    return base**exponent


def _range(*bounds: int) -> range:
    for bound in bounds:
        _within(abs(bound))  # bounds the numbers too: huge ones that collide in a set would take quadratic time
    return range(*bounds)


def _round(number: Any, ndigits: int | None = None) -> Any:
    _within(abs(ndigits or 0))
    return round(number, ndigits)


_PLAIN = (abs, bool, dict, float, frozenset, int, len, list, max, min, set, sorted, str, sum, tuple, math.isclose)
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{function.__name__: function for function in _PLAIN},
    "math.isclose": math.isclose,
    "range": _range,
    "round": _round,
}
"""Functions that a condition may call in addition to the program."""

OF_ONE_ARGUMENT = frozenset({"str", "sum"})
"""Functions that take one argument here: `str` without a codec, `sum` without lists, whose time would be quadratic."""

OPERATIONS: Mapping[type[ast.AST], Callable[..., Any]] = {
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
    ast.Add: _sum_of_two,
    ast.Sub: operator.sub,
    ast.Mult: _product,
    ast.Div: operator.truediv,
    ast.FloorDiv: _quotient,
    ast.Mod: _remainder,
    ast.Pow: _power,
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
"""Operators of a condition."""
