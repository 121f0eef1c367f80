"""The source of a reward function as a syntax tree, where it is known; nothing is imported or run."""

from __future__ import annotations

import ast
import inspect
import textwrap
import tokenize
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType

from grouprl.scoring.functions import FromFile

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def plain_function(function: object) -> FunctionType | None:
    """The Python function that a call of a function, a method, a partial or a callable object runs."""
    while isinstance(function, partial):
        function = function.func
    if not isinstance(function, FunctionType | MethodType):
        function = getattr(type(function), "__call__", None)  # noqa: B004  the function itself, not whether it is there
    if isinstance(function, MethodType):
        function = function.__func__
    return function if isinstance(function, FunctionType) else None


def definition_of(function: object) -> Definition | None:
    """The definition of a function in memory or, by its name, of one in a file; None = unknown."""
    if isinstance(function, FromFile):
        text, name, whole = Path(function.path).read_text(encoding="utf-8", errors="replace"), function.function, True
    else:
        plain = plain_function(function)
        if plain is None:
            return None
        try:
            text, name, whole = textwrap.dedent(inspect.getsource(plain)), plain.__name__, False
        # Made without a file; or from Python 3.13 on in a file that is something else.
        except (OSError, tokenize.TokenError):
            return None
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a lambda within an expression
        return None
    found = tree.body if whole else list(ast.walk(tree))
    for node in found:
        if isinstance(node, ast.ClassDef) and node.name == name:  # called with settings to make one
            methods = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__call__"]
            return methods[0] if methods else None
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node
    lambdas = [node for node in found if isinstance(node, ast.Lambda)]
    return lambdas[0] if len(lambdas) == 1 else None
