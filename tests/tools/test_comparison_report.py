"""The figures, tables and plots of a comparison, from run directories that the recorder itself wrote."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from comparisons import comparison, ones, record
from grouprl.record.read import read_run
from grouprl.record.write import RunRecord
from grouprl.tools.compare.read import (
    against_baseline,
    held_out_curve,
    metric_by_seed,
    metric_curve,
    read_comparison,
    run_folder,
    run_metrics,
    seconds_by_part,
    time_parts,
)
from grouprl.tools.compare.report import comparison_verdict, write_comparison
from grouprl.types import StepRecord, UserError
from held_page import Page


def test_without_a_verifier_there_are_rewards_and_lengths_to_compare(tmp_path: Path) -> None:
    folder = comparison(tmp_path / "sung", ["a", "b"], [0])
    for name in ("a", "b"):
        with RunRecord.create(folder / f"{name}-seed0", "seed: 0\n") as run:
            row = {"reward": 0.5, "completion_tokens": 9, "time/total": 1.0, "time/rollout": 0.5}
            run.step(StepRecord(1, row, (), (), ()))
            for step in (0, 1):
                run.held_out(step, {"problem_ids": [], "greedy": [], "correct": [], "samples": 2})
                run.evaluation(step, {"mean_length": 7.0, "problems": 3})
            run.summary({"after": {"mean_length": 7.0, "problems": 3}, "steps": 1, "train_seconds": 1.0})
    write_comparison(folder)
    assert comparison_verdict(read_comparison(folder)).startswith("No accuracy to compare: the task has no verifier")
    found = json.loads((folder / "summary.json").read_text())["variants"]["b"]
    assert "greedy_accuracy" not in found["figures"]
    assert found["against_baseline"]["greedy_accuracy"] == {"over_problems": None, "over_seeds": None}
    assert found["held_out"] == []
    page = Page(folder / "report.html").shown["variants"][1]
    assert (page["series"]["columns"], page["evaluations"]) == ({"reward": [0.5]}, [])
    assert page["seconds_by_part"] == {"rollout": 0.5, "other": 0.5}


def test_runs_that_their_reward_measures_are_compared_by_it(tmp_path: Path) -> None:
    """Four problems, with rewards a tenth above and below the mean of 0.5 and 0.75 at the end."""
    folder = comparison(tmp_path / "rewards", ["low", "high"], [0])
    for name, after in (("low", 0.5), ("high", 0.75)):
        with RunRecord.create(folder / f"{name}-seed0", "seed: 0\n") as run:
            run.step(StepRecord(1, {"reward": 0.5, "completion_tokens": 9, "time/total": 1.0}, (), (), ()))
            for step, mean in ((0, 0.1), (1, after)):
                spread = {"reward": [mean + gap for gap in (-0.1, 0.1, -0.1, 0.1)]}
                held_out = {"problem_ids": [*"abcd"], "greedy": [], "correct": [], "samples": 1, "rewards": spread}
                run.held_out(step, held_out)
                run.evaluation(step, {"reward": mean, "problems": 4})
            run.summary({"after": {"reward": after, "problems": 4}, "measure": "reward", "steps": 1})
    recorded = read_comparison(folder)
    assert "high ends highest with a held-out mean reward of 0.750, 0.250 above low" in comparison_verdict(recorded)
    assert paired(recorded, "reward")[0].mean == pytest.approx(0.25)
    assert paired(recorded, "reward")[0].pairs == 4


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two variants, two seeds, four problems: every figure below is worked by hand from these."""
    folder = comparison(tmp_path / "two", ["a", "G=2"], [0, 1])
    record(folder / "a-seed0", [ones(1), ones(2), [1, 1, 1, 0]], memory=500.0)
    record(folder / "a-seed1", [ones(1), ones(2), [1, 1, 0, 0]], memory=520.0)
    record(folder / "G-2-seed0", [ones(1), ones(4), [1, 1, 1, 1]], tokens=(50, 70), seconds=(0.5, 0.7))
    record(folder / "G-2-seed1", [ones(1), ones(3), [1, 1, 1, 1]], tokens=(90, 110), seconds=(1.5, 0.5))
    return folder


def test_figures_of_a_variant_over_its_seeds(two: Path) -> None:
    a, b = read_comparison(two).variants
    assert metric_by_seed(a, "greedy_accuracy").by_seed == {0: 0.75, 1: 0.5}
    assert metric_by_seed(a, "greedy_accuracy").mean == 0.625
    # Student with one degree of freedom: 12.706 times the deviation of the mean, 0.125.
    assert metric_by_seed(a, "greedy_accuracy").interval == pytest.approx((0.625 - 1.58828, 0.625 + 1.58828), abs=1e-4)
    assert metric_by_seed(a, "peak_rss_mib").mean == 510
    assert metric_by_seed(a, "seconds_per_step").mean == 1.5
    assert metric_by_seed(a, "pass_at_1").mean is None
    assert metric_by_seed(a, "steps_to_90").by_seed == {}
    # 90 % is reached at step 1 by seed 0 and at step 2 by seed 1.
    assert metric_by_seed(b, "steps_to_90").by_seed == {0: 1, 1: 2}
    assert metric_by_seed(b, "tokens_to_90").by_seed == {0: 50, 1: 200}
    assert metric_by_seed(b, "seconds_to_90").by_seed == pytest.approx({0: 0.5, 1: 2.0})


