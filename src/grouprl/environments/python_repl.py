"""The task `python_repl`: word problems with a Python interpreter in the project's sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grouprl.environments.base import exchange
from grouprl.environments.calculator import Calculator
from grouprl.leaves import leaf
from grouprl.tasks.answers import boxed, gold_answer
from grouprl.types import Problem

_SEED = '__import__("random").seed(0)'  # else a variable would change when the code that draws it runs again


class PythonSession:
    """An interpreter that keeps its variables: each call runs the earlier code again in a fresh sandbox."""

    def reset(self) -> None:
        """Begins without variables."""
        self._code: list[str] = []
        self._printed = 0

    def python(self, code: str) -> str:
        """Runs Python code after the code of the earlier calls; gives what it prints.

        The earlier code runs again in each call, so the clock and the system's random numbers differ each time.

        Args:
            code: The code; use print to see a value.
        """
        result = leaf("sandbox").run_in_sandbox("\n".join([*self._code, code]), setup=_SEED)
        if result.error:
            return str(result.error)
        shown, self._printed = result.output[self._printed :], len(result.output)
        self._code.append(code)
        return str(shown) or "nothing was printed"


@dataclass(frozen=True)
class PythonRepl(Calculator):
    """Word problems with the tool `python`; see docs/sandbox.md for what its code may do."""

    name = "python_repl"
    environment = PythonSession

    @property
    def tools(self) -> Sequence[Any]:
        """None beside the methods of the session."""
        return ()

    def worked(self, problem: Problem) -> Sequence[Mapping[str, Any]]:
        """One call that computes step by step, what it prints, and the answer in a box."""
        chain = leaf("operations")(problem)
        lines = [f"n = {chain[0].left}", *(f"n = n {step.symbol.replace('/', '//')} {step.right}" for step in chain)]
        answer, code = gold_answer(problem.columns["answer"]), "\n".join([*lines, "print(n)"])
        return (*exchange("python", {"code": code}, f"{answer}\n"), {"role": "assistant", "content": boxed(answer)})
