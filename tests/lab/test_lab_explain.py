"""The numbers and curves of the explainers: worked by hand, and those that the learner computes."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from torch import Tensor

from explaining import ask, lab
from grouprl.algorithms.advantages import CompletionAdvantage, Statistics, group_statistics
from grouprl.algorithms.named import NAMED
from grouprl.algorithms.option import option
from grouprl.algorithms.spec import Algorithm
from grouprl.lab.explain_typed import COMPARING, pass_rate_curves, typed_walk
from grouprl.lab.report.groups import one_group
from grouprl.lab.report.page import STATIC
from grouprl.lab.report.worked import compared
from lab_runs import Made, make_run


@dataclass(frozen=True)
class BestAdvantage(CompletionAdvantage):
    """The reward less the best of the group, over its range."""

    baseline: Literal["best"] = option("best", "subtracted: best of the group")
    scale: Literal["range"] = option("range", "divides: range of the group")

    def statistics(self, rewards_N: Tensor, groups_N: Tensor) -> Statistics:
        found = group_statistics(rewards_N, groups_N, scale="none")
        valid_N = rewards_N[~rewards_N.isnan()]
        best_N, range_N = (
            torch.full_like(found.mean, float(one)) for one in (valid_N.max(), valid_N.max() - valid_N.min())
        )
        return replace(found, baseline_N=best_N, divisor_N=range_N)

    @property
    def formula(self) -> str:
        return "(r - max(group)) / range(group)"


MADE_UP = Algorithm("made_up", advantage=BestAdvantage(), kl=None)
COMPARED = {one.name: one for one in (*COMPARING.values(), MADE_UP)}


@pytest.fixture
def page(tmp_path: Path) -> TestClient:
    return lab(tmp_path)


def of(page: TestClient, rewards: str, algorithm: str) -> dict[str, Any]:
    found: dict[str, Any] = ask(page, f"advantages?rewards={rewards}&algorithms={algorithm}")["algorithms"][algorithm]
    return found


@pytest.mark.parametrize(
    ("algorithm", "right", "wrong"),
    [
        ("grpo", 0.8165, -1.2247),  # 0.4 / 0.4899 and -0.6 / 0.4899
        ("trl", 0.7745, -1.1617),  # sample deviation 0.5164, with 1e-4 added to it
        ("dr_grpo", 0.4, -0.6),
        ("rloo", 0.4444, -0.6667),  # 1 - 5/9 and 0 - 6/9
        ("reinforce", 1.0, 0.0),
        ("maxrl", 0.6667, -1.0),  # 0.4 / 0.6 and -0.6 / 0.6
    ],
)
def test_six_of_ten_correct(page: TestClient, algorithm: str, right: float, wrong: float) -> None:
    found = of(page, "1,1,1,1,1,1,0,0,0,0", algorithm)["advantages"]
    assert found == pytest.approx([right] * 6 + [wrong] * 4, abs=1e-4)


def test_the_arithmetic_of_partial_rewards(page: TestClient) -> None:
    """1.5, 0, 1.5, 0, 1, 1.5, 0.5, 1.5: the sum is 7.5, the squared distances come to 3.21875."""
    found = of(page, "1.5,0,1.5,0,1,1.5,0.5,1.5,nan", "grpo")
    assert (found["count"], found["sum"], found["mean"]) == (8, 7.5, 0.9375)
    assert found["deviations"][:2] == found["gaps"][:2] == [0.5625, -0.9375]
    assert found["squares"][:2] == [0.31640625, 0.87890625]
    assert (found["sum_of_squares"], found["divided_by"]) == (3.21875, 8)
    assert found["deviation"] == pytest.approx(0.63431, abs=1e-5)
    assert found["advantages"][:8] == pytest.approx(
        [0.8868, -1.478, 0.8868, -1.478, 0.0985, 0.8868, -0.6897, 0.8868], abs=1e-4
    )
    assert (found["mean_of"], found["deviation_of"]) == ("group", "group")
    assert (found["rewards"][8], found["advantages"][8]) == (None, None)


@pytest.mark.parametrize(
    ("rewards", "algorithm", "said"),
    [
        ("0.7,0.7,0.7", "grpo", "All 3 valid rewards are equal"),
        ("nan,2", "grpo", "Only one reward is valid"),
        ("nan,nan", "grpo", "No reward"),
        ("1,1", "reinforce", None),  # compared with a constant, equal rewards have a signal
    ],
)
def test_a_group_without_signal_says_why(page: TestClient, rewards: str, algorithm: str, said: str | None) -> None:
    assert str(of(page, rewards, algorithm)["without_signal"]).startswith(str(said))


some_rewards = st.lists(st.sampled_from([0.0, 0.25, 0.7, 1.0, 3.5, math.nan]), min_size=2, max_size=6)


@given(some_rewards, st.lists(some_rewards, max_size=2), st.sampled_from(list(COMPARING)))
def test_the_page_shows_what_the_learner_learns(rewards: list[float], others: list[list[float]], name: str) -> None:
    whole = [rewards, *others]
    rewards_N = torch.tensor([reward for group in whole for reward in group], dtype=torch.float64)
    groups_N = torch.tensor([index for index, group in enumerate(whole) for _ in group])
    known = NAMED[name].advantage.statistics(rewards_N, groups_N)
    learned = known.advantages(rewards_N)[: len(rewards)].tolist()
    found = compared(rewards, NAMED[name], others)
    shown = [0.0 if advantage is None else advantage for advantage in found["advantages"]]
    assert shown == learned
    assert [advantage is None for advantage in found["advantages"]] == [math.isnan(reward) for reward in rewards]
    if found["without_signal"]:
        assert set(learned) == {0.0}
        return
    # The arithmetic that is shown leads to the advantages that are shown.
    rows = zip(rewards, found["baselines"], found["divisors"], found["advantages"], strict=True)
    for reward, baseline, divisor, advantage in rows:
        if advantage is not None:
            assert (reward - baseline) / divisor == pytest.approx(advantage, rel=1e-5, abs=1e-6)
    # What is worked out of the rewards by itself is what the learner divides by.
    spread = {"group": found, "batch": found["batch"]}
    if found["deviation_of"]:
        assert spread[found["deviation_of"]]["deviation"] == pytest.approx(float(known.deviation[0]), rel=1e-12)


def test_the_routes_know_every_algorithm_with_its_formula(page: TestClient) -> None:
    offered = ask(page, "algorithms")["algorithms"]
    formulas = {name: one.advantage.formula for name, one in COMPARING.items()}
    assert {one["name"]: one["formula"] for one in offered} == formulas
    names = ",".join(COMPARING)
    assert list(ask(page, f"advantages?rewards=1,0,0,1&algorithms={names}")["algorithms"]) == list(COMPARING)
    assert list(ask(page, f"pass_rate?algorithms={names}")["algorithms"]) == list(COMPARING)
    assert {ask(page, f"group?rewards=1,0&algorithm={name}")["algorithm"]["name"] for name in COMPARING} == {*COMPARING}


def test_rewards_that_an_algorithm_cannot_compare_are_refused_with_its_sentence(tmp_path: Path) -> None:
    said = "algorithm maxrl: expected rewards of 0 or more, got -1"
    page = lab(tmp_path)
    answer = page.get("/api/explain/group?rewards=-1,0&algorithm=maxrl")
    assert (answer.status_code, answer.json()["error"]) == (400, said)
    found = ask(page, "advantages?rewards=-1,0&algorithms=grpo,maxrl")["algorithms"]
    assert (found["maxrl"]["advantages"], found["maxrl"]["without_signal"]) == (None, said)
    assert found["grpo"]["advantages"] is not None
    run = make_run(tmp_path / "run", [Made((-1.0, 0.0))], config="algorithm: {name: maxrl}\nrollout: {max_tokens: 4}\n")
    shown = one_group(run, 1, 0)["statistics"]
    assert (shown["advantages"], shown["agree"], shown["why"], shown["mean"]) == (None, None, said, -0.5)
    assert ask(page, "group?run=run&step=1")["stages"]["statistics"]["compared"]["without_signal"] == said


def test_a_typed_group_moves_as_its_advantages_say(page: TestClient) -> None:
    """Dr.GRPO, rewards 1, 0, 0, 0: weights 1/4, advantages 3/4 and -1/4, so the logits get 3/16 and -1/16."""
    found = ask(page, "group?rewards=1,0,0,0&algorithm=dr_grpo&learning_rate=2")
    stages = found["stages"]
    assert list(stages) == [
        "prompt", "completions", "rewards", "statistics", "advantages", "ratio", "kl", "loss", "gradient", "update",
    ]  # fmt: skip
    assert stages["advantages"]["completions"] == [0.75, -0.25, -0.25, -0.25]
    assert [one["sum"] for one in stages["gradient"]["completions"]] == pytest.approx([-3 / 16, 1 / 16, 1 / 16, 1 / 16])
    assert stages["loss"]["share"] == pytest.approx(0)
    assert stages["loss"]["completions"] == pytest.approx([-3 / 16, 1 / 16, 1 / 16, 1 / 16])
    assert stages["update"]["grad_norm"] == pytest.approx(math.sqrt(9 + 3) / 16)
    after = [math.exp(2 * 3 / 16), *[math.exp(-2 / 16)] * 3]
    moved = stages["update"]["completions"]
    assert [math.exp(one["before"]) for one in moved] == pytest.approx([0.25] * 4)
    assert [math.exp(one["after"]) for one in moved] == pytest.approx([weight / sum(after) for weight in after])
    assert [one["mean"] for one in stages["ratio"]["completions"]] == [1.0] * 4
    assert "one update per batch" in stages["ratio"]["reason"]


def test_a_typed_group_without_signal_stays(page: TestClient) -> None:
    update = ask(page, "group?rewards=1,1,nan&learning_rate=9")["stages"]["update"]
    assert [one["after"] for one in update["completions"]] == [one["before"] for one in update["completions"]]
    assert update["grad_norm"] == 0


@pytest.mark.parametrize("algorithm", COMPARED.values(), ids=COMPARED)
def test_a_typed_group_is_walked_through_and_weighs_by_its_pass_rate(algorithm: Algorithm) -> None:
    stages = typed_walk((1.0, 0.0, 0.25, math.nan), algorithm, 1.0)["stages"]
    shown = stages["statistics"]["compared"]["advantages"]
    assert [one or 0.0 for one in shown] == stages["advantages"]["completions"]
    best = stages["update"]["completions"][0]
    assert best["after"] >= best["before"]
    by_correct = pass_rate_curves(4, [algorithm])["algorithms"][algorithm.name]["by_correct"]
    assert len(by_correct) == 5
    assert by_correct[1] > 0


# Memory: the planner's numbers, which tests/tools/test_memory.py holds to what torch allocates


def kept(plan: dict[str, Any], *parts: str) -> int:
    """Bytes of these parts of a plan of the page, of all its networks without any."""
    blocks = plan["blocks"]["held"] | plan["blocks"]["learning"]
    others = ("activations", "layer", "logits", "rounded", "cache", "copies")
    return sum(size for part, size in blocks.items() if (part in parts if parts else part not in others))


def test_every_question_has_one_right_choice_which_is_worked_by_hand(page: TestClient) -> None:
    numbers = ask(page, "predictions")
    weight = (7 / 8 + 7 * 1 / 8) / math.sqrt(7 / 64)  # of one right completion of eight, each distance by the deviation
    # The steps' rewards 1, 0, 0, 0: mean 1/4, deviation sqrt(3)/4.
    right, wrong = 3 / math.sqrt(3), -1 / math.sqrt(3)
    assert numbers == pytest.approx(
        {
            "equal": 0, "outlier_of_8": math.sqrt(7), "others_of_8": -1 / math.sqrt(7), "outlier_of_64": math.sqrt(63),
            "half": 1, "half_wrong": -1, "sequence_mean": 10, "token_mean": 1, "constant": 1,
            "good_token": 0, "bad_token": -1.5, "k1": -1, "k2": 0.5, "k3": math.e - 2,
            "divided": weight / 8, "undivided": (2 * 7 / 8) / 4, "outcome": 0,
            "right_step": right + wrong, "wrong_end": wrong, "wrong_step": 2 * wrong,
        },
        rel=1e-5, abs=1e-6,
    )  # fmt: skip
    questions = json.loads((STATIC / "predictions.json").read_text())
    assert len({question["asks"] for question in questions}) == len(questions) == 8
    for question in questions:
        right_choices = [value for _, value in question["choices"] if abs(value - numbers[question["asks"]]) < 0.01]
        assert len(right_choices) == 1
        for name in re.findall(r"\{(\w+)\}", question["question"] + question["answer"]):
            assert name in numbers


def test_memory_of_ppo_beside_grpo(page: TestClient) -> None:
    """docs/algorithms.md: 20 bytes a parameter with GRPO, 36 with PPO; with a reward model 40."""
    plans = ask(page, "memory?model=abacus&device=cpu")["plans"]
    learned = ask(page, "memory?model=abacus&device=cpu&reward_model=ppo")["plans"]
    for plan, per_parameter in ((plans["grpo"], 20), (plans["ppo"], 36), (learned["grpo"], 20), (learned["ppo"], 40)):
        assert kept(plan) / 1_188_736 == pytest.approx(per_parameter, rel=1e-3)
        assert sum(plan["blocks"]["held"].values()) == plan["sums"]["held"]  # no cache is held on a CPU
    large = ask(page, "memory")["plans"]["ppo"]
    assert {"cache", "copies"} <= set(large["blocks"]["held"])  # CUDA graphs keep their addresses
    both = ask(page, "memory?model=abacus&reward_model=both&algorithm=grpo")["plans"]
    assert list(both) == ["grpo"]
    assert kept(both["grpo"], "reward_model") == pytest.approx(4 * 1_188_736, rel=1e-3)


def test_memory_of_a_config_json_and_of_a_hub_id(page: TestClient) -> None:
    """The published numbers of Qwen2.5-0.5B, and its 494,032,768 parameters; no file is read for them."""
    config = {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2}
    config |= {"intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True, "model_type": "qwen2"}
    own = ask(page, f"memory?config={json.dumps(config)}")
    assert own["parameters"] == 494_032_768
    assert own["plans"] == ask(page, "memory?model=Qwen/Qwen2.5-0.5B-Instruct")["plans"]


# The derivative of r A by log r is r A, and nothing where the clip cuts. SAPO: 4 / 2 of a sigmoid of 2, and a slope of
# 4 * 0.104994 times the ratio. CISPO: the weight is cut at 1.2, the gradient is that weight times A.
@pytest.mark.parametrize(
    ("query", "points", "dead", "bounds", "ends"),
    [
        (
            "advantage=2&clip_low=0.2&clip_high=0.28",
            {0.5: (1.0, 1.0), 1.0: (2.0, 2.0), 2.0: (2.56, 0.0)},
            [[1.28, 2.5]], [0.8, 1.28], [0, 2.5],
        ),
        ("advantage=-1", {0.5: (-0.8, 0.0), 2.0: (-2.0, -2.0)}, [[0, 0.8]], [0.8, 1.2], [0, 2.5]),
        # What is worse than 1.5 A is cut as well.
        ("advantage=-1&dual_clip=1.5", {2.0: (-1.5, 0.0)}, [[0, 0.8], [1.5, 2.5]], [0.8, 1.2, 1.5], [0, 2.5]),
        ("advantage=-1&dual_clip=3", {}, [[0, 0.8], [3, 3.6]], [0.8, 1.2, 3], [0, 3.6]),
        # gspo: the axis is 2.5 times as wide as its bounds.
        (
            "advantage=-1&clip_low=0.0003&clip_high=0.0004",
            {1.0: (-1.0, -1.0)}, [[0.999, 0.9997]], [0.9997, 1.0004], [0.999, 1.001],
        ),
        ("advantage=-1&clip_low=0&clip_high=0", {}, [[0, 1]], [1], [0, 2.5]),
        ("advantage=3&surrogate=plain", {2.0: (6.0, 6.0)}, [], [], [0, 2.5]),
        ("advantage=3&surrogate=cispo", {2.0: (1.2 * 3 * math.log(2), 3.6)}, [], [0.8, 1.2], [0, 2.5]),
        ("advantage=-1&surrogate=cispo&clip_low=1&clip_high=4", {}, [], [0, 5], [0, 6]),
        ("advantage=3&surrogate=sapo&tau_pos=2", {2.0: (3 * 1.7615942, 3 * 2 * 0.4199743)}, [], [], [0, 2.5]),
        (
            "advantage=-1&surrogate=gmpo&clip_low=0.33&clip_high=0.49",
            {2.0: (-2.0, -2.0)}, [[0, 0.67]], [0.67, 1.49], [0, 2.5],
        ),
        (
            "advantage=3&surrogate=vespo&k_pos=1",
            {2.0: (6 * math.exp(-3) * math.log(2), 6 * math.exp(-3))}, [], [], [0, 2.5],
        ),
        (
            "advantage=-1&surrogate=vespo&lambda_neg=4",
            {0.5: (-math.exp(2) / 8 * math.log(0.5), -math.exp(2) / 8)}, [], [], [0, 2.5],
        ),
        ("advantage=0", {}, [[0, 2.5]], [0.8, 1.2], [0, 2.5]),
    ],
)  # fmt: skip
def test_the_objective_of_a_token_by_its_ratio(
    page: TestClient,
    query: str,
    points: Mapping[float, tuple[float, float]],
    dead: list[list[float]],
    bounds: list[float],
    ends: list[float],
) -> None:
    found = ask(page, f"objective?{query}")
    ratios = found["ratio"]
    assert [ratios[0], ratios[-1]] == pytest.approx(ends)
    assert len(ratios) > 250
    assert all(one < other for one, other in itertools.pairwise(ratios))
    assert found["bounds"] == pytest.approx(bounds)
    assert {1.0, *found["bounds"]} <= set(ratios)
    assert found["dead"] == [pytest.approx(side) for side in dead]
    for ratio, expected in points.items():
        place = ratios.index(ratio)
        assert (found["objective"][place], found["gradient"][place]) == pytest.approx(expected)
    assert (found["objective"][0] is None) == ("cispo" in query or "vespo" in query)  # log 0


def test_the_estimators_over_a_whole_distribution(page: TestClient) -> None:
    """Worked in docs/algorithms.md: k1 and k3 are unbiased; as losses, k1 pulls nowhere and k3 the other way round."""
    pair = ask(page, "kl")["pair"]
    exact = sum(p * math.log(p / q) for p, q in zip(pair["policy"], pair["reference"], strict=True))
    assert pair["kl"] == pytest.approx(exact)
    assert pair["reverse_kl"] == pytest.approx(
        sum(q * math.log(q / p) for p, q in zip(pair["policy"], pair["reference"], strict=True))
    )
    means = [pair["kinds"][kind]["expectation"] for kind in ("k1", "k2", "k3")]
    assert means == pytest.approx([exact, 0.1568, exact], abs=5e-5)
    assert pair["kinds"]["k1"]["gradient"] == pytest.approx([0, 0, 0], abs=1e-12)
    assert pair["kinds"]["k2"]["gradient"] == pytest.approx(pair["exact_gradient"])
    assert pair["kinds"]["k3"]["gradient"] == pytest.approx(pair["reverse_gradient"])
    assert pair["reverse_gradient"] == pytest.approx([0.237, -0.022, -0.215], abs=1e-3)


def groups(size: int, rate: float) -> list[tuple[float, tuple[int, ...]]]:
    """Every group there is of so many rewards, with its chance."""
    everyone = itertools.product([0, 1], repeat=size)
    return [(math.prod(rate if reward else 1 - rate for reward in one), one) for one in everyone]


def test_the_weight_of_a_group_by_pass_rate(page: TestClient) -> None:
    """The table of docs/evidence.md is the mean |advantage| of a group of 8."""
    found = ask(page, "pass_rate?group_size=8")
    rates, algorithms = found["pass_rate"], found["algorithms"]
    table = {0.02: (0.101, 0.034, 0.039), 0.1: (0.419, 0.158, 0.180), 0.5: (0.928, 0.438, 0.500)}
    for rate, row in table.items():
        for name, mean in zip(("grpo", "dr_grpo", "rloo"), row, strict=True):
            for place in (rates.index(rate), rates.index(round(1 - rate, 2))):
                assert algorithms[name]["weight"][place] / 8 == pytest.approx(mean, abs=6e-4)
    assert algorithms["reinforce"]["weight"] == pytest.approx([8 * rate for rate in rates])
    assert found["signal"] == pytest.approx([1 - rate**8 - (1 - rate) ** 8 for rate in rates])
    place = rates.index(0.3)
    expected = sum(chance * sum(abs(one - sum(group) / 8) for one in group) for chance, group in groups(8, 0.3))
    assert algorithms["dr_grpo"]["weight"][place] == pytest.approx(expected, abs=1e-6)


def test_the_weight_of_grpo_over_that_of_dr_grpo(page: TestClient) -> None:
    """Two rewards that differ have a deviation of 1/2, one of four of sqrt(3)/4."""
    assert ask(page, "pass_rate?group_size=2")["quotient"] == [None, *[pytest.approx(2.0, rel=1e-5)] * 99, None]
    # Of four: 1 or 3 right with a chance of 0.2952, 2 with 0.0486; distances from the mean of 1.5 and 2 in all.
    found = ask(page, "pass_rate?group_size=4")
    of_four = (0.2952 * 1.5 / (math.sqrt(3) / 4) + 0.0486 * 2 / 0.5) / (0.2952 * 1.5 + 0.0486 * 2)
    for rate in (0.1, 0.9):
        assert found["quotient"][found["pass_rate"].index(rate)] == pytest.approx(of_four, rel=1e-5)


def test_memory_settings_of_the_planner(page: TestClient) -> None:
    """Halved weights and moments, no reference: 2 + 4 + 2 * 2 bytes a parameter instead of 4 + 4 + 8 and 4."""
    usual, saving, adapter = (
        ask(page, f"memory?model=abacus&device=cpu&algorithm=grpo{more}")["plans"]["grpo"]
        for more in ("", "&weights=bfloat16&moments=bfloat16&reference=none", "&weights=nf4&lora_rank=2")
    )
    assert kept(usual, "policy") == 2 * kept(saving, "policy") > 2 * kept(adapter, "policy")
    assert kept(usual, "moments") == 2 * kept(saving, "moments") > 2 * kept(adapter, "moments")
    assert (kept(usual, "reference"), kept(saving, "reference")) == (kept(usual, "policy"), 0)
