"""Unit tests as a reward: finds the program in a completion, runs it in the sandbox, and checks its results here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from grouprl.checks.asserts import Assertion, holds, parse_asserts
from grouprl.checks.sandbox import BACKENDS, Limits, ReturnValue, choose_backend, run_in_sandbox, why_unavailable
from grouprl.rewards.rules import Ids, Texts, Values, check_arguments, completion_text
from grouprl.types import UserError

_MARGIN_SECONDS = 1.0  # to end a program that is out of time, and to compare results
_OPENING = re.compile(r"(?P<indent>[ \t]*)(?P<mark>`{3,}|~{3,})(?P<info>.*)")
_PYTHON = re.compile(r"\{?\s*\.?(?:python|py)[0-9.]*(?![\w-])", re.IGNORECASE)  # {.python}, python3, python title="a"
# Not in a comment or a string, where a program may mention the tag.
_ANSWER = re.compile(r"^[^#\"\n]*(?<!')<answer>", re.MULTILINE)
_GLUED = re.compile(r"</?(?:think|answer)>(?=```|~~~)|(?:```|~~~)(?=</?(?:think|answer)>)")
_BYTE_ORDER_MARK = "\ufeff"
_DEEPER = 3  # columns of further indentation that a closing fence may have


_parsed = lru_cache(maxsize=1024)(parse_asserts)


@dataclass(frozen=True)
class UnitTests:
    """1.0 when the program of a completion passes every assert of the column `test_list`, else 0.0.

    The program is the last closed ```python block that defines the function of the asserts; `program` has the
    rule for other completions. Only this program is tested. It runs after `test_setup_code` in a fresh sandbox, which
    gets the calls of the asserts and nothing else; their results come back as data, and `asserts` compares them.
    A result that is missing, late, or not of a plain builtin type fails its assert. With `share` the value is the share
    of asserts that pass.

    Range: 0 or 1, or 0 to 1 with `share`; None for a problem without tests. Failure modes: a program may contain the
    answers to asserts in the prompt, so do not show all; `assert f(x)` and `== True` can be guessed: a constant passes
    if all asserts expect the same; a program can report values that its functions did not return, but must know them;
    slow programs fail, more often on a busy machine; a line of ``` in the program's text ends it, unless the line is
    indented by four columns or more. Raises ValueError when `test_setup_code` fails, SandboxError when the sandbox
    fails: the completion is then invalid, not wrong.

    The programs of a group run one after another. If a call takes longer than `rollout.scoring.seconds`, each
    completion is tested alone: the values are the same, but all programs run a second time.
    """

    share: bool = False
    seconds: float = Limits.seconds
    cpu_seconds: int = Limits.cpu_seconds
    memory_mib: int = Limits.memory_mib
    backend: str = "auto"

    def __post_init__(self) -> None:
        is_backend = self.backend in ("auto", *BACKENDS)
        check_arguments("unit_tests", self, ("backend", is_backend, f"auto, {' or '.join(BACKENDS)}"))
        # Checked here, where an error stops the run before it starts, not in a worker.
        if self.backend == "auto":
            object.__setattr__(self, "backend", choose_backend())
        elif reason := why_unavailable(self.backend):
            raise UserError(f"reward unit_tests: expected the backend {self.backend}, got {reason}: try backend=auto")
        _ = self.limits

    @property
    def limits(self) -> Limits:
        """The limits of one program."""
        return Limits(seconds=self.seconds, cpu_seconds=self.cpu_seconds, memory_mib=self.memory_mib)

    @property
    def longest_call_seconds(self) -> float:
        """The longest time of one completion; with a shorter limit a hanging program would be invalid, not wrong."""
        return self.seconds + _MARGIN_SECONDS

    def __call__(
        self,
        prompts: Texts,
        completions: Texts,
        completion_ids: Ids,
        *,
        test_list: Sequence[Sequence[str] | None],
        test_setup_code: Sequence[str | None] | None = None,
        **columns: Any,
    ) -> Values:
        """Returns a value in the range, or None, for each completion."""
        setups = [setup or "" for setup in test_setup_code or [None] * len(completions)]
        return [
            None if tests is None else self._value(completion_text(completion), setup, _parsed(tuple(tests)))
            for completion, tests, setup in zip(completions, test_list, setups, strict=True)
        ]

    def _value(self, text: str, setup: str, checks: Sequence[Assertion]) -> float:
        source = program(text, checks[0].function)
        if source.lstrip("\n")[:1] in (" ", "\t"):  # an indented program would continue the set-up code
            setup, source = "", f"{setup}\n{source}"
        calls = [call for check in checks for call in check.calls]
        result = run_in_sandbox(source, calls, setup=setup, limits=self.limits, backend=self.backend)
        outcomes = iter(result.outcomes)
        passed = 0
        for check in checks:
            values = enumerate([next(outcomes) for _ in check.calls])
            passed += holds(check, {n: value.value for n, value in values if isinstance(value, ReturnValue)})
        return passed / len(checks) if self.share else float(passed == len(checks))


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
    # The closed blocks, each as the text after its opening fence and its code. One pass, because a search for pairs
    # takes long on a thousand openings.
    blocks: list[tuple[str, str]] = []
    opening: re.Match[str] | None = None
    lines: list[str] = []
    for line in _GLUED.sub(r"\g<0>\n", text.removeprefix(_BYTE_ORDER_MARK)).split("\n"):
        if opening is None:
            match = _OPENING.match(line)
            # A fence of backquotes has no further backquotes on its line: ```x``` is text.
            opening = match if match and not (match["mark"][0] == "`" and "`" in match["info"]) else None
            lines = []
        # A line with more indentation, such as one of a docstring, belongs to the block.
        elif (
            len(mark := line.strip()) >= len(opening["mark"])
            and set(mark) == {opening["mark"][0]}
            and _indent(line) <= len(opening["indent"]) + _DEEPER
        ):
            blocks.append((opening["info"].strip(), "".join(lines)))
            opening = None
        else:
            # Without up to as many blanks as stand in front of the fence.
            lines.append(f"{line[min(len(opening['indent']), _indent(line)) :]}\n")
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


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))
