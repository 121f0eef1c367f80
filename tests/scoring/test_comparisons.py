"""Reward functions that compare their completions, and those of TRL's documentation and others that do not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grouprl.scoring.comparisons import comparison_in
from grouprl.scoring.functions import FromFile


def above_the_mean(completions, **columns):
    n = len(completions)
    mean = sum(len(text) for text in completions) / n
    return [1.0 if len(text) > mean else 0.0 for text in completions]


def the_longest(completions, **columns):
    lengths = [len(text) for text in completions]
    return [float(length == max(lengths)) for length in lengths]


def new(completions, **columns):
    texts = [text.lower() for text in completions]
    times = Counter(texts)
    return [float(times[text] == 1) for text in texts]


def normalized(completions, **columns):
    values = np.array([float(len(text)) for text in completions])
    return (values - values.mean()) / (values.std() + 1e-6)


def in_rows(completions, group_size=4, **columns):
    rewards = []
    for text in completions:
        rewards.append(float(len(text)))
    best = max(rewards)
    return [reward / best for reward in rewards]


def by_group(completions, **columns):
    groups = len(completions) // 8
    return [float(groups)] * len(completions)


def of_a_size(completions, **columns):
    return [1.0 if len(completions) == 8 else 0.0 for _ in completions]


class Ranked:
    def __call__(self, completion_ids, **columns):
        order = sorted(completion_ids)
        return [float(order.index(ids)) for ids in completion_ids]


@pytest.mark.parametrize(
    ("function", "line", "code"),
    [
        (above_the_mean, 3, "sum((len(text) for text in completions)) / n"),
        (the_longest, 3, "max(lengths)"),
        (new, 3, "Counter(texts)"),
        (normalized, 3, "values.mean()"),
        (in_rows, 5, "max(rewards)"),
        (by_group, 2, "len(completions) // 8"),
        (of_a_size, 2, "len(completions) == 8"),
        (Ranked(), 2, "sorted(completion_ids)"),
        (partial(the_longest, other=1), 3, "max(lengths)"),
    ],
)
def test_a_comparison_is_found_with_its_line(function: Callable[..., Any], line: int, code: str) -> None:
    assert comparison_in(function) == (line, code)


def constant(completions, **columns):
    return [1.0] * len(completions)


def by_index(completions, answer, **columns):
    rewards = [0.0] * len(completions)
    for index in range(len(completions)):
        if completions[index] == answer[index]:
            rewards[index] = 1.0
    return rewards


def checked(completions, answer, **columns):
    assert len(completions) == len(answer)
    if len(completions) == 0:
        return []
    contents = [re.search(r"\d+", text) for text in completions]
    return [1.0 if found and found.group() == right else 0.0 for found, right in zip(contents, answer, strict=True)]


def within_each(completions, **columns):
    rewards = []
    for text in completions:
        parts = []
        for line in text.splitlines():
            parts.append(len(line))
        longest, words = max(parts), set(text.split())
        rewards.append(min(1.0, longest / 80) + len(words) / len(text) + max(len(word) for word in words))
    return rewards


def logged(completions, log_metric, **columns):
    rewards = [float(len(text)) for text in completions]
    log_metric("mean", sum(rewards) / len(rewards))
    print(f"mean {sum(rewards) / len(completions)}")
    accuracy = sum(rewards) / len(rewards)
    print(accuracy)
    return rewards


def by_words(completions, **columns):
    return [max(len(word) for word in text.split()) / len(text) for text in completions]


@pytest.mark.parametrize(
    "function", [constant, by_index, checked, within_each, by_words, len, Counter, lambda completions: [0.0]]
)
def test_what_looks_at_one_completion_at_a_time_is_no_comparison(function: Callable[..., Any]) -> None:
    assert comparison_in(function) is None


def test_what_is_only_shown_is_no_comparison() -> None:
    found = comparison_in(logged)
    assert found is None, found


def test_a_function_in_a_file_is_read_and_not_run(tmp_path: Path) -> None:
    path = tmp_path / "rewards.py"
    path.write_text(
        "raise SystemExit\n\n"
        "def other(completions):\n    return [1.0] * len(completions)\n\n"
        "class Best:\n    def __call__(self, completions):\n        best = max(completions)\n"
        "        return [float(text == best) for text in completions]\n"
    )
    assert comparison_in(FromFile(str(path), "other")) is None
    assert comparison_in(FromFile(str(path), "Best")) == (2, "max(completions)")
    assert comparison_in(FromFile(str(path), "gone")) is None


def test_a_file_that_is_no_python_is_left_to_the_workers(tmp_path: Path) -> None:
    path = tmp_path / "rewards.py"
    path.write_text("def reward(:\n")
    assert comparison_in(FromFile(str(path), "reward")) is None
