"""Whether some data fits a model: estimates against enumeration and known distributions; the command on real rows."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from itertools import combinations, product
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grouprl.record.read import read_rollouts
from grouprl.tools.check_data.estimate import (
    departures,
    pass_rate_weights,
    signal_chance,
    signal_interval,
    subset_signal,
)
from small_runs import grouprl, write_rows


@pytest.mark.parametrize("totals", [(1, 0, 0, 0, 1), (1, 1, 1, 1), (0, 1, 2, 2, 0.5, 0.5), (3, 2, 1, 0)])
def test_the_share_of_subsets_that_differ_is_counted(totals: tuple[float, ...]) -> None:
    for size in range(2, len(totals) + 1):
        subsets = list(combinations(totals, size))
        assert subset_signal(totals, size) == sum(len(set(subset)) > 1 for subset in subsets) / len(subsets)


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.8])
def test_its_mean_over_all_outcomes_is_the_chance_of_a_signal(rate: float) -> None:
    for size in (2, 3, 5):
        mean = sum(
            rate ** sum(totals) * (1 - rate) ** (5 - sum(totals)) * subset_signal(totals, size)
            for totals in product((0, 1), repeat=5)
        )
        assert mean == pytest.approx(1 - rate**size - (1 - rate) ** size, abs=1e-12)


@pytest.mark.parametrize(
    ("totals", "others"), [((1, 0, 0, 0), 1), ((1, 1, 1, 0), 1), ((1, 1), 0), ((0, 1, 2, 3), 2), ((), 0)]
)
def test_completions_beside_the_commonest_reward(totals: tuple[float, ...], others: int) -> None:
    assert departures(totals) == others


# Pass rates of problems; one kind is that of a data set of which a model solves 2 %.
DISTRIBUTIONS: dict[str, Callable[[Any], Any]] = {
    "even": lambda rng: rng.random(200),
    "U": lambda rng: rng.beta(0.3, 0.5, 200),
    "equal": lambda _: np.full(200, 0.1),
    "hard": lambda rng: np.where(rng.random(200) < 0.1, rng.beta(1, 6, 200), rng.beta(0.05, 10, 200)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_larger_groups_than_were_sampled_are_foretold_from_200_problems(name: str) -> None:
    """Against the true chances of the problems' own pass rates, which the estimate does not know."""
    rng, errors, naive_errors, held = np.random.default_rng(0), [], [], []
    for _ in range(4):
        rates = DISTRIBUTIONS[name](rng)
        counts = rng.binomial(16, rates)
        others = np.minimum(counts, 16 - counts).tolist()
        weights, shares = pass_rate_weights(others, [16] * 200, folded=True), counts / 16
        for size in (32, 64):
            truth = np.mean(1 - rates**size - (1 - rates) ** size)
            errors.append(signal_chance(weights, size).mean() - truth)
            naive_errors.append(np.mean(1 - shares**size - (1 - shares) ** size) - truth)
            low, high = signal_interval(others, [16] * 200, size)
            assert low <= signal_chance(weights, size).mean() <= high
            held.append(low <= truth <= high)
    assert abs(np.mean(errors)) < 0.04
    assert abs(np.mean(naive_errors)) > 2 * abs(np.mean(errors))
    assert sum(held) >= 6  # of 8


def test_a_choice_of_problems_promises_what_it_holds() -> None:
    """Of 2,000 problems with a chance of 5 % those that were solved at all are still problems of 5 %."""
    counts = np.random.default_rng(0).binomial(16, 0.05, 2000)
    weights = pass_rate_weights(np.minimum(counts, 16 - counts).tolist(), [16] * 2000, folded=True)
    chosen = signal_chance(weights, 8)[counts >= 2]
    assert chosen.mean() == pytest.approx(1 - 0.95**8 - 0.05**8, abs=0.03)


