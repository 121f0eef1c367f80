"""What a reward function changes outside of itself: it runs in other processes, and the run keeps its own values."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from grouprl.scoring.functions import FromFile
from grouprl.scoring.source import definition_of, plain_function

_CHANGING = {"add", "append", "clear", "extend", "insert", "pop", "remove", "setdefault", "update"}


def changed_outside(function: object) -> list[str]:
    """Names of global and enclosing variables, and attributes of `self`, that a function sets or changes.

    Only a function of this process, of which the source is known: the others change nothing that a program sees.
    """
    plain, body = plain_function(function), definition_of(function)
    if plain is None or body is None or isinstance(function, FromFile):
        return []
    outer = {name for name in plain.__code__.co_names if name in plain.__globals__} | set(plain.__code__.co_freevars)
    return sorted(name for name in set(_changed(body)) if name in outer or name.startswith("self."))


def _changed(body: ast.AST) -> Iterator[str]:
    """Names that are set as global or nonlocal, of which an item is set, or that change by one of their methods."""
    for node in ast.walk(body):
        if isinstance(node, ast.Global | ast.Nonlocal):
            yield from node.names
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            yield from _root(node.value)
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            yield from _root(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
            yield from _root(node.func.value)


def _root(node: ast.expr) -> Iterator[str]:
    """The name at the start of an expression such as counts[key]; of one such as self.counts[key], both names."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        yield f"self.{node.attr}"
