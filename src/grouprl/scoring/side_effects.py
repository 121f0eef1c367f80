"""What a reward function changes outside of itself: it runs in other processes, and the run keeps its own values."""

from __future__ import annotations

import ast
import inspect
import textwrap
import tokenize
from collections.abc import Iterator
from types import FunctionType

_CHANGING = {"add", "append", "clear", "extend", "insert", "pop", "remove", "setdefault", "update"}


def changed_outside(function: object) -> list[str]:
    """Names of global and enclosing variables that a function of which the source is known sets or changes."""
    if not isinstance(function, FunctionType):
        return []
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(function)))
    # Made without a file, or a lambda within an expression; or from Python 3.13 on in a file that is something else.
    except (OSError, SyntaxError, tokenize.TokenError):
        return []
    outer = {name for name in function.__code__.co_names if name in function.__globals__}
    return sorted(set(_changed(body)) & (outer | set(function.__code__.co_freevars)))


def _changed(body: ast.AST) -> Iterator[str]:
    """Names that are set as global or nonlocal, of which an item is set, or that change by one of their methods."""
    for node in ast.walk(body):
        if isinstance(node, ast.Global | ast.Nonlocal):
            yield from node.names
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            yield from _root(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
            yield from _root(node.func.value)


def _root(node: ast.expr) -> Iterator[str]:
    """The name at the start of an expression such as counts[key]."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id
