r"""The completions on which a reward is tried: some should score, the others are tricks; and their scores.

They are made from the task's gold completions, without a model; the same problems always give the same texts. The run's
rewards score them as groups, like in the run, and then each alone, with its time.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Literal

from grouprl.models.prompts import authored_completion
from grouprl.rewards.scorer import Scorer
from grouprl.run.display import Advance
from grouprl.tasks.answers import final_text, same_value
from grouprl.types import Group, Problem, RewardOutcome

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PADDING = "Let me think about this carefully, one step after another, and check everything again.\n" * 25
_WORDS = " ".join(["the"] * 200)
_OPTIONS = 6  # answers in a stuffed completion
_NUMBER = re.compile(r"[0-9](?:[0-9,.]*[0-9])?")


@dataclass(frozen=True)
class Form:
    """The marks of the final answer in a task's completions."""

    before: str
    after: str
    opening: str = ""  # pattern of the start of a mark; empty = the answer is not a short text
    thought: str = ""  # required text before the mark
    no_thought: str = ""  # the same tags without content

    def marked(self, answer: str) -> str:
        """Puts the answer in its box or tags."""
        return f"{self.before}{answer}{self.after}"

    def whole(self, answer: str) -> str:
        """Makes the shortest well-formed completion with this answer."""
        return self.thought + self.marked(answer)


BOX = Form("\\boxed{", "}", r"\\boxed\s?\{")
TAGS = Form("<answer>", "</answer>", "<answer>")
R1 = Form("<answer>", "</answer>", "<answer>", "<think>\nI know this one.\n</think>\n", "<think></think>\n")
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
class Kind:
    """One kind of completion, and whether it should score."""

    name: str
    trick: bool  # wrong or degenerate: it must not beat gold
    about: str
    needs: str  # what the task must provide for it
    right: bool = False  # it ends in the right answer, so it may score as much as gold


_GOLD, _SOME_GOLD = "gold completions", "gold completions with different answers"
_ANSWER, _ANSWERS = "gold answers in a box or tags", "different gold answers in boxes or tags"

GOLD = Kind("gold", False, "the task's own solution", _GOLD)
PADDED = Kind("padded gold", False, f"{len(_PADDING):,} characters of padding, then gold", _GOLD)
RECORDED = Kind("recorded", False, "what the policy of a run wrote", "a recorded run")
SHUFFLED = Kind("shuffled gold", True, "gold of another problem", _SOME_GOLD)

