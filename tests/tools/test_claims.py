"""Claims: what the intervals are, how many are right at once, what is compared at equal cost, and the verdicts."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from comparisons import comparison, ones, record
from grouprl.evaluation.statistics import t_probability, t_quantile
from grouprl.record.read import read_run
from grouprl.record.write import RunRecord
from grouprl.tools.compare.claims import (
    answer_claims,
    claims_summary,
    claims_table,
    combined,
    correct_over_table,
    difference_of,
    is_share,
    values_of,
    verdict_of,
)
from grouprl.tools.compare.inference import crossed_difference, holm, simultaneous_confidence
from grouprl.tools.compare.read import COMPARISON_FILE, read_comparison
from grouprl.tools.compare.report import comparison_verdict, write_comparison
from grouprl.tools.compare.settings import Claim, load_comparison
from grouprl.types import Completion, Group, Problem, RewardOutcome, StepRecord, StopReason, UserError
from held_page import Page
from small_runs import grouprl


def test_a_difference_over_seeds_and_problems_worked_by_hand() -> None:
    # Means of the seeds 2 and 3, of the problems 1, 2.5 and 4: the mean is 2.5. By seed 0.5 / 2 = 0.25, by problem
    # 2.25 / 3 = 0.75; the rest is -0.5, 0, 0.5 and 0.5, 0, -0.5: 1 / (1 * 2) / 6 = 1/12.
    found = crossed_difference([[0.0, 2.0, 4.0], [2.0, 3.0, 4.0]])
    assert (found.mean, found.by_seed) == (2.5, (2.0, 3.0))
    assert found.error == pytest.approx(math.sqrt(0.25 + 0.75 - 1 / 12))
    low, high = found.interval() or (0.0, 0.0)
    assert (high - low) / 2 == pytest.approx(12.7062 * math.sqrt(11 / 12), rel=1e-5)  # Student's t with one degree


def test_an_error_is_never_below_that_of_the_seeds_or_of_the_problems_alone() -> None:
    """Means of one factor 2 and 2, of the other 1 and 3: 2 / 2 = 1. The rest, 4 / 1 / 4 = 1, would leave 0."""
    for rows in ([[0.0, 4.0], [2.0, 2.0]], [[0.0, 2.0], [4.0, 2.0]]):
        assert crossed_difference(rows).error == 1.0


def test_one_value_a_seed_is_student_s_paired_test() -> None:
    # Student's sleep data, as R's t.test(paired = TRUE) prints it: t = -4.0621, df = 9, p-value = 0.002833.
    gained = [-1.2, -2.4, -1.3, -1.3, 0.0, -1.0, -1.8, -0.8, -4.6, -1.4]
    found = crossed_difference([[one] for one in gained])
    assert found.interval() == pytest.approx((-2.4598858, -0.7001142), abs=1e-6)
    assert found.p_value == pytest.approx(0.002833, abs=1e-6)


@pytest.mark.parametrize(("degrees", "t"), [(1, 12.7062), (2, 4.30265), (4, 2.77645), (9, 2.26216)])
def test_student_s_table(degrees: int, t: float) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(t, rel=1e-5)
    assert t_probability(-t, degrees) == pytest.approx(0.05, rel=1e-4)


def test_the_interval_covers_what_it_says_where_seeds_and_problems_vary() -> None:
    draw, covered, trials = random.Random(0), 0, 200
    for _ in range(trials):
        seeds, problems = ([draw.gauss(0, scale) for _ in range(count)] for scale, count in ((1, 5), (2, 20)))
        low, high = crossed_difference([[s + p + draw.gauss(0, 1) for p in problems] for s in seeds]).interval() or (
            1,
            1,
        )
        covered += low <= 0 <= high
    assert 0.93 <= covered / trials <= 1.0


def test_the_interval_of_five_seeds_covers_less_where_their_tail_is_exponential() -> None:
    draw, covered, trials = random.Random(0), 0, 500
    for _ in range(trials):
        low, high = crossed_difference([[draw.expovariate(1.0)] for _ in range(5)]).interval() or (1, 1)
        covered += low <= 1.0 <= high
    assert 0.86 <= covered / trials <= 0.90  # 88 %, as docs/evidence.md says


def test_nothing_is_known_of_one_seed_or_of_equal_differences() -> None:
    for rows in ([[0.1, 0.2, 0.4]], [[0.5, 0.5], [0.5, 0.5]]):
        found = crossed_difference(rows)
        assert (found.error, found.interval(), found.p_value) == (None, None, None)


def test_corrections_for_several_differences_worked_by_hand() -> None:
    # R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") is 0.03 0.06 0.06 0.02.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []
    assert simultaneous_confidence(5) == pytest.approx(0.99)  # five intervals, each wrong with 1 %


@pytest.mark.parametrize(
    ("relation", "interval", "margin", "verdict"),
    [
        (">", (0.1, 0.5), 0.0, "holds"),
        (">", (-0.5, -0.1), 0.0, "does not hold"),
        (">", (-0.1, 0.5), 0.0, "undecided"),
        (">", (-0.1, 0.01), 0.02, "does not hold"),  # if there is a difference, it is smaller than what matters
        ("=", (-0.01, 0.015), 0.02, "holds"),
        ("=", (0.01, 0.05), 0.02, "does not hold"),
        ("=", (-0.01, 0.05), 0.02, "undecided"),
        (">=", (-0.01, 0.3), 0.02, "holds"),
        (">=", (-0.3, -0.1), 0.02, "does not hold"),
        (">=", (-0.3, 0.1), 0.02, "undecided"),
        (">", None, 0.0, "undecided"),
    ],
)
def test_the_rule(relation: str, interval: tuple[float, float] | None, margin: float, verdict: str) -> None:
    assert verdict_of(relation, interval, margin) == verdict


def test_a_claim_holds_if_all_of_it_holds() -> None:
    assert combined(["holds", "holds"]) == "holds"
    assert combined(["holds", "does not hold", "undecided"]) == "does not hold"
    assert combined(["holds", "undecided"]) == "undecided"
    assert combined(["holds", "not measured yet"]) == combined([]) == "not measured yet"


CLAIMS: dict[str, dict[str, Any]] = {
    "spends": {"claim": "b > a", "source": "s", "expect": ["b > a"]},
    "longer": {"claim": "KL grows", "source": "s", "measure": "kl", "at": "steps", "grows": True, "expect": ["a > 0"]},
    "slow": {"claim": "b is as slow", "source": "s", "measure": "seconds_per_step", "expect": ["b = a"], "margin": 1.0},
    "proved": {"claim": "exact", "source": "s", "exact": "pytest x", "found": "equal", "holds": True},
    "waits": {"claim": "<later>", "source": "s"},
}


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two seeds, four problems; a has spent 100 and 400 tokens after its two steps, b 50 and 100."""
    folder = comparison(tmp_path / "two", ["a", "b"], [0, 1])
    given = json.loads((folder / COMPARISON_FILE).read_text())
    (folder / COMPARISON_FILE).write_text(json.dumps({**given, "claims": CLAIMS}))
    for seed in (0, 1):
        record(folder / f"a-seed{seed}", [ones(1), ones(2), ones(4)])
        record(folder / f"b-seed{seed}", [ones(1), ones(2 + seed), ones(3)], tokens=(50, 50), seconds=(1.0, 2.0 + seed))
    return folder


