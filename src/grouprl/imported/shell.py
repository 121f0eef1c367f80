"""Reads the overrides in a shell script of verl, with the script's own variables. It runs nothing.

A value that the script does not say keeps its `$`: a variable of the environment, the output of a command, or one that
the branches of an `if` set differently.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w-]*(?:\.[\w-]+)+)=(.*)", re.DOTALL)
"""KEY.KEY=VALUE, as Hydra reads it; `+` and `++` add a key."""
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=\((.*)", re.DOTALL)
_ARITHMETIC = re.compile(r"\$\(\((.*?)\)\)", re.DOTALL)
_NAME = re.compile(r"\$(?:(\w+)|\{(\w+)(?:(:?[-=])(.*))?\})", re.DOTALL)
_OPENS, _CLOSES = ("if", "for", "while", "until", "case", "select"), ("fi", "done", "esac")
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass
class _Script:
    variables: dict[str, str] = field(default_factory=lambda: {"HOME": "~", "PWD": "."})
    found: dict[str, str] = field(default_factory=dict)
    depth: int = 0  # of if, for, while and case

    def read(self, word: str) -> None:
        """Takes a word of the script: an override, an assignment, a keyword, or another."""
        if word in _OPENS or word in _CLOSES:
            self.depth += 1 if word in _OPENS else -1
        elif over := OVERRIDE.fullmatch(word):
            self._set(self.found, over[1], filled(over[2], self.variables))
        elif assigned := _ASSIGNED.fullmatch(word):
            self._set(self.variables, assigned[1], filled(assigned[2], self.variables))
        elif word.startswith("$") and "=" in (text := filled(word, self.variables)):
            for one in text.split():  # a variable with several overrides, unquoted
                if over := OVERRIDE.fullmatch(one):
                    self._set(self.found, over[1], over[2])

    def _set(self, values: dict[str, str], name: str, value: str) -> None:
        # Which branch runs is not known: two values are none.
        is_clear = not self.depth or values.get(name, value) == value
        values[name] = value if is_clear else f"${{{name}}}"


def overrides(text: str) -> dict[str, str]:
    """The overrides of a script by key, as text.

    Raises:
        ValueError: the quotes of the script do not close.
    """
    script, in_array = _Script(), False
    for word in _words(text):
        if array := _ARRAY.fullmatch(word):
            word, in_array = array[1], True
        if in_array and word.endswith(")") and word.count(")") > word.count("("):
            word, in_array = word[:-1], False
        script.read(word)
    return script.found


def filled(text: str, variables: dict[str, str]) -> str:
    """Text with the variables that are known, `${NAME:-default}` and arithmetic in place; the rest stays."""
    for start, end in _variables(text):
        value = _value(text[start:end], variables)
        if value is not None:
            return text[:start] + value + filled(text[end:], variables)
        return text[:end] + filled(text[end:], variables)
    return text


def _words(text: str) -> Iterator[str]:
    joined = _ARITHMETIC.sub(lambda match: "".join(match[0].split()), text.replace("\\\n", " "))
    # A `;` ends a word, and a new line one of a comment.
    lexer = shlex.shlex(joined, posix=True, punctuation_chars=";")
    lexer.whitespace_split = True
    yield from lexer


def _variables(text: str) -> Iterator[tuple[int, int]]:
    """Where `$NAME`, `${...}` and `$((...))` begin and end; braces inside of braces count."""
    for found in re.finditer(r"\$", text):
        rest = text[found.start() :]
        if simple := _ARITHMETIC.match(rest) or re.match(r"\$\w+", rest):
            yield found.start(), found.start() + simple.end()
        elif rest.startswith("${"):
            depth = 0
            for place, one in enumerate(rest):
                depth += (one == "{") - (one == "}")
                if one == "}" and not depth:
                    yield found.start(), found.start() + place + 1
                    break


def _value(text: str, variables: dict[str, str]) -> str | None:
    if arithmetic := _ARITHMETIC.fullmatch(text):
        names = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\b\}?", lambda match: variables.get(match[1], match[0]), arithmetic[1])
        return _whole_number(names)
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    name, default = match[1] or match[2], match[4]
    return variables.get(name, None if default is None else filled(default, variables))


def _whole_number(text: str) -> str | None:
    """The value of a sum or product of whole numbers; None = another expression."""
    try:
        return str(_computed(ast.parse(text.replace("/", "//"), mode="eval").body))
    except (ValueError, SyntaxError, ZeroDivisionError):
        return None


def _computed(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_computed(node.left), _computed(node.right))
    raise ValueError("expected whole numbers with + - * / %")
