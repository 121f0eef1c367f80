r"""The completions on which a reward is tried: some should score; the others are tricks.

They are made from the task's gold completions, without a model; the same problems always give the same texts.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from grouprl.tasks.answers import final_text, same_value
from grouprl.types import Problem

_PADDING = "Let me think about this carefully, one step after another, and check everything again.\n" * 25
_WORD = "the " * 200
_OPTIONS = 6  # answers in a stuffed completion
_NUMBER = re.compile(r"[0-9](?:[0-9,.]*[0-9])?")
_BOX = re.compile(r"\\boxed\s?\{")
_TAG = re.compile("<answer>")


@dataclass(frozen=True)
class Form:
    """The marks of the final answer in a task's completions."""

    before: str
    after: str
    opening: re.Pattern[str] | None = None  # matches the start of a mark; None = the answer is not a short text
    thought: str = ""  # required text before the mark
    no_thought: str = ""  # the same tags without content

    def marked(self, answer: str) -> str:
        """Puts the answer in its box or tags."""
        return f"{self.before}{answer}{self.after}"

    def whole(self, answer: str) -> str:
        """Makes the shortest well-formed completion with this answer."""
        return self.thought + self.marked(answer)


BOX = Form("\\boxed{", "}", _BOX)
TAGS = Form("<answer>", "</answer>", _TAG)
R1 = Form("<answer>", "</answer>", _TAG, "<think>\nI know this one.\n</think>\n", "<think></think>\n")
FENCE = Form("```python\n", "\n```")


def form_of(gold: str | None, task_format: Literal["boxed", "think"]) -> Form | None:
    """Returns the form of a gold completion, or without one the form of the task's format; None = bare text."""
    if gold is None:
        return R1 if task_format == "think" else BOX
    if final_text(gold) is None:
        return FENCE if "```" in gold else None
    if "<answer>" not in gold:
        return BOX
    return R1 if "<think>" in gold else TAGS


@dataclass(frozen=True)
class Material:
    """The parts from which one problem's completions are made; None = there is none."""

    prompt: str
    form: Form | None
    gold: str | None = None  # a completion that solves the problem
    answer: str | None = None  # the answer in its box or tags
    other_gold: str | None = None  # a gold completion of a problem with another answer
    wrong: str | None = None  # an answer of another problem
    options: tuple[str, ...] = ()  # several answers; the right one is among them, but not last
    commonest: str | None = None  # the most common answer of the problems

    @property
    def reasoning(self) -> str:
        """The text before the answer in the gold completion."""
        opening = self.form.opening if self.form else None
        starts = [mark.start() for mark in opening.finditer(self.gold or "")] if opening else []
        return (self.gold or "")[: starts[-1]] if starts else ""


@dataclass(frozen=True)
class Kind:
    """One kind of completion, and whether it should score."""

    name: str
    trick: bool  # wrong or degenerate: it must not beat gold
    about: str
    needs: str  # what the task must provide for it
    write: Callable[[Material], str | None]  # None = this problem has no such completion
    right: bool = False  # it ends in the right answer, so it may score as much as gold


def _padded(m: Material) -> str | None:
    if m.gold is None:
        return None
    head = "<think>" if m.gold.startswith("<think>") else ""
    return head + _PADDING + m.gold.removeprefix(head)


def _answer_alone(m: Material) -> str | None:
    return m.form.whole(m.answer) if m.form and m.answer is not None else None


def _three_times(m: Material) -> str | None:
    return None if m.gold is None else "\n".join([m.gold] * 3)


def _wrong_answer(m: Material) -> str | None:
    return m.reasoning + m.form.marked(m.wrong) if m.form and m.wrong is not None else None


def _many_answers(m: Material) -> str | None:
    return m.form.thought + " ".join(map(m.form.marked, m.options)) if m.form and m.options else None


def _either_or(m: Material) -> str | None:
    return m.form.whole(" or ".join(m.options)) if m.form and m.options else None


def _in_thought(m: Material) -> str | None:
    if m.form is None or m.answer is None or m.wrong is None:
        return None
    return f"<think>\n{m.form.marked(m.answer)}\n</think>\n{m.form.marked(m.wrong)}"


def _commonest(m: Material) -> str | None:
    return m.form.whole(m.commonest) if m.form and m.commonest is not None else None


def _last_number(m: Material) -> str | None:
    numbers = _NUMBER.findall(m.prompt)
    return m.form.whole(numbers[-1]) if m.form and m.form.opening and numbers else None


def _empty_form(m: Material) -> str | None:
    return m.form.no_thought + m.form.marked("") if m.form else None