def claim(**given: Any) -> Claim:
    return Claim.model_validate({"claim": "c", "source": "s", "expect": ["b > a"], **given})


@pytest.mark.parametrize(
    ("given", "mean"),
    [
        # b ends at 100 tokens with 3/4; there a is at its first step, with 2/4.
        ({}, 0.25),
        ({"at": "steps"}, -0.25),
        # Seed 0 at 3 seconds of both: 3/4 against 4/4. Seed 1: a ends at 3 seconds, b is then 2/3 of its second step,
        # which changes nothing: 3/4.
        ({"at": "seconds"}, -0.25),
        # Up to 100 tokens the mean of a is 3/8, of b (3/8 + 5/8) / 2 and (1/2 + 3/4) / 2.
        ({"measure": "speed"}, (0.5 - 0.375 + 0.625 - 0.375) / 2),
        ({"measure": "seconds_per_step"}, 0.25),
        ({"measure": "kl", "at": "steps"}, 0.0),
        ({"measure": "completion_tokens"}, -50.0),  # a metric of the steps: of the last one that both have reached
    ],
)
def test_both_sides_are_measured_where_they_have_spent_the_same(two: Path, given: dict[str, Any], mean: float) -> None:
    a, b = read_comparison(two).variants
    found = difference_of(claim(**given), b, a)
    assert found is not None
    assert found.mean == pytest.approx(mean)
    assert (found.seeds, found.problems) == (2, 4 if given.get("measure", "speed") == "speed" else 1)