@pytest.mark.parametrize(
    ("accuracies", "reached"),
    [
        ([0.5, 0.95, 0.9, 0.85, 0.95, 0.95], 4),  # 0.95, 0.9 and 0.85 are the first three steps with a mean of 0.9
        ([1.0, 1.0, 0.0, 1.0, 1.0], None),
        ([1.0, 1.0], None),
    ],
)
def test_sampled_accuracy_is_reached_by_three_steps(
    tmp_path: Path, accuracies: list[float], reached: int | None
) -> None:
    with RunRecord.create(tmp_path / "run", "task: x\n") as run:
        for step, accuracy in enumerate(accuracies, 1):
            row = {"accuracy": accuracy, "completion_tokens": 100 * step, "time/total": 0.5}
            run.step(StepRecord(step, row, [], [], []))
    recorded, costs = read_run(tmp_path / "run"), ("steps", "tokens", "seconds")
    found = run_metrics(recorded)
    assert [found[f"sampled_{cost}_to_90"] for cost in costs] == ([None] * 3 if reached is None else [4, 1000, 2.0])
    assert found["sampled_accuracy"] == accuracies[-1]


def paired(recorded: Any, metric: str) -> tuple[Any, Any]:
    """The differences of the second variant, over problems and over seeds."""
    found = against_baseline(recorded, recorded.variants[1], metric)
    return found.over_problems, found.over_seeds


def test_differences_are_paired_over_problems_and_over_seeds(two: Path) -> None:
    recorded = read_comparison(two)
    problems, seeds = paired(recorded, "greedy_accuracy")
    # Per problem, mean over seeds: 0, 0, 1/2, 1. Mean 3/8, deviation sqrt(11/48), Student's quantile for 3: 3.1824.
    assert (problems.mean, problems.pairs) == (pytest.approx(3 / 8), 4)
    margin = 3.18245 * math.sqrt(11 / 48) / 2
    assert problems.interval == pytest.approx((3 / 8 - margin, 3 / 8 + margin), abs=1e-4)
    # Per seed: 1/4 and 1/2.
    assert seeds.mean == pytest.approx(3 / 8)
    assert seeds.interval == pytest.approx((3 / 8 - 1.58828, 3 / 8 + 1.58828), abs=1e-4)


def test_only_seeds_that_both_have_finished_are_paired(two: Path) -> None:
    comparison(two, ["a", "G=2"], [0, 1, 2])
    record(two / "G-2-seed2", [ones(0), ones(0), ones(0)])
    record(two / "a-seed2", [ones(4), ones(4), ones(4)], finished=False)
    recorded = read_comparison(two)
    assert list(recorded.variants[0].runs) == [0, 1]
    problems, seeds = paired(recorded, "greedy_accuracy")
    assert (seeds.pairs, seeds.mean, problems.mean) == (2, pytest.approx(3 / 8), pytest.approx(3 / 8))


def test_sampled_completions_are_paired_too(tmp_path: Path) -> None:
    folder = comparison(tmp_path, ["a", "b"], [0], baseline="b")
    record(folder / "a-seed0", [ones(2)] * 3, counts=[8, 4, 4, 0])
    record(folder / "b-seed0", [ones(2)] * 3, counts=[8, 2, 0, 0])
    recorded = read_comparison(folder)
    assert recorded.baseline.name == "b"
    problems, seeds = paired(recorded, "pass_at_1")
    assert problems.mean == pytest.approx((0 + 2 / 8 + 4 / 8 + 0) / 4)
    assert seeds.interval is None  # one seed has no spread


def test_curves_follow_steps_tokens_and_seconds(two: Path) -> None:
    _, b = read_comparison(two).variants
    points = held_out_curve(b)
    assert [point.step for point in points] == [0, 1, 2]
    assert [point.tokens for point in points] == [0, (50 + 90) / 2, (120 + 200) / 2]
    assert [point.seconds for point in points] == pytest.approx([0, 1.0, (1.2 + 2.0) / 2])
    assert [point.accuracies for point in points] == [(0.25, 0.25), (1.0, 0.75), (1.0, 1.0)]
    assert metric_curve(b, "reward") == ([1, 2], [[0.5, 1.0], [0.5, 1.0]])
    assert metric_curve(b, "entropy") == ([], [[], []])
    assert time_parts(b) == pytest.approx({"rollout": (0.3 + 0.5) / 2, "other": (0.3 + 0.5) / 2})