REWARD = '''
def judge(prompts, completions, **kwargs):
    """Right for every even number, wrong for every odd one above 9, else by the length of the text."""
    values = []
    for prompt, text in zip(prompts, completions):
        number = int(prompt.split()[1].rstrip("."))
        values.append(float(len(text) % 2) if number < 10 else float(number % 2 == 0))
    return values
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    write_rows(folder / "data.jsonl", [{"prompt": f"Say {number}."} for number in range(60)])
    (folder / "judge.py").write_text(REWARD)
    return folder


def check(place: Path, model: Path, *more: object) -> Any:
    judge = f"{place / 'judge.py'}:judge"
    return grouprl(
        "check-data", "--model", model, "--task", place / "data.jsonl", "model.threads=1",
        *([] if "mixture" in more else [f"task.arguments.verifier={judge}"]),
        *([] if "--reward" in more else ["--reward", judge]),
        "evaluation.problems=0", "rollout.problems_per_step=16", "rollout.max_tokens=4", *more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def checked(place: Path, tiny: Path) -> dict[str, Any]:
    ended = check(place, tiny, "--problems", 100, "--samples", 6, "--json")
    assert ended.code == 0, ended.err
    values: dict[str, Any] = json.loads(ended.out)
    return values


def test_its_numbers_are_those_of_the_completions(checked: dict[str, Any]) -> None:
    problems = {int(row["problem"].rpartition("/")[2]): row for row in checked["problems"]}
    assert len(problems) == 60
    for number, row in problems.items():
        if number >= 10:
            assert (row["correct"], row["samples"]) == (6 * (number % 2 == 0), 6)
    counts = [row["correct"] for row in checked["problems"]]
    assert any(0 < count < 6 for count in counts)
    assert checked["pass_rate"] == pytest.approx(sum(counts) / 360)
    (four,) = [row for row in checked["groups"] if row["group_size"] == 4]
    by_hand = sum(1 - (comb(count, 4) + comb(6 - count, 4)) / comb(6, 4) for count in counts) / 60
    assert four["signal"] == pytest.approx(by_hand)
    assert four["interval"][0] < by_hand < four["interval"][1]
    mean_tokens = sum(row["mean_tokens"] for row in checked["problems"]) / 60
    assert four["tokens"] == pytest.approx(4 * mean_tokens / by_hand)
    assert [row["is_unbiased"] for row in checked["groups"]] == [True, False, False, False, False]
    assert [row["signal"] for row in checked["groups"]] == sorted(row["signal"] for row in checked["groups"])
    # The one reward is the verifier's: no other makes groups differ.
    assert [row["answers"] for row in checked["groups"]] == [row["signal"] for row in checked["groups"]]


def test_groups_that_differ_in_form_alone_are_told_apart(place: Path, tiny: Path) -> None:
    """A reward for the length gives nearly every group a signal, of which few have right and wrong answers."""
    (place / "long.py").write_text(
        "def long(completions, **kwargs):\n    return [float(len(text)) for text in completions]\n"
    )
    rewards = ("--reward", f"{place / 'judge.py'}:judge", "--reward", f"{place / 'long.py'}:long")
    both = ("--samples", 6, *rewards)
    values = json.loads(check(place, tiny, *both, "--json").out)
    counts = [row["correct"] for row in values["problems"]]
    (four,) = [row for row in values["groups"] if row["group_size"] == 4]
    by_hand = sum(1 - (comb(count, 4) + comb(6 - count, 4)) / comb(6, 4) for count in counts) / 60
    assert four["answers"] == pytest.approx(by_hand)
    assert four["signal"] > 0.9 > 0.2 > four["answers"]
    screen = check(place, tiny, *both)
    assert "right and wrong" in screen.out
    assert re.search(
        r"[0-9]+% of the groups of 8 will have a signal, but only\s+[0-9]+% have right and wrong", screen.out
    )
    assert "It fits" not in screen.out
    assert "begin with a cold start" in screen.out


def test_the_screen_draws_pass_rates_and_says_what_to_do(place: Path, tiny: Path) -> None:
    page = place / "data.html"
    ended = check(place, tiny, "--samples", 4, "--page", page)
    assert ended.code == 0, ended.err
    assert f"Page: {page}" in ended.text
    assert '"group_size":8' in page.read_text().replace(" ", "")
    lines = ended.out.splitlines()
    bars = {line.split()[0]: line.split()[-1] for line in lines if "█" in line or line.startswith("   never")}
    assert (bars["never"], bars["always"]) >= ("25", "25")
    assert "Only" in ended.text
    assert "begin with a cold start (grouprl sft)" in ended.text
    assert "without an end: raise it, say where they end (rollout.stop)" in ended.text
    assert "Try: grouprl train" in ended.text


def test_the_chosen_problems_are_what_a_run_trains_on(place: Path, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "inside.jsonl"
    ended = check(place, tiny, "--samples", 4, "--band", 0.9, 1.0, "--write", file)
    assert ended.code == 0, ended.err
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    prompts = {row["prompt"] for row in rows}
    assert {f"Say {number}." for number in range(10, 60, 2)} <= prompts
    assert not {f"Say {number}." for number in range(11, 60, 2)} & prompts
    run = [
        "train", "--model", tiny, "--task", place / "data.jsonl", f"rollout.curriculum.chosen={file}",
        "--reward", f"{place / 'judge.py'}:judge", "evaluation.problems=0", f"runs_dir={tmp_path}", "name=run",
        "steps=4", "rollout.problems_per_step=8", "rollout.group_size=2", "rollout.max_tokens=2", "model.threads=1",
    ]  # fmt: skip
    ended = grouprl(*run)
    assert ended.code == 0, ended.err
    visits = Counter(
        recorded.group.problem.prompt_text for step in range(1, 5) for recorded in read_rollouts(tmp_path / "run", step)
    )
    assert set(visits) <= prompts
    assert sum(visits.values()) == 32
    file.write_text(json.dumps({"prompt": "Say 99."}) + "\n")
    refused = grouprl(*run[:-4], "name=other", "steps=1")
    assert refused.code == 2
    assert "expected the prompt of a train problem of jsonl, got 'Say 99.' and 0 others" in refused.text


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--band", 0.9, 0.1], "--band: expected two pass rates such as 0.1 0.9, the lower one first"),
        (["--write", "DATA"], "--write: expected a new file, got"),
        (["--page", "NEW/data.html"], "--page: expected a file in a folder that is there"),
        (["--page", "DATA"], "--page: expected a new file, got"),
        (
            ["--task", "mixture", "task.arguments={sums: 1, chains: 1}", "--write", "NEW"],
            "got a mixture, or prompts that",
        ),
        (
            ["--task", "mixture", "task.arguments={sums: 1}", "rollout.curriculum.chosen=DATA"],
            "one task, got a mixture",
        ),
        (["--samples", 2, "--write", "NEW"], "--write: expected at least 20 problems whose pass rate is in 0.1 to 0.9"),
        (["--task", "ONE"], "task: expected at least 2 problems to train on, got 1"),
        (["task.arguments.verifier=null", "--write", "NEW"], "--write: expected a task with a verifier, got none"),
        (["--reward", "FAILS:judge", "--problems", 4], "expected completions with a valid reward, got none"),
        (["--samples", 1], "Invalid value for '--samples'"),
        (["--problems", 0], "Invalid value for '--problems'"),
    ],
)
def test_what_cannot_be_is_a_sentence_and_writes_nothing(
    place: Path, tiny: Path, tmp_path: Path, options: list[Any], sentence: str
) -> None:
    write_rows(tmp_path / "ONE.jsonl", [{"prompt": "Say 1."}])
    (tmp_path / "FAILS.py").write_text("def judge(**kwargs):\n    raise ValueError('broken')\n")
    files = {"DATA": place / "data.jsonl", "NEW": tmp_path / "new", "ONE": tmp_path / "ONE.jsonl"}
    files["FAILS"] = tmp_path / "FAILS.py"
    words = [str(option) for option in options]
    for name, path in files.items():
        words = [word.replace(name, str(path)) for word in words]
    before = (place / "data.jsonl").read_bytes()
    ended = check(place, tiny, *words)
    assert ended.code == 2
    assert sentence in ended.text
    assert (place / "data.jsonl").read_bytes() == before
    assert not (tmp_path / "new").exists()