def test_growth_begins_at_the_first_evaluation(two: Path) -> None:
    """b has 1 of 4 before its first step and 3 of 4 at the end, on both seeds."""
    _, b = read_comparison(two).variants
    grown, reached = (difference_of(claim(grows=grows, expect=["b > 0"]), b, None) for grows in (True, False))
    assert grown is not None
    assert reached is not None
    assert (grown.mean, reached.mean) == (0.5, 0.75)
    # Of a metric of the steps, 0.1 and 0.2, the last tenth counts, at least one step; grown since the first.
    for grows, mean in ((False, 0.2), (True, 0.1)):
        found = difference_of(claim(measure="kl", at="steps", grows=grows, expect=["b > 0"]), b, None)
        assert found is not None
        assert found.mean == pytest.approx(mean)


def test_of_two_expectations_each_interval_is_wrong_half_as_often(two: Path) -> None:
    """Differences 0 and 0.5: mean and error 0.25; Student's t with 1 degree of freedom at 98.75 % is 25.452."""
    both = claim(measure="seconds_per_step", expect=["b > a", "b >= a"])
    (answered,) = answer_claims(replace(read_comparison(two), claims={"both": both}))
    assert [one.interval for one in answered.measured] == [pytest.approx((0.25 - 6.363, 0.25 + 6.363), abs=1e-3)] * 2


def test_margins_of_shares_are_points(two: Path) -> None:
    shown = {"share": claim(margin=0.02), "seconds": claim(measure="seconds_per_step", margin=0.02)}
    rows = [*claims_table(claims_summary(answer_claims(replace(read_comparison(two), claims=shown))))][2:]
    assert [", points, margin 2: " in rows[0], ", margin 0.02: " in rows[1]] == [True, True]
    assert [is_share(name) for name in ("speed", "frac_reward_zero_std", "kl")] == [True, True, False]


def test_only_problems_of_every_evaluation_and_seed_are_compared(tmp_path: Path) -> None:
    folder = comparison(tmp_path / "few", ["a", "b", "c"], [0, 1])
    for name, last in (("a", 1), ("b", 3)):
        record(folder / f"{name}-seed0", [ones(1), ones(1, of=3), ones(last)])
        record(folder / f"{name}-seed1", [ones(1, of=2), ones(1, of=2), ones(min(last, 2), of=2)])
    record(folder / "c-seed0", [ones(1), ones(1), ones(3)])  # it alone has the fourth problem, and one seed
    a, b, c = read_comparison(folder).variants
    for left, right, expected in ((b, a, (0.5, 2, 2)), (c, a, (2 / 3, 1, 3)), (a, c, (-2 / 3, 1, 3))):
        found = difference_of(claim(), left, right)
        assert found is not None
        assert (found.mean, found.seeds, found.problems) == pytest.approx(expected)
    assert values_of(claim(measure="speed"), a.runs[0], limit=0.0) == {}