def test_the_verdict_says_what_the_intervals_allow(tmp_path: Path) -> None:
    folder = comparison(tmp_path, ["a", "b"], [0, 1, 2])
    assert "expected finished runs of two variants" in comparison_verdict(read_comparison(folder))
    for seed in range(3):
        record(folder / f"a-seed{seed}", [ones(1, 10), ones(2, 10), ones(2, 10)])
    assert "got a." in comparison_verdict(read_comparison(folder))
    for seed in range(3):
        record(folder / f"b-seed{seed}", [ones(1, 10), ones(2, 10), ones(7 + seed, 10)])
    verdict = comparison_verdict(read_comparison(folder))
    assert verdict == (
        "b ends highest with 80.0% of the held-out problems solved, 60.0 points above a, "
        "which is beyond chance: 0 lies outside its 95% interval over problems and its interval over seeds."
    )
    comparison(tmp_path, ["a", "b"], [0, 1, 2], baseline="b")
    assert comparison_verdict(read_comparison(folder)) == (
        "No variant ends above b, the baseline, with 80.0% of the held-out problems solved."
    )
    comparison(tmp_path, ["a", "b"], [0])
    assert "on one seed; other seeds may give another result" in comparison_verdict(read_comparison(folder))


def test_a_difference_within_chance_is_called_that(two: Path) -> None:
    said = "37.5 points above a, which is within chance: 0 lies in its 95% interval over problems and its interval over"
    assert said in comparison_verdict(read_comparison(two))


def test_the_page_stands_alone_and_holds_the_numbers(two: Path) -> None:
    page = Page(write_comparison(two))
    page.assert_stands_alone()
    assert not (two / "plots").exists()
    summary = json.loads((two / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["variants"]["G=2"]["figures"]["tokens_to_90"] == {
        "mean": 125.0,
        "interval": pytest.approx([125 - 12.7062 * 75, 125 + 12.7062 * 75], abs=0.01),
        "by_seed": {"0": 50, "1": 200},
    }
    assert summary["variants"]["G=2"]["against_baseline"]["greedy_accuracy"]["over_seeds"]["pairs"] == 2
    assert summary["variants"]["a"]["against_baseline"] == {}
    assert summary["baseline"] == "a"
    for name, value in summary.items():
        if name != "variants":
            assert page.shown[name] == value
    for one in page.shown["variants"]:
        assert summary["variants"][one["name"]].items() <= one.items()
    assert page.shown["about"] == {"model": "abacus"}
    assert page.shown["machine"] == {"cores": "2"}


def test_the_curves_are_means_over_seeds_between_the_lowest_and_the_highest(two: Path) -> None:
    b = Page(write_comparison(two)).shown["variants"][1]
    series = b["series"]
    assert (series["step"], series["tokens"]) == ([1, 2], [(50 + 90) / 2, (120 + 200) / 2])
    assert series["seconds"] == pytest.approx([1.0, (1.2 + 2.0) / 2])
    assert set(series["columns"]) == {"reward", "kl"}  # no step has the others
    assert series["columns"]["reward"] == [0.5, 1.0]
    assert series["low"]["kl"] == series["high"]["kl"] == [0.1, 0.2]
    first, second, last = b["evaluations"]
    assert (first["step"], first["greedy_accuracy"], first["greedy_interval"]) == (0, 0.25, [0.25, 0.25])
    assert (second["greedy_accuracy"], second["greedy_interval"]) == (0.875, [0.75, 1.0])
    # A policy that solves all four is drawn as if it failed at half of one.
    assert (second["unsolved"], second["unsolved_interval"]) == ((0.125 + 0.25) / 2, [0.125, 0.25])
    assert last["unsolved"] == 0.125


def test_a_comparison_without_a_finished_run_has_a_page(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected the folder of a comparison"):
        read_comparison(tmp_path)
    page = Page(write_comparison(comparison(tmp_path, ["a", "<b>&"], [0])))
    assert "Nothing to compare yet" in page.shown["verdict"]
    assert [one["name"] for one in page.shown["variants"]] == ["a", "<b>&"]
    assert "b" not in dict(page.tags)


def test_names_and_settings_are_text(tmp_path: Path) -> None:
    folder = comparison(tmp_path, ["a", "</script><script>1"], [0])
    record(folder / "a-seed0", [ones(1)] * 3)
    record(folder / run_folder("</script><script>1", 0), [ones(2)] * 3)
    page = Page(write_comparison(folder))
    page.assert_stands_alone()
    assert page.shown["variants"][1]["name"] == "</script><script>1"


def test_time_parts_add_up_to_the_step_longest_first(tmp_path: Path) -> None:
    with RunRecord.create(tmp_path / "run", "") as record:
        record.step(StepRecord(1, {"time/reward": 0.5, "time/rollout": 3.0, "time/total": 4.0}, [], [], []))
        record.step(StepRecord(2, {"time/reward": 1.5, "time/rollout": 1.0, "time/total": 2.5}, [], [], []))
        record.step(StepRecord(3, {"reward": 1.0}, [], [], []))
    parts = seconds_by_part(read_run(tmp_path / "run"))
    assert list(parts.items()) == [("rollout", 2.0), ("reward", 1.0), ("other", 0.25)]
