"""What hostile completions do to the built-in rewards: nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from grouprl.config.run import ScoringConfig
from grouprl.models.load import load_tokenizer
from grouprl.rewards.configured import open_scorer
from grouprl.rewards.functions import WeightedReward
from grouprl.rewards.scorer import Scoring
from grouprl.types import Problem
from groups import group_of
from hostile import CORPUS, USUAL, forked, rewards

SAFE = (
    "boxed_format", "correct_answer", "cosine_length", "equation_steps", "json_schema", "regex", "repetition",
    "think_format",
)  # fmt: skip


@pytest.fixture(scope="module")
def judged(folder: Path) -> list[dict[str, Any]]:
    """Name of the entry -> its values by reward, each with the seconds it took, and what was seen to be run.

    For the rules with 10 seconds each, and for math_verify with one; nothing else of its takes half of that.
    """
    pytest.importorskip("jsonschema")
    sets = [f"10:{','.join(SAFE)}"] + ["1:math_verify"] * (find_spec("math_verify") is not None)
    command = [sys.executable, str(Path(__file__).parents[1] / "support" / "hostile.py"), *sets]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, env={**os.environ})
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()[-len(sets) :]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def found(judged: list[dict[str, Any]]) -> dict[str, Any]:
    return judged[0]


@pytest.fixture(scope="module")
def symbolic(judged: list[dict[str, Any]]) -> dict[str, Any]:
    pytest.importorskip("math_verify")
    return judged[1]


def test_the_corpus_is_a_corpus() -> None:
    assert len(CORPUS) == len({entry.name for entry in CORPUS}) >= 100


def test_a_rule_gives_the_value_that_a_person_would_and_soon(found: dict[str, Any]) -> None:
    for entry in CORPUS:
        judged = found[entry.name]["values"]
        expected = {name: entry.values.get(name, USUAL.get(name, 0.0)) for name in SAFE}
        assert {name: value for name, (value, _) in judged.items()} == expected, entry.name
        assert max(seconds for _, seconds in judged.values()) < 8.0, entry.name
        assert found[entry.name]["seen"] == [], entry.name


def test_math_verify_takes_nothing_hostile_for_right(symbolic: dict[str, Any]) -> None:
    for entry in CORPUS:
        value, _ = symbolic[entry.name]["values"]["math_verify"]
        assert value in (0.0, entry.values.get("math_verify", 0.0)), entry.name
        assert symbolic[entry.name]["seen"] == [], entry.name


def test_nothing_was_executed(folder: Path, found: dict[str, Any], symbolic: dict[str, Any]) -> None:
    assert list(folder.iterdir()) == []


def test_the_guard_ends_what_does_not_end() -> None:
    functions = rewards("nested_repeats")
    assert forked(functions, "a" * 60 + "!", 1)["values"]["nested_repeats"][0] == "killed"
    assert forked(functions, "a" * 60, 1)["values"]["nested_repeats"][0] == 1.0


def test_the_guard_sees_what_is_executed() -> None:
    def broken(completions: list[str], **_: Any) -> list[float]:
        return [float(eval(text)) for text in completions]

    report = forked({"broken": broken}, "__import__('os').system('true') + 1", 5)
    assert report["values"]["broken"][0] == 1.0
    assert [event.split()[0] for event in report["seen"]] == ["exec", "os.system"]


@pytest.mark.slow
def test_the_pool_survives_the_corpus() -> None:
    """All built-in rewards on groups of hostile completions beside a good one: that one always keeps its value."""
    pytest.importorskip("math_verify")
    good = r"3 + 4 = 7. \boxed{7}"
    weighted = [WeightedReward(name, made) for name, made in rewards("nested_repeats", "math_verify", *SAFE).items()]
    weighted = [replace(reward, per_step=reward.name == "equation_steps") for reward in weighted]
    limits = ScoringConfig(workers=2, seconds=3.0, max_invalid=1.0)
    with open_scorer(weighted, limits=limits) as scorer:
        scoring = Scoring(scorer, load_tokenizer("abacus"))
        for place in range(0, len(CORPUS), 8):
            texts = [good, *(entry.text for entry in CORPUS[place : place + 8])]
            scoring.begin(place, group_of(Problem("p", "3 + 4 = ?", {"answer": "7"}), *texts))
        outcomes = scoring.finish()
        deadline = time.monotonic() + 2.0
        while len(scorer.pool.pids) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    for first, *_ in outcomes:
        assert (first.components["correct_answer"], first.components["math_verify"]) == (1.0, 1.0)
    invalid = [outcome for row in outcomes for outcome in row if not outcome.valid]
    assert 0 < len(invalid) < len(CORPUS) / 2
    assert all(outcome.reason for outcome in invalid)