def test_speed_is_a_mean_from_the_first_evaluation_on(tmp_path: Path) -> None:
    """The evaluation before the first step is lost: of 100 to 400 tokens, the accuracy rises from 2/4 to 4/4."""
    record(tmp_path / "b", [ones(1), ones(2), ones(4)])
    lines = (tmp_path / "b" / "held_out.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "b" / "held_out.jsonl").write_text("".join(lines[1:]))
    shares = values_of(claim(measure="speed"), read_run(tmp_path / "b"), limit=400.0)
    assert sum(shares.values()) / 4 == pytest.approx(0.75)


def test_a_metric_counts_in_the_last_tenth_of_the_steps_and_grows_from_the_first(tmp_path: Path) -> None:
    with RunRecord.create(tmp_path / "b", "seed: 0\n") as run:
        for step in range(1, 21):
            run.step(StepRecord(step, {"kl": float(step)}, (), (), ()))
    for limit, grows, mean in ((20.0, False, 19.5), (20.0, True, 18.0), (9.0, True, 8.0)):
        measured = claim(measure="kl", at="steps", grows=grows)
        assert list(values_of(measured, read_run(tmp_path / "b"), limit=limit).values()) == [mean]


def test_wrong_length_is_of_wrong_completions_alone(tmp_path: Path) -> None:
    """Wrong ones have 2 and 4 tokens in step 1, none is wrong in step 2, and one of 6 is in step 3."""
    lengths = {1: {2: False, 4: False, 9: True}, 2: {8: True, 50: None}, 3: {6: False, 40: None}}
    with RunRecord.create(tmp_path / "b", "seed: 0\n") as run:
        for step, correct_by_length in lengths.items():
            completions = tuple(
                Completion(n, (7,) * size, (-1.0,) * size, (-1.0,) * size, "", StopReason.END, 0)
                for n, size in enumerate(correct_by_length)
            )
            outcomes = [RewardOutcome(0.0, {}, correct=correct) for correct in correct_by_length.values()]
            zeros = [[0.0] * size for size in correct_by_length]
            run.step(StepRecord(step, {}, [Group(Problem("p", "?"), (1,), completions)], [outcomes], [zeros]))
    for limit, grows, mean in ((1.0, False, 3.0), (2.0, False, 3.0), (3.0, False, 6.0), (3.0, True, 3.0)):
        measured = claim(measure="wrong_length", at="steps", grows=grows)
        assert list(values_of(measured, read_run(tmp_path / "b"), limit=limit).values()) == [mean]


def test_sampled_completions_count_before_the_greedy_one(tmp_path: Path) -> None:
    folder = comparison(tmp_path / "sampled", ["b"], [0])
    record(folder / "b-seed0", [ones(4)] * 3, counts=[8, 4, 0, 0])
    found = difference_of(claim(expect=["b > 0"]), read_comparison(folder).variants[0], None)
    assert found is not None
    assert found.mean == (1 + 0.5) / 4


def test_a_metric_that_no_run_has_and_a_variant_without_runs_are_not_measured(two: Path) -> None:
    a, b = read_comparison(two).variants
    assert difference_of(claim(measure="wrong_length"), b, a) is None
    assert difference_of(claim(measure="nonsense"), b, a) is None


def test_the_report_has_a_row_and_a_card_for_each_claim(two: Path) -> None:
    page = Page(write_comparison(two))
    spends, longer, slow, proved, waits = page.shown["claims"]
    assert (spends["verdict"], proved["verdict"], waits["verdict"]) == ("undecided", "holds", "not measured yet")
    # Each of two intervals is its own: a difference that two seeds show equally has no interval.
    assert longer["measured"][0]["difference"]["mean"] == pytest.approx(0.1)
    assert longer["measured"][0]["interval"] is None
    assert slow["measured"][0]["difference"]["mean"] == 0.25
    assert spends["measured"][0]["alone"] == spends["measured"][0]["interval"]
    assert comparison_verdict(read_comparison(two)).startswith("5 claims: holds here 1, ")
    rows = (two / "claims.md").read_text().splitlines()
    assert len(rows) == 2 + 5
    assert rows[5] == "| exact | s | equal (`pytest x`) | holds here |"
    assert rows[6] == "| <later> | s | - | not measured yet |"
    assert ", margin 1: b - a: +0.25 (" in rows[4]


def test_holm_counts_the_differences_of_all_claims(two: Path) -> None:
    given = json.loads((two / COMPARISON_FILE).read_text())
    pair = {"claim": "c", "source": "s", "measure": "seconds_per_step"}
    claims = {"one": {**pair, "expect": ["b > a"]}, "two": {**pair, "expect": ["a > b", "b = a"]}}
    (two / COMPARISON_FILE).write_text(json.dumps({**given, "claims": claims}))
    rows = [one for row in claims_summary(answer_claims(read_comparison(two))) for one in row["measured"]]
    # Differences of 0 and 0.5: t = 1 with one degree of freedom, p = 0.5, three times; each corrected to 1.
    assert [one["p_in_table"] for one in rows] == [1.0] * 3
    assert [one["p_value"] for one in rows] == pytest.approx([0.5] * 3)
    assert [list(one["by_seed"]) for one in rows] == [[0.0, 0.5], [0.0, -0.5], [0.0, 0.5]]


def expectation(p_value: float | None, mean: float = 0.1, relation: str = ">") -> dict[str, Any]:
    return {"p_value": p_value, "relation": relation, "difference": {"mean": mean}}


@pytest.mark.parametrize(
    ("verdict", "measured", "holds"),
    [
        ("holds", [expectation(0.01)], True),
        ("holds", [expectation(0.01), expectation(0.02)], False),  # 0.02 is corrected to 3 x 0.02 with the other claim
        ("holds", [expectation(0.05 / 3)], False),  # of three, 5 % and not below
        ("holds", [expectation(0.01, relation=">=")], True),
        ("holds", [expectation(0.01, mean=-0.01, relation=">=")], False),  # within the margin, but lower
        ("holds", [expectation(0.01, relation="=")], False),  # a difference shows no equality
        ("holds", [expectation(None)], False),
        ("holds", [], False),  # answered by a command
        ("undecided", [expectation(0.01)], False),
    ],
)
def test_a_claim_holds_in_the_whole_table(verdict: str, measured: list[dict[str, Any]], holds: bool) -> None:
    others = {"verdict": "undecided", "measured": [expectation(0.04), expectation(0.03)]}
    row, other = correct_over_table([{"verdict": verdict, "measured": measured}, others])
    assert (row["holds_in_table"], other["holds_in_table"]) == (holds, False)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"expect": ["b < a"]}, "expect"),
        ({"exact": "pytest"}, "expected `exact`, `found` and `holds` together"),
        ({"exact": "pytest", "found": "x", "holds": True}, "no `expect` with them"),
    ],
)
def test_a_claim_that_makes_no_sense(given: dict[str, Any], expected: str) -> None:
    with pytest.raises((UserError, ValidationError), match=expected):
        claim(**given)


