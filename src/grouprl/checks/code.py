"""Programming problems with unit tests, in the form of MBPP (arXiv:2108.07732) or HumanEval (arXiv:2107.03374)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from grouprl.checks.asserts import SplitError, asserts_of_check, parse_asserts
from grouprl.tasks.base import check_setting
from grouprl.tasks.files import Row, column
from grouprl.tasks.sources import FileProblems, PromptRow
from grouprl.types import Message, Problem, UserError

BUNDLED = Path(__file__).parent / "data" / "code.jsonl"
FENCE = "Write the code in one ```python block."


@dataclass(frozen=True)
class Code(FileProblems):
    """The task `code`: write a Python function that passes unit tests, which run in the sandbox.

    `path` is a data file, a folder or a hub data set (see `tasks.sources`), or None for 25 built-in problems. A row has
    MBPP's columns (`text` or `prompt`, `test_list`, optionally `code`, `test_setup_code` and `test_imports`), or
    HumanEval's (`prompt`, `test`, `entry_point`, optionally `canonical_solution`). Both give problems with MBPP's
    columns `test_list` and `test_setup_code`, which the reward `unit_tests` needs.

    The prompt of an MBPP row is its text and the first `shown_tests` asserts, which show the function's name. MBPP
    itself shows all three, and with them all answers. The prompt of a HumanEval row is the head of the function.

    Reading raises UserError for a problem whose tests cannot be split (`checks.asserts`); with `leave_out` it skips the
    problem instead.
    """

    path: str | None = None
    shown_tests: int = 1
    leave_out: bool = False
    name = "code"
    default_path = str(BUNDLED)
    verifier = "unit_tests"
    default_rewards: ClassVar[Mapping[str, float]] = {"unit_tests": 1.0}  # for a program that passes every test
    default_step_rewards: ClassVar[Mapping[str, float]] = {}
    own_rewards: ClassVar[Mapping[str, Callable[..., Any]]] = {}
    example_row = {  # noqa: RUF012  declared by FileProblems
        "text": "Write a function that returns the middle one of three numbers.",
        "code": "def middle(a, b, c):\n    return sorted((a, b, c))[1]",
        "test_list": ["assert middle(3, 1, 2) == 2", "assert middle(5, 5, 1) == 5"],
    }

    def __post_init__(self) -> None:
        check_setting("task.arguments.shown_tests", self.shown_tests, self.shown_tests >= 0, "0 or more")

    def read(self, row: Row) -> PromptRow:
        """The text of the prompt, and the tests with the solution."""
        try:
            where, columns = row
            if "entry_point" in columns:
                head, solution = column(row, "prompt"), columns.get("canonical_solution")
                tests = asserts_of_check(column(row, "test"), column(row, "entry_point"))
                parse_asserts(tests)
                return (
                    f"Complete this function:\n```python\n{head.rstrip()}\n```\n{FENCE}",
                    {
                        "test_list": tests,
                        "test_setup_code": head,  # a completion may continue it instead of repeating it
                        "solution": None if solution is None else head + solution,
                    },
                )
            asserts: Any = columns.get("test_list")
            is_list = isinstance(asserts, Sequence) and not isinstance(asserts, str)
            if not is_list or not all(isinstance(test, str) for test in asserts):
                raise UserError(
                    f"{where}: expected asserts in column 'test_list', got {asserts!r:.60}: write a list of texts"
                )
            function = parse_asserts(asserts)[0].function
            shown = "\n".join(asserts[: self.shown_tests])
            pass_this = f"\nIt should pass this test:\n```python\n{shown}\n```" if shown else ""
            text = column(row, "text" if "text" in columns else "prompt")
            imports = [*(columns.get("test_imports") or ()), columns.get("test_setup_code") or ""]
            return f"{text}\nName the function `{function}`.{pass_this}\n{FENCE}", {
                "test_list": list(asserts),
                "test_setup_code": "\n".join(imports).strip(),
                "solution": columns.get("code"),
            }
        except SplitError as error:
            if self.leave_out:
                return row[0], None
            raise UserError(
                f"{row[0]}: {error}: rewrite the test, or skip such problems with task.arguments.leave_out=true"
            ) from error

    def prompt(self, text: str) -> tuple[Message, ...]:
        """The text as a user's message."""
        return ({"role": "user", "content": text},)

    def gold(self, problem: Problem) -> str | None:
        """The reference solution in a fence; None where the row has none."""
        solution = problem.columns["solution"]
        return None if solution is None else f"```python\n{solution.strip()}\n```"

    def traits(self, text: str) -> Mapping[str, bool]:
        """`fenced`: the completion has a ```python block."""
        return {"fenced": "```python" in text}