_GOLD, _SOME_GOLD = "gold completions", "gold completions with different answers"
_ANSWER, _ANSWERS = "gold answers in a box or tags", "different gold answers in boxes or tags"

GOLD = Kind("gold", False, "the task's own solution", _GOLD, lambda m: m.gold)
PADDED = Kind("padded gold", False, f"{len(_PADDING):,} characters of padding, then gold", _GOLD, _padded)
SHUFFLED = Kind("shuffled gold", True, "gold of another problem", _SOME_GOLD, lambda m: m.other_gold)

KINDS: tuple[Kind, ...] = (
    GOLD,
    PADDED,
    Kind("answer alone", False, "the right answer without its reasoning", _ANSWER, _answer_alone),
    Kind("gold three times", True, "the solution, again and again", _GOLD, _three_times, right=True),
    SHUFFLED,
    Kind("wrong answer", True, "gold's reasoning, the answer of another problem", _ANSWERS, _wrong_answer),
    Kind("many answers", True, "several answers, each marked, the right one not last", _ANSWERS, _many_answers),
    Kind("a or b or c", True, "the same answers in a single mark", _ANSWERS, _either_or),
    Kind("answer in thought", True, "the right answer while thinking, then a wrong one", _ANSWERS, _in_thought),
    Kind("commonest answer", True, "the answer that most of these problems have", _ANSWER, _commonest),
    Kind("last number", True, "that of the prompt as the answer", "prompts with a number and " + _ANSWER, _last_number),
    Kind("empty form", True, "the marks of an answer, nothing in them", "answers with a mark", _empty_form),
    Kind("copied prompt", True, "the prompt, word for word", "", lambda m: m.prompt),
    Kind("word 200 times", True, "one word, again and again", "", lambda m: _WORD.strip()),
    Kind("empty", True, "nothing at all", "", lambda m: ""),
)


def trial_completions(
    problems: Sequence[Problem], golds: Sequence[str | None], task_format: Literal["boxed", "think"] = "boxed"
) -> list[dict[str, str]]:
    """Makes the texts of each problem's completions, by the name of their kind; skips kinds that cannot be made.

    Args:
        problems: [P]; wrong answers come from the other problems, so that they are plausible.
        golds: [P], a completion that solves each problem, or None.
        task_format: the form of the answers if there is no gold completion.
    """
    made = [(kind, material) for material in _materials(problems, golds, task_format) for kind in KINDS]
    texts: list[dict[str, str]] = [{} for _ in problems]
    for place, (kind, material) in enumerate(made):
        text = kind.write(material)
        if text is not None:
            texts[place // len(KINDS)][kind.name] = text
    return texts


def _materials(
    problems: Sequence[Problem], golds: Sequence[str | None], task_format: Literal["boxed", "think"]
) -> list[Material]:
    answers = [None if gold is None else final_text(gold) for gold in golds]
    counted = Counter(answer for answer in answers if answer is not None)
    commonest = counted.most_common(1)[0][0] if counted.total() > 1 else None  # of one problem it would be right
    known = [(gold, answer) for gold, answer in zip(golds, answers, strict=True) if gold is not None]
    return [
        _material(problem, gold, answer, known, form_of(gold, task_format), commonest)
        for problem, gold, answer in zip(problems, golds, answers, strict=True)
    ]


def _material(
    problem: Problem,
    gold: str | None,
    answer: str | None,
    known: Sequence[tuple[str, str | None]],
    form: Form | None,
    commonest: str | None,
) -> Material:
    if gold is None:
        return Material(problem.prompt_text, form, commonest=commonest)
    rng = random.Random(f"check_reward/{problem.id}")
    others = (pair for pair in rng.sample(known, len(known)) if _differs(pair, (gold, answer)))
    other_gold, wrong = next(others, (None, None))
    if answer is None:
        return Material(problem.prompt_text, form, gold, other_gold=other_gold, commonest=commonest)
    more = dict.fromkeys([wrong, *(text for _, text in islice(others, 4 * _OPTIONS))])
    decoys = [text for text in more if text is not None][: _OPTIONS - 1]
    place = rng.randrange(max(1, len(decoys)))
    options = (*decoys[:place], answer, *decoys[place:]) if decoys else ()
    return Material(problem.prompt_text, form, gold, answer, other_gold, wrong, options, commonest)


def _differs(one: tuple[str, str | None], other: tuple[str, str | None]) -> bool:
    """Whether two (gold, answer) pairs have different answers, or different texts if an answer is not a short text."""
    if one[1] is None or other[1] is None:
        return one[0] != other[0]
    return not same_value(one[1], other[1])