def test_some_claims_alone_need_their_variants_and_the_baseline() -> None:
    whole, some = load_comparison(["claims"], None), load_comparison(["claims", "only=[kl]"], None)
    assert list(some.claims) == ["kl"]
    assert set(some.variants) == {some.first, *whole.claims["kl"].variants} < set(whole.variants)
    assert all(some.variants[name] == whole.variants[name] for name in some.variants)
    assert (whole.name, whole.seeds) == (some.name, some.seeds)  # the same folder: no run is made twice
    with pytest.raises(UserError, match=r"only: expected one of .*, got 'kls'"):
        load_comparison(["claims", "only=[kls]"], None)
    with pytest.raises(UserError, match=r"claims.kl.expect: expected one of .*, got 'nobody'"):
        load_comparison(["claims", 'claims.kl.expect=["nobody > grpo"]'], None)
    with pytest.raises(UserError, match="--quick: expected a comparison with the key `quick`"):
        load_comparison(["demo"], "algorithm=grpo,rloo", quick=True)


def test_every_claim_is_answered_by_variants_or_by_a_command_or_waits() -> None:
    config = load_comparison(["claims"], None)
    named = {name for claim in config.claims.values() for name in claim.variants}
    assert named == set(config.names)  # no run is for nothing
    quick = load_comparison(["claims", "steps=2"], None, quick=True)
    assert (quick.name, quick.settings[-1]) == ("claims_quick", "steps=2")  # the command line has the last word