KINDS: tuple[Kind, ...] = (
    GOLD,
    PADDED,
    Kind("answer alone", False, "the right answer without its reasoning", _ANSWER),
    Kind("gold three times", True, "the solution, again and again", _GOLD, right=True),
    SHUFFLED,
    Kind("wrong answer", True, "gold's reasoning, the answer of another problem", _ANSWERS),
    Kind("many answers", True, "several answers, each marked, the right one not last", _ANSWERS),
    Kind("a or b or c", True, "the same answers in a single mark", _ANSWERS),
    Kind("answer in thought", True, "the right answer while thinking, then a wrong one", _ANSWERS),
    Kind("commonest answer", True, "the answer that most of these problems have", _ANSWER),
    Kind("last number", True, "the prompt's last number as the answer", "prompts with a number and " + _ANSWER),
    Kind("empty form", True, "the marks of an answer, nothing in them", "answers with a mark"),
    Kind("copied prompt", True, "the prompt, word for word", ""),
    Kind("word 200 times", True, "one word, again and again", ""),
    Kind("empty", True, "nothing at all", ""),
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
    answers = [None if gold is None else final_text(gold) for gold in golds]
    counted = Counter(answer for answer in answers if answer is not None)
    commonest = counted.most_common(1)[0][0] if counted.total() > 1 else None  # of one problem it would be right
    gold_answers = [(gold, answer) for gold, answer in zip(golds, answers, strict=True) if gold is not None]
    rows = []
    for problem, gold, answer in zip(problems, golds, answers, strict=True):
        form = form_of(gold, task_format)
        texts = {"copied prompt": problem.prompt_text, "word 200 times": _WORDS, "empty": ""}
        if form is not None:
            texts["empty form"] = form.no_thought + form.marked("")
            if commonest is not None:
                texts["commonest answer"] = form.whole(commonest)
            if form.opening and (numbers := _NUMBER.findall(problem.prompt_text)):
                texts["last number"] = form.whole(numbers[-1])
        if gold is not None:
            head = "<think>" if gold.startswith("<think>") else ""
            texts["gold"] = gold
            texts["padded gold"] = head + _PADDING + gold.removeprefix(head)
            texts["gold three times"] = "\n".join([gold] * 3)
            rng = random.Random(f"check_reward/{problem.id}")
            different = (pair for pair in rng.sample(gold_answers, len(gold_answers)) if _differs(pair, (gold, answer)))
            others = [*islice(different, 1 + 4 * _OPTIONS)]
            if others:
                texts["shuffled gold"] = others[0][0]
            if form is not None and answer is not None:
                texts["answer alone"] = form.whole(answer)
                if others and (wrong := others[0][1]) is not None:
                    *_, last = re.finditer(form.opening, gold)
                    texts["wrong answer"] = gold[: last.start()] + form.marked(wrong)
                    texts["answer in thought"] = f"<think>\n{form.marked(answer)}\n</think>\n{form.marked(wrong)}"
                decoys = [text for text in dict.fromkeys(pair[1] for pair in others) if text is not None]
                decoys = decoys[: _OPTIONS - 1]
                if decoys:
                    right = rng.randrange(len(decoys))
                    options = [*decoys[:right], answer, *decoys[right:]]  # the right one is among them, but not last
                    texts["many answers"] = form.thought + " ".join(map(form.marked, options))
                    texts["a or b or c"] = form.whole(" or ".join(options))
        rows.append({kind.name: texts[kind.name] for kind in KINDS if kind.name in texts})
    return rows


def _differs(pair: tuple[str, str | None], other: tuple[str, str | None]) -> bool:
    """Whether two (gold, answer) pairs have different answers, or different texts if an answer is not a short text."""
    if pair[1] is None or other[1] is None:
        return pair[0] != other[0]
    return not same_value(pair[1], other[1])


# Their scores

_BY_NAME = {kind.name: kind for kind in (*KINDS, RECORDED)}


@dataclass(frozen=True)
class Trial:
    """One completion and its outcomes, call by call."""

    problem_id: str
    kind: Kind
    text: str
    tokens: int  # the end token included
    outcome: RewardOutcome  # from a call with the problem's other completions
    alone: tuple[RewardOutcome, ...] = ()  # from a call with this completion alone, and from another if they differ
    seconds: float | None = None  # time of the first call alone; None = not called again, because it was invalid


def score_trials(
    scorer: Scorer,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    texts: Sequence[Mapping[str, str]],
    advance: Advance,
    recorded: Sequence[Group] = (),
) -> list[Trial]:
    """Calls every reward on every group, then on each completion alone; if these differ, alone once more.

    Args:
        scorer: scores with the run's rewards; it must not stop at invalid completions (max_invalid=1).
        tokenizer: of the policy.
        problems: [P].
        texts: of each problem's completions, by the name of their kind: [P] of `trial_completions`.
        advance: called with the number of scored completions.
        recorded: further groups, of a run; their episodes are scored with what was said and what environments gave.
    """
    groups = [
        Group(problem, (), tuple(authored_completion(n, text, tokenizer) for n, text in enumerate(row.values())))
        for problem, row in zip(problems, texts, strict=True)
    ]
    names = [*(list(row) for row in texts), *([RECORDED.name] * len(group.completions) for group in recorded)]
    groups += recorded
    pending_groups, together = [scorer.begin(group) for group in groups], []
    compared = any(reward.scope == "batch" for reward in scorer.rewards)
    for pending in [pending_groups] if compared else [[pending_group] for pending_group in pending_groups]:
        together += (scored := scorer.finish(pending, tokenizer))
        advance(sum(map(len, scored)))
    trials = []
    for group, row, outcomes in zip(groups, names, together, strict=True):
        for name, completion, outcome in zip(row, group.completions, outcomes, strict=True):
            trial = Trial(group.problem.id, _BY_NAME[name], completion.text, len(completion), outcome)
            if outcome.valid:
                single = replace(group, completions=(completion,))
                started = time.perf_counter()
                alone = scorer.finish([scorer.begin(single)], tokenizer)[0]
                seconds = time.perf_counter() - started
                if alone[0].components != outcome.components:
                    alone += scorer.finish([scorer.begin(single)], tokenizer)[0]
                trial = replace(trial, alone=alone, seconds=seconds)
            trials.append(trial)
            advance(1)
    return trials
