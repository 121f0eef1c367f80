"""Final answers: how a prompt asks for one, where a completion gives it, when two are equal.

It never evaluates text as code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

from grouprl.tasks.base import Task, derived, each
from grouprl.tasks.spelling import bare_text, other_unit, same_letters
from grouprl.types import Message, Problem, UserError

LONGEST_VALUE = 64  # characters; longer text is no plain number, and parsing huge digit strings is slow
LONGEST_ANSWER = 10_000  # characters; longer text is no final answer, and comparing it might be slow

_BOX = re.compile(r"\\boxed\s?\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is text, not structure
_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_RATIO = re.compile(rf"([+-]?{_NUMBER})(?:/([+-]?{_NUMBER}))?")
_LATEX_RATIO = re.compile(rf"([+-]?)(?:([0-9]+) ?)?\\frac\{{([+-]?{_NUMBER})\}}\{{([+-]?{_NUMBER})\}}")
_MIXED = re.compile(r"([+-]?)([0-9]+) ([0-9]+)/([0-9]+)")
_E_NOTATION = re.compile(r"[+-]?[0-9]{1,40}(?:\.[0-9]{0,40})?[eE][+-]?[0-9]{1,3}")
# Bounded repeats keep the time linear for a completion that is only digits.
_TERM = r"\$?[0-9][0-9,.]{0,15}"
_EQUATION = re.compile(
    rf"{_TERM}\s{{0,3}}(?:[-+*/x×÷−]|\\times|\\div|\\cdot)\s{{0,3}}{_TERM}\s{{0,3}}=\s{{0,3}}-?{_TERM}"
)

BOXED_PROMPT = "Reason step by step, and put your final answer within \\boxed{}."
EQUATION_STEPS: Mapping[str, float] = {"equation_steps": 1.0}
"""The process reward where solutions consist of equations: 1.0 for each worked equation that belongs to one."""
Format = Literal["boxed", "think"]
THINK_PROMPT = (
    "First think about the question, then answer it. Write your reasoning between <think> and </think>, and after it "
    "the final answer alone between <answer> and </answer>: <think> reasoning </think> <answer> answer </answer>"
)


def last_boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...}, with balanced braces; None without a box or when the last is not closed.

    >>> last_boxed(r"\boxed{3}, no: \boxed{\frac{14}{2}}")
    '\\frac{14}{2}'
    """
    starts = [match.end() for match in _BOX.finditer(text)]
    if not starts:
        return None
    depth = 1
    for brace in _BRACE.finditer(text, starts[-1]):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return text[starts[-1] : brace.start()]
    return None


def final_text(text: str) -> str | None:
    r"""The final answer of a completion, or None. It has exactly one place, so writing several answers never pays.

    The answer is the text in the last `<answer>...</answer>`, or in the last box inside that tag. Without a tag it is
    the text in the last \boxed{...}. A last tag or box that is not closed, or more than LONGEST_ANSWER characters,
    give None.

    >>> final_text(r"\boxed{3} <answer>so it is \boxed{4}</answer> \boxed{5}"), final_text("It is 4.")
    ('4', None)
    """
    _, opened, rest = text.rpartition("<answer>")
    if opened:
        inside, closed, _ = rest.partition("</answer>")
        answer = (last_boxed(inside) if _BOX.search(inside) else inside) if closed else None
    else:
        answer = last_boxed(text)
    return None if answer is None or len(answer) > LONGEST_ANSWER else answer.strip()


