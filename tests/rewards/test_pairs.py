"""The two verifiers against the table of `answer_pairs`."""

from __future__ import annotations

import pytest

from answer_pairs import BOTH, NONE, PAIRS
from grouprl.rewards.rules import correct_answer


def accepted(verifier, answer: str, gold: object) -> float:
    (value,) = verifier(
        prompts=["?"], completions=[rf"so it is \boxed{{{answer}}}."], completion_ids=[[1]], answer=[gold]
    )
    return value


@pytest.mark.parametrize(("answer", "gold", "who", "why"), PAIRS)
def test_correct_answer(answer: str, gold: object, who: str, why: str):
    assert accepted(correct_answer, answer, gold) == float(who == BOTH), why


@pytest.mark.parametrize(("answer", "gold", "who", "why"), PAIRS)
def test_math_verify(answer: str, gold: object, who: str, why: str):
    pytest.importorskip("math_verify")
    from grouprl.checks.symbolic import MathVerify

    assert accepted(MathVerify(), answer, gold) == float(who != NONE), why


@pytest.mark.parametrize("gold", [pair[1] for pair in PAIRS if isinstance(pair[1], str)])
def test_the_gold_answer_itself_is_right(gold: str):
    """A policy that writes what the data set has is paid; of a solution that is the answer at its end."""
    pytest.importorskip("math_verify")
    from grouprl.checks.symbolic import MathVerify

    written = gold.rpartition("####")[2].strip() if "####" in gold else gold
    if r"\boxed" not in written:
        assert accepted(correct_answer, written, gold) == 1.0
        assert accepted(MathVerify(), written, gold) == 1.0