def test_the_training_of_all_stages_is_one_run(two: Path) -> None:
    given = json.loads((two / COMPARISON_FILE).read_text())
    stages = {"c": [{"sft": ["x=1"]}, {"train": []}, {"train": ["learner.learning_rate=0"]}, {"train": []}]}
    (two / COMPARISON_FILE).write_text(json.dumps({**given, "stages": stages}))
    for seed in (0, 1):
        record(two / f"c-seed{seed}-2-train", [ones(0), ones(1), ones(2)], tokens=(10, 40))
        record(two / f"c-seed{seed}-3-train", [ones(0), ones(4), ones(4)])
        record(two / f"c-seed{seed}-4-train", [ones(1), ones(2), ones(4 - seed)], tokens=(30, 20))
        sampled = two / f"c-seed{seed}-3-train" / "metrics.jsonl"
        rows = [json.loads(line) | {"learning_rate": 0.0} for line in sampled.read_text().splitlines()]
        sampled.write_text("".join(json.dumps(row) + "\n" for row in rows))
    a, _, c = read_comparison(two).variants
    assert c.settings == ("1-sft x=1", "2-train", "3-train learner.learning_rate=0", "4-train")
    run = c.runs[0]
    assert [(row["step"], row["completion_tokens"]) for row in run.metrics] == [(1, 10), (2, 40), (3, 30), (4, 20)]
    assert (run.summary["steps"], run.summary["completion_tokens"], run.summary["train_seconds"]) == (4, 100, 6.0)
    assert run.summary["before"]["greedy_accuracy"] == 0
    # At 50 tokens c has 2/4 from its first training and then 1/4 from what came between: the second counts. At its
    # 100 tokens: 4/4 and 3/4, while a is at its first step with 2/4.
    found = difference_of(claim(), c, a)
    assert found is not None
    assert found.mean == pytest.approx((0.5 + 0.25) / 2)
    speed = difference_of(claim(measure="speed"), c, a)
    # c from 0, 1/4 (10), 1/4 (50), 2/4 (80), 4/4 or 3/4 (100); a from 1/4 to 2/4.
    own = [(10 * 0.125 + 40 * 0.25 + 30 * 0.375 + 20 * last) / 100 for last in (0.75, 0.625)]
    assert speed is not None
    assert speed.mean == pytest.approx(sum(own) / 2 - 0.375)


@pytest.mark.slow
def test_the_quick_comparison_of_stages_runs(tmp_path: Path) -> None:
    tiny = ("only=[learned_reward_rises]", "baseline=learned reward", "seeds=[0]", "steps=2", "evaluation.problems=4")
    ended = grouprl("compare", "claims", "--quick", f"runs_dir={tmp_path}", *tiny)
    assert ended.code == 0, ended.text
    assert "4 runs, 0 of them finished" in ended.text
    (rises,) = json.loads((tmp_path / "claims_quick" / "summary.json").read_text())["claims"]
    assert rises["measured"][0]["difference"]["seeds"] == 1


def test_several_comparisons_of_one_table_are_corrected_together() -> None:
    claims = [{"verdict": "holds", "measured": list(map(expectation, some))} for some in ([0.01, 0.04], [0.03, 0.005])]
    rows = [one["p_in_table"] for row in correct_over_table(claims) for one in row["measured"]]
    assert rows == pytest.approx([0.03, 0.06, 0.06, 0.02])  # R: p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm")
