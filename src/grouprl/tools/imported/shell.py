"""Reads the settings that a shell script gives to verl: what bash would pass on. It runs nothing and never guesses.

It knows literal text, the script's own variables and lists, `${NAME:-default}` and sums of whole numbers. What a
branch, a loop, a function, another program or the machine decides is `Unknown`.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, dropwhile
from pathlib import Path
from typing import NamedTuple

from grouprl.tools.imported.table import Unknown

OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w-]*(?:\.[\w-]+)+)=(.*)", re.DOTALL)
"""KEY.KEY=VALUE, as Hydra reads it; `+` and `++` add a key."""
_MOST_TEXT, _DEEPEST, _SHOWN = 2**18, 20, 400  # characters of variables; branches in each other; characters shown


def _grammar() -> tuple[str, str, str]:
    """Expressions for an expansion, three in each other at most, a double-quoted text, and arithmetic."""
    expansion = double = "(?!)"
    plain, sums = r"[^'\"\\$`(){}]", r"[\w\s+*/%${}-]"
    for _ in range(3):
        text = rf"{plain}|'[^']*+'|{double}|\\.|{expansion}"
        sums = rf"(?:[\w\s+*/%${{}}=!<>?:&|^,~-]|\({sums}*+\))"
        expansion = (
            rf"(?:\$[A-Za-z_]\w*|\$[\d@*#?!$-]|\$\(\({sums}*+\)\)|\$\{{(?:{text}|[()])*+\}}"
            rf"|\$\((?:{text}|[{{}}]|\((?:{text})*+\))*+\)|`[^`]*+`)"
        )
        double = rf'"(?:[^"\\$`]|\\.|{expansion}|\$(?![\w{{(]))*+"'
    return expansion, double, sums


_EXPANSION, _DOUBLE, _SUMS = _grammar()
_HERE = r"<<-?[ ]*['\"]?(?P<tag>\w+)['\"]?(?:[ ]*>>?[ ]*\S+)?[ ]*\n(?:[^\n]*\n)*?\t*(?P=tag)(?=\n|\Z)"
_TOKEN = re.compile(
    rf"""(?P<gap>(?:[ \t]|\\\n|\#[^\n]*)+|{_HERE})|(?P<sum>\(\({_SUMS}*+\)\))|(?P<unread><<(?!<)|[<>]\(|\(\()
    |(?P<sign>\d*(?:>>|>\||<>|<<<|[<>])&?|&>>?|;;?&?|&&|\|[|&]?|[&()\n])|(?P<list>[A-Za-z_]\w*\+?=\()
    |(?P<word>(?:[^\s'"\\$`;&|()<>]++|'[^']*+'|{_DOUBLE}|\\.|{_EXPANSION})++)""".replace("\n    ", ""),
    re.DOTALL,
)
_ATOM = re.compile(
    rf"(?P<single>'[^']*')|(?P<double>{_DOUBLE})|(?P<escape>\\.)|(?P<other>{_EXPANSION})|[^'\"\\$`]+|.", re.DOTALL
)
_IN_QUOTES = re.compile(rf"(?P<double>{_DOUBLE})|(?P<escape>\\.)|(?P<other>{_EXPANSION})|[^\"\\$`]+|.", re.DOTALL)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_VARIABLE = re.compile(r"([A-Za-z_]\w*|[\d@*])(\[@\])?(?:(:?[-=])(.*))?", re.DOTALL)
_ASSIGNS = re.compile(r"[^=!<>]=[^=]|[*/%+&|^<>-]=|\+\+|--")  # in arithmetic; <= and >= too, to be safe
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
_PROGRAM = re.compile(r"verl\.[\w.]+|(?:.*[./])?main(?:_\w+)?(?:\.py)?")
_OF_BASH = re.compile(
    r"[0_]|BASH.*|E?UID|PPID|(OLD)?PWD|PATH|SHELL.*|S?RANDOM|SECONDS|LINENO|HOST.*|OSTYPE|EPOCH.*|OPT.*|PS\d|TERM|SHLVL|"
    r"USER|LOGNAME|LANG|LC_.*|FUNCNAME|PIPESTATUS|GROUPS|DIRSTACK|REPLY|COLUMNS|LINES"
)
_OPENS, _BETWEEN = ("if", "while", "until", "{"), ("then", "else", "elif", "do", "!", "time")
_CLOSES = {"fi": ("if",), "done": ("for", "select", "while", "until"), "esac": ("case",), "}": ("{",), ")": ("(",)}
_ANYTHING = re.compile(  # commands that may set any variable; export and readonly where they are not read
    r"eval|source|\.|alias|builtin|command|enable|read|readarray|mapfile|getopts|let|unset|declare|typeset|local|coproc|"
    r"export|readonly|\w+\[.*"
)
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_Value = str | Unknown


class _Word(NamedTuple):
    source: str
    line: int
    items: list[_Word] | None = None  # of NAME=(...)


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    """The kind, the text and the line of each word and sign."""
    at, line = 0, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup in (None, "unread"):
            raise ValueError(f"{text[at : at + 20]!r} in line {line}, which GroupRL does not read")
        yield found.lastgroup.replace("sum", "word"), found[0], line
        line, at = line + found[0].count("\n"), found.end()


def _atoms(text: str, is_quoted: bool) -> Iterator[tuple[str, bool, bool]]:
    """The literal texts and expansions of a word: text, whether it is an expansion, whether it is quoted."""
    for found in (_IN_QUOTES if is_quoted else _ATOM).finditer(text):
        one = found[0]
        if found.lastgroup == "double":
            yield "", False, True
            yield from _atoms(one[1:-1], True)
        elif found.lastgroup == "single":
            yield one[1:-1], False, True
        elif found.lastgroup == "escape":
            yield one if is_quoted and one[1] not in '$`"\\}\n' else one[1].strip("\n"), False, True
        else:
            yield one, found.lastgroup == "other", is_quoted


class _Script:
    """The variables of a script as it runs, and the commands that have settings."""

    def __init__(self) -> None:
        self.variables: dict[str, _Value | list[_Value]] = {"HOME": str(Path.home())}
        self.commands: list[tuple[int, dict[str, _Value]]] = []
        self._inside: list[str] = []
        self._may = False  # whether it depends on something that the next command runs, and for the script
        self._functions: set[str] = set()
        self._lost: Unknown | None = None  # why a variable that is not in `variables` may have any value
        self._line, self._room = 1, _MOST_TEXT

    def read(self, text: str) -> None:
        """Runs over the whole script."""
        words: list[_Word] = []
        items: list[_Word] | None = None
        before, is_target = "\n", False
        for kind, one, line in chain(_tokens(text), [("sign", "\n", 1)]):
            self._line = line
            if items is not None and one == ")":
                items = None
            elif items is not None and (kind == "list" or (kind == "sign" and one != "\n")):
                raise ValueError(f"{one!r} in the list of line {self._line}")
            elif kind == "list":
                items = []
                words.append(_Word(one, self._line, items))
            elif kind == "word" and items is not None:
                items.append(_Word(one, self._line))
            elif kind == "word":
                if is_target:
                    self._functions.add(one)  # the name of a function, or a file
                elif words or not self._is_reserved(one):
                    words.append(_Word(one, self._line))
                is_target = one == "function" and not words
            elif kind == "sign" and items is None:
                is_target = "<" in one or ">" in one
                if is_target:
                    continue
                if one == "(" and words:
                    self._lose(f"the function {words[0].source} may set it")
                    self._functions.add(words.pop(0).source)
                if words and not (one == ")" and self._inside[-1:] == ["case"]):  # a pattern of it
                    self._may = before in ("&&", "||", "|", "|&") or one in ("|", "|&", "&") or bool(self._inside)
                    self._command(words)
                words, before = [], one
                self._is_reserved(one)

    def _is_reserved(self, word: str) -> bool:
        if word in (*_OPENS, "(", "for", "select", "case"):
            self._inside.append(word)
            if len(self._inside) > _DEEPEST:
                raise ValueError(f"more than {_DEEPEST} branches in each other in line {self._line}")
        elif word in _CLOSES and self._inside and self._inside[-1] in _CLOSES[word]:
            self._inside.pop()
        elif word == "function":
            self._lose("a function may set it")
        return word in (*_OPENS, *_CLOSES, *_BETWEEN, "function")

    def _lose(self, why: str) -> None:
        self.variables, self._lost = {}, self._unknown("", why)

    def _command(self, words: list[_Word]) -> None:
        rest = list(dropwhile(lambda word: _ASSIGNED.match(word.source), words))
        sources = [word.source for word in rest] or [""]
        if not rest:
            for word in words:
                self._set(*self._assigned(word))
        elif sources[0] in ("export", "readonly") and not any(map(_has_braces, rest)):
            for name, value in [self._assigned(word) for word in rest if _ASSIGNED.match(word.source)]:
                self._set(name, value)
        elif sources[0] in ("for", "select"):
            self.variables |= {name: self._unknown(name, "a loop sets it") for name in sources[1:2]}
        elif sources[0] == "unset" and not self._may and all(re.fullmatch(r"[A-Za-z_]\w*", one) for one in sources[1:]):
            for name in sources[1:]:
                self.variables.pop(name, None)
        elif sources[0] == "shopt":
            raise ValueError(f"shopt in line {self._line}, which changes what bash reads")
        elif (
            sources[0] in self._functions
            or _ANYTHING.fullmatch(sources[0])
            or (sources[0].startswith("((") and _ASSIGNS.search(sources[0]))
            or sources[:2] == ["printf", "-v"]
            or (sources[0] == "set" and any(one[0] not in "-+" or one == "--" for one in sources[1:2]))
        ):
            self._lose(f"{sources[0][:20]} may set it")
        else:
            self._settings([field for word in rest for field in self._fields(word)])

    def _settings(self, fields: list[_Value]) -> None:
        programs = [at for at, one in enumerate(fields) if isinstance(one, str) and _PROGRAM.fullmatch(one)]
        found: dict[str, _Value] = {}
        for one in fields[(programs[0] if programs else 0) + 1 :]:
            text = _text(one)
            if over := OVERRIDE.fullmatch(text):
                found[over[1]] = over[2] if isinstance(one, str) else replace(one, text=over[2])
            elif isinstance(one, Unknown) and not text.startswith("-"):
                found[text] = one
        if found:
            rank = 2 if programs else int(any(isinstance(one, str) or "$" not in key for key, one in found.items()))
            self.commands.append((rank, found))

    def _assigned(self, word: _Word) -> tuple[str, _Value | list[_Value]]:
        """The name and the new value of NAME=VALUE."""
        found = _ASSIGNED.match(word.source)
        assert found is not None
        name, adds, text = found[1], bool(found[2]), word.source[found.end() :]
        old = self.variables.get(name)
        if word.items is not None:
            value = [field for item in word.items for field in self._fields(item)]
            is_open = (adds or self._may) and (
                isinstance(old, str | Unknown) or (old is None and self._lost is not None)
            )
            if is_open or any(item.source[0] == "[" for item in word.items):
                return name, self._unknown(name, "it is a list of a form that is not read")
            if self._may:
                value = [self._unknown(_text(one), "only a branch adds it") for one in value]
            return name, [*old, *value] if isinstance(old, list) and (adds or self._may) else value
        if re.match(r"~(?:/|$)", text):
            text = f"$HOME{text[1:]}"
        one = self._joined(text, False)
        if isinstance(old, list) or text.startswith("~") or ":~" in text or (adds and self._lost):
            return name, self._unknown(name, "it is a value of a form that is not read")
        return name, _plus(old, one) if adds else one

    def _set(self, name: str, value: _Value | list[_Value]) -> None:
        if name == "IFS":
            raise ValueError(f"IFS in line {self._line}, which changes what bash reads")
        is_clear = not self._may or isinstance(value, list) or self.variables.get(name) == value
        self.variables[name] = value if is_clear else self._unknown(name, "a branch sets it")

    def _fields(self, word: _Word) -> list[_Value]:
        """What bash makes of a word: none, one or several."""
        self._line = word.line
        if _has_braces(word):
            return [self._unknown(word.source, "braces with a comma are several words in bash")]
        done: list[_Value] = []
        current: _Value | None = None
        for text, is_other, is_quoted in _atoms(word.source, False):
            for number, value in enumerate(self._values(text, is_quoted) if is_other else [text]):
                if not is_quoted and is_other and re.search(r"['\"\\]", text) and re.search(r"\s", str(value)):
                    value = self._unknown(text, "it has quotes in a form that is not read")
                is_whole = is_quoted or not is_other or isinstance(value, Unknown)
                for place, piece in enumerate([value] if is_whole else re.split(r"[ \t\n]+", _text(value))):
                    if (number or place) and current is not None:
                        done.append(current)
                        current = None
                    current = _plus(current, piece) if piece or is_whole else current
        return done if current is None else [*done, current]

    def _values(self, text: str, is_quoted: bool) -> list[_Value]:
        """What an expansion becomes: one value, or those of a list."""
        if text.startswith("$(("):
            return [self._sum(text)]
        found = _VARIABLE.fullmatch(text[2:-1] if text.startswith("${") else text[1:])
        if found is None:
            return [self._unknown(text, "a program sets it, or bash in a form that is not read")]
        name, index, sign, default = found.groups()
        known = self._known(name)
        if isinstance(known, Unknown):
            return [replace(known, text=text)]
        if isinstance(known, list) and (index or name == "@") and not sign:
            self._spend(known)
            return known
        if isinstance(known, list) or index or (sign is None and known is None):
            return [self._unknown(text, "the file does not set it, or a form that is not read")]
        if known is None or (sign and sign[0] == ":" and not known):
            value = self._joined(default or "", is_quoted)
            if sign and sign[-1] == "=":
                self._set(name, value)
            return [value]
        self._spend([known])
        return [known]

    def _known(self, name: str) -> _Value | list[_Value] | None:
        if {"for", "select", "while", "until"}.intersection(self._inside):
            return self._unknown(name, "it is in a loop")
        if _OF_BASH.fullmatch(name):
            return self._unknown(name, "bash or the machine sets it")
        if name in self.variables:
            return self.variables[name]
        return self._lost or ([] if name in ("@", "*") else None)

    def _joined(self, text: str, is_quoted: bool) -> _Value:
        found: _Value = ""
        for one, is_other, quoted in _atoms(text, is_quoted):
            for number, value in enumerate(self._values(one, quoted) if is_other else [one]):
                found = _plus(_plus(found, " ") if number else found, value)
        return found

    def _spend(self, values: Iterable[_Value]) -> None:
        self._room -= sum(1 + len(one) for one in values if isinstance(one, str))
        if self._room < 0:
            raise ValueError(f"variables that expand to more than {_MOST_TEXT:,} characters in line {self._line}")

    def _unknown(self, text: str, why: str) -> Unknown:
        return Unknown(text, self._line, why)

    def _sum(self, source: str) -> _Value:
        inner = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\b\}?", lambda found: self._number(found[1]), source[3:-2])
        try:
            if len(inner) > 200 or not re.fullmatch(r"[\d\s*+/%()-]+", inner):
                raise ValueError("not a sum")
            return str(_computed(ast.parse(" ".join(inner.replace("/", "//").split()), mode="eval").body))
        except (ValueError, SyntaxError, ZeroDivisionError):
            if _ASSIGNS.search(source):
                self._lose("arithmetic may set it")
            return self._unknown(source, "only sums and products of whole numbers are read")

    def _number(self, name: str) -> str:
        known = self._known(name)
        return known if isinstance(known, str) and re.fullmatch(r"0|[1-9]\d*", known) else "?"


def _text(value: _Value) -> str:
    return value if isinstance(value, str) else value.text


def _has_braces(word: _Word) -> bool:
    """Whether bash makes several words of one, as of {a,b}."""
    plain = "".join(one for one, is_other, is_quoted in _atoms(word.source, False) if not (is_quoted or is_other))
    return bool(_BRACES.search(plain))


def _plus(left: _Value | None, right: _Value) -> _Value:
    if isinstance(left, Unknown):
        return replace(left, text=(left.text + _text(right))[:_SHOWN])
    return replace(right, text=(left or "") + right.text) if isinstance(right, Unknown) else (left or "") + right


def _computed(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        value: int = _OPERATORS[type(node.op)](_computed(node.left), _computed(node.right))
        if 0 <= value < 2**63:  # below and above, bash divides and wraps in its own way
            return value
    raise ValueError("expected whole numbers with + - * / %")


def overrides(text: str) -> dict[str, str | Unknown]:
    """The settings of a script by key; the text of a word that may hold any key stands for its key.

    Raises:
        ValueError: the script has a form that is not read, or is too large or too deep.
    """
    script = _Script()
    script.read(text)
    best = max((rank for rank, _ in script.commands), default=0)
    chosen = [found for rank, found in script.commands if rank == best]
    if len(chosen) > _DEEPEST:
        raise ValueError(f"more than {_DEEPEST} commands with settings")
    values: dict[str, str | Unknown] = {}
    for key in dict.fromkeys(key for found in chosen for key in found):
        first, *others = [found.get(key) for found in chosen]
        several = Unknown("", 1, f"the script has {len(chosen)} commands with settings, which differ")
        values[key] = first if first is not None and all(first == one for one in others) else several
    return values