def completion_text(completion: str | Sequence[Mapping[str, Any]]) -> str:
    """The text of a completion, which comes as text or as an assistant message."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def gold_answer(text: str) -> str:
    """The final answer of a GSM8K solution: the text after its last `####`.

    Raises UserError when there is no `####` or no text after it.
    """
    _, mark, answer = text.rpartition("####")
    if not mark or not answer.strip():
        raise UserError(f"expected a solution that ends in '#### 7', got {text[-60:]!r}: add the final answer")
    return answer.strip()


def final_answer(answer: object) -> str:
    r"""The bare answer of an `answer` column: the answer itself, or that of a solution.

    A solution ends in `#### 7`, or its last \boxed{...} has the answer. Raises UserError for a box that is not closed.

    >>> final_answer("4 + 3 = 7\n#### 7"), final_answer(r"So it is $\boxed{7}$."), final_answer(7.0)
    ('7', '7', '7.0')
    """
    text = str(answer)
    text = gold_answer(text) if "####" in text else text.strip()
    if _BOX.search(text) is None:
        return text
    inside = last_boxed(text)
    if inside is None:
        raise UserError(f"expected a closed \\boxed{{}} in a solution, got {text[-60:]!r}: close its last box")
    return inside.strip()


def parse_value(text: str) -> Fraction | None:
    r"""The number that a short text means, or None.

    It reads 1,000; 1\,000; 7.0; -3; 14/2; \frac{14}{2}; \frac12; 2\frac{1}{2}; with a currency sign, a percent sign or
    a unit (`tasks.spelling`). It drops a percent sign without dividing: `50%` is 50, as GSM8K writes its answers.

    >>> parse_value("$1,000.50"), parse_value(r"2\frac12\,\text{cm}"), parse_value("5 or 6")
    (Fraction(2001, 2), Fraction(5, 2), None)
    """
    if len(text) > LONGEST_VALUE:
        return None
    if match := _RATIO.fullmatch(text):
        return _ratio(match[1], match[2] or "1")
    bare = bare_text(text)
    if match := _RATIO.fullmatch(bare):
        return _ratio(match[1], match[2] or "1")
    if match := _LATEX_RATIO.fullmatch(bare) or _MIXED.fullmatch(bare):
        sign, integer, part = -1 if match[1] == "-" else 1, match[2], _ratio(match[3], match[4])
        if part is None or integer is None:
            return None if part is None else sign * part
        return sign * (int(integer) + part) if 0 < part < 1 else None  # 2 3/2 is no mixed number
    return None


def _ratio(over: str, under: str) -> Fraction | None:
    above, below = (Fraction(number.replace(",", "")) for number in (over, under))
    return above / below if below else None


def gold_value(gold: str) -> Fraction | None:
    """The number that a gold answer means, or None: `parse_value`, or e-notation, as columns of numbers are written.

    >>> gold_value("1e-05"), parse_value("1e-05")
    (Fraction(1, 100000), None)
    """
    return Fraction(gold) if _E_NOTATION.fullmatch(gold) else parse_value(gold)


def equals_gold(answer: str, gold: str) -> bool:
    """Whether an answer equals a gold answer: as numbers when both are numbers, else as text without decoration.

    E-notation is read in a gold answer and, where the gold answer has it, in the answer too; in other answers 2e3 is 2
    times e times 3.
    """
    if _E_NOTATION.fullmatch(gold):
        return answer == gold or gold_value(answer) == Fraction(gold)
    return same_value(answer, gold)


def same_value(a: str, b: str) -> bool:
    """Whether two answers are equal: as numbers when both are numbers, else as text without decoration.

    A unit may be left out, but is not another one than in the other answer. 5 m is 5 meters, and not 5.
    """
    values = parse_value(a), parse_value(b)
    if values[0] != values[1]:
        texts = same_letters(a, b) if None in values else None
        return texts is not None and parse_value(texts[0]) == parse_value(texts[1])
    return a == b or ((values[0] is not None or bare_text(a) == bare_text(b) != "") and not other_unit(a, b))


def is_worked(text: str) -> bool:
    r"""Whether an equation such as `15 - 3 = 12` stands before the last box (anywhere when there is no box).

    >>> is_worked(r"15 - 3 = 12. \boxed{12}"), is_worked(r"I think \boxed{12}")
    (True, False)
    """
    boxes = [match.start() for match in _BOX.finditer(text)]
    return _EQUATION.search(text[: boxes[-1]] if boxes else text) is not None


class BoxedAnswers:
    """The rewards of a `Task` whose verifier compares answers: 1.0 for the right answer, 0.5 for a box."""

    @property
    def verifier(self) -> str | None:
        """`correct_answer`, which compares the answer by value."""
        return "correct_answer"

    @property
    def default_rewards(self) -> Mapping[str, float]:
        """0.5 for a boxed answer, 1.0 for the right one; empty with a verifier in a file, which only the run loads."""
        if self.verifier is None:
            return {"boxed_format": 0.5}
        return {} if is_in_file(self.verifier) else {"boxed_format": 0.5, self.verifier: 1.0}

    @property
    def default_step_rewards(self) -> Mapping[str, float]:
        """None: the answer alone does not say which reasoning steps lead to a solution."""
        return {}

    @property
    def own_rewards(self) -> Mapping[str, Callable[..., Any]]:
        """None: the verifier is a built-in reward."""
        return {}

    def traits(self, text: str) -> Mapping[str, bool]:
        """`worked`: an equation stands before the answer."""
        return {"worked": is_worked(text)}


def is_in_file(verifier: str) -> bool:
    """Whether a verifier is a function in a Python file, `FILE.py:FUNCTION`, rather than a name."""
    return verifier.rpartition(":")[0].endswith(".py")


def boxed_prompt(question: str) -> tuple[Message, ...]:
    """The question as chat messages with the instruction to box the final answer."""
    return {"role": "system", "content": BOXED_PROMPT}, {"role": "user", "content": question}


def boxed(answer: str) -> str:
    r"""The shortest completion with this answer.

    >>> boxed("7")
    '\\boxed{7}'
    """
    return f"\\boxed{{{answer}}}"


def with_format(task: Task, format: Format = "boxed", system_prompt: str | None = None) -> Task:  # noqa: A002  as in a configuration
    """The task with another format of its completions and another system prompt, or unchanged.

    Args:
        task: any task.
        format: `think` asks for `<think>...</think><answer>...</answer>` (DeepSeek-R1, arXiv:2501.12948) and rewards
            these tags in place of the box; `boxed` keeps the task's own format.
        system_prompt: replaces the task's; `think` appends its instruction. "" = no system prompt. It is a message
            before the user's, or a paragraph before a plain-text prompt. None = the task's own.
    """
    instruction = system_prompt
    if format == "think" and system_prompt != "":
        instruction = "\n\n".join(filter(None, (system_prompt, THINK_PROMPT)))
    if instruction is None and format == "boxed":
        return task
    renamed = {"boxed_format": "think_format"} if format == "think" else {}

    def gold(problem: Problem) -> str | None:
        written = task.gold(problem)
        return written if written is None or format == "boxed" else with_think_tags(written)

    return derived(
        task,
        lambda split: each(task.problems(split), lambda problem: _with_system_prompt(problem, instruction)),
        gold=gold,
        default_rewards={renamed.get(name, name): weight for name, weight in task.default_rewards.items()},
    )


def _with_system_prompt(problem: Problem, instruction: str | None) -> Problem:
    if instruction is None:
        return problem
    if isinstance(problem.prompt, str):
        return replace(problem, prompt="\n\n".join(filter(None, (instruction, problem.prompt))))
    system: tuple[Message, ...] = ({"role": "system", "content": instruction},) if instruction else ()
    others = (message for message in problem.prompt if message["role"] != "system")
    return replace(problem, prompt=(*system, *others))


def with_think_tags(completion: str) -> str:
    r"""A completion in R1's format: the text before its answer is the thought; without an answer the whole text is one.

    >>> with_think_tags("15 - 3 = 12. \\boxed{12}")
    '<think>15 - 3 = 12.</think>\n<answer>12</answer>'
    """
    answer = final_text(completion)
    before = completion.partition("<answer>")[0].rpartition("\\boxed")[0].strip() if answer is not None else ""
    thought = before.rstrip("$").strip() or "The answer is known."
    return f"<think>{thought}</think>\n<answer>{completion.strip() if answer is None else answer}</answer>"
