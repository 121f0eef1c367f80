"""Finds the program in the text of a completion."""

from __future__ import annotations

import re
from collections.abc import Iterator

_OPENING = re.compile(r"(?P<indent>[ \t]*)(?P<mark>`{3,}|~{3,})(?P<info>.*)")
_PYTHON = re.compile(r"\{?\s*\.?(?:python|py)[0-9.]*(?![\w-])", re.IGNORECASE)  # {.python}, python3, python title="a"
# Not in a comment or a string, where a program may mention the tag.
_ANSWER = re.compile(r"^[^#\"\n]*(?<!')<answer>", re.MULTILINE)
_GLUED = re.compile(r"</?(?:think|answer)>(?=```|~~~)|(?:```|~~~)(?=</?(?:think|answer)>)")
_BYTE_ORDER_MARK = "\ufeff"
_DEEPER = 3  # columns of further indentation that a closing fence may have


def program(text: str, function: str) -> str:
    r"""Finds the program in a completion that should define a function of this name.

    It is the last closed ```python block that defines the function; else the last block without a language that does;
    else the last ```python block; else the last block without a language; else the whole text. So a block that calls
    the function may follow, and only the last of several programs counts, right or wrong. With an <answer> tag, only
    the content of the last tag is searched.

    Fences are CommonMark's: three or more of ` or ~, closed by as many or more of them, alone on a line; an indented
    block, as in a list, loses the indentation of its fence.

    >>> program("Here it is:\n```python\ndef f():\n    return 1\n```\nTry it:\n```python\nprint(f())\n```", "f")
    'def f():\n    return 1\n'
    """
    tags = list(_ANSWER.finditer(text))
    answer = text[tags[-1].end() :] if tags else text
    before, tag, _ = answer.rpartition("</answer>")
    text = before if tags and tag else answer
    blocks = list(_blocks(_GLUED.sub(r"\g<0>\n", text.removeprefix(_BYTE_ORDER_MARK))))
    named = [code for info, code in blocks if _PYTHON.match(info)]
    unnamed = [code for info, code in blocks if not info]
    name = re.escape(function)
    defines = re.compile(
        rf"^(?:(?:async[ \t]+)?(?:def|class)[ \t]+{name}\b|{name}[ \t]*(?::[^=\n]*)?=(?!=))", re.MULTILINE
    )
    for codes in (list(filter(defines.search, named)), list(filter(defines.search, unnamed)), named, unnamed):
        if codes:
            return codes[-1].removeprefix(_BYTE_ORDER_MARK)
    return text.removeprefix(_BYTE_ORDER_MARK)


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yields the closed blocks, each as the text after its opening fence and its code.

    One pass, because a search for pairs takes long on a thousand openings.
    """
    opening: re.Match[str] | None = None
    lines: list[str] = []
    for line in text.split("\n"):
        if opening is None:
            found = _OPENING.match(line)
            # A fence of backquotes has no further backquotes on its line: ```x``` is text.
            opening = found if found and not (found["mark"][0] == "`" and "`" in found["info"]) else None
            lines = []
        elif _closes(line, opening):
            yield opening["info"].strip(), "".join(lines)
            opening = None
        else:
            # Without up to as many blanks as stand in front of the fence.
            lines.append(f"{line[min(len(opening['indent']), _indent(line)) :]}\n")


def _closes(line: str, opening: re.Match[str]) -> bool:
    mark = line.strip()
    # A line with more indentation, such as one of a docstring, belongs to the block.
    beside = _indent(line) <= len(opening["indent"]) + _DEEPER
    return len(mark) >= len(opening["mark"]) and set(mark) == {opening["mark"][0]} and beside


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))
