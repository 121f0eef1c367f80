"""The numbers of the explainers against numbers worked by hand, sums written out, and distributions enumerated."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from explaining import ask, lab
from grouprl.algorithms.named import NAMED
from grouprl.lab.explain_typed import COMPARING
from grouprl.lab.report.worked import compared


@pytest.fixture
def page(tmp_path: Path) -> TestClient:
    return lab(tmp_path)


# Advantages


def of(page: TestClient, rewards: str, algorithm: str) -> dict[str, Any]:
    found: dict[str, Any] = ask(page, f"advantages?rewards={rewards}&algorithms={algorithm}")["algorithms"][algorithm]
    return found


SIX_OF_TEN = "1,1,1,1,1,1,0,0,0,0"


@pytest.mark.parametrize(
    ("algorithm", "right", "wrong"),
    [
        ("grpo", 0.8165, -1.2247),  # 0.4 / 0.4899 and -0.6 / 0.4899
        ("trl", 0.7745, -1.1617),  # sample deviation 0.5164, with 1e-4 added to it
        ("dr_grpo", 0.4, -0.6),
        ("rloo", 0.4444, -0.6667),  # 1 - 5/9 and 0 - 6/9
        ("reinforce", 1.0, 0.0),
    ],
)
def test_six_of_ten_correct(page: TestClient, algorithm: str, right: float, wrong: float) -> None:
    found = of(page, SIX_OF_TEN, algorithm)["advantages"]
    assert found == pytest.approx([right] * 6 + [wrong] * 4, abs=1e-4)


def test_the_arithmetic_of_partial_rewards(page: TestClient) -> None:
    """1.5, 0, 1.5, 0, 1, 1.5, 0.5, 1.5: the sum is 7.5, the squared distances come to 3.21875."""
    found = of(page, "1.5,0,1.5,0,1,1.5,0.5,1.5", "grpo")
    assert (found["count"], found["sum"], found["mean"]) == (8, 7.5, 0.9375)
    assert found["deviations"][:2] == found["gaps"][:2] == [0.5625, -0.9375]
    assert found["squares"][:2] == [0.31640625, 0.87890625]
    assert (found["sum_of_squares"], found["divided_by"]) == (3.21875, 8)
    assert found["deviation"] == pytest.approx(0.63431, abs=1e-5)
    assert found["divisors"] == pytest.approx([found["deviation"] + 1e-6] * 8)
    assert found["advantages"] == pytest.approx(
        [0.8868, -1.478, 0.8868, -1.478, 0.0985, 0.8868, -0.6897, 0.8868], abs=1e-4
    )
    assert (found["mean"], found["mean_of"], found["deviation_of"]) == (0.9375, "group", "group")


def test_each_of_rloo_is_compared_with_the_others(page: TestClient) -> None:
    found = of(page, "4,1,1,0", "rloo")
    assert found["baselines"] == pytest.approx([2 / 3, 5 / 3, 5 / 3, 2])
    assert found["advantages"] == pytest.approx([10 / 3, -2 / 3, -2 / 3, -2])
    assert (found["deviation_of"], found["divisors"]) == (None, [1, 1, 1, 1])


def test_what_is_invalid_has_no_part_in_anything(page: TestClient) -> None:
    found = of(page, "1,nan,0", "grpo")
    assert found["advantages"] == [pytest.approx(1, abs=1e-5), None, pytest.approx(-1, abs=1e-5)]
    assert (found["count"], found["mean"], found["deviation"]) == (2, 0.5, 0.5)
    assert found["rewards"] == [1, None, 0]


@pytest.mark.parametrize(
    ("rewards", "said"),
    [("0.7,0.7,0.7", "All 3 valid rewards are equal"), ("nan,2", "Only one reward is valid"), ("nan,nan", "No reward")],
)
def test_a_group_without_signal_says_why(page: TestClient, rewards: str, said: str) -> None:
    found = of(page, rewards, "grpo")
    assert found["without_signal"].startswith(said)
    assert {0.0} >= {advantage for advantage in found["advantages"] if advantage is not None}


def test_against_a_constant_equal_rewards_have_a_signal(page: TestClient) -> None:
    found = of(page, "1,1", "reinforce")
    assert (found["without_signal"], found["advantages"]) == (None, [1, 1])


some_rewards = st.lists(st.sampled_from([0.0, 0.25, 0.7, 1.0, 3.5, math.nan]), min_size=2, max_size=6)


@given(some_rewards, st.lists(some_rewards, max_size=2), st.sampled_from(list(COMPARING)))
def test_the_page_shows_what_the_learner_would_learn(
    rewards: list[float], others: list[list[float]], name: str
) -> None:
    whole = [rewards, *others]
    if name == "maxrl":  # refuses rewards below 0
        whole = [[abs(reward) for reward in group] for group in whole]
        rewards, *others = whole
    rewards_N = torch.tensor([reward for group in whole for reward in group], dtype=torch.float64)
    groups_N = torch.tensor([index for index, group in enumerate(whole) for _ in group])
    learned = NAMED[name].advantage.statistics(rewards_N, groups_N).advantages(rewards_N)[: len(rewards)].tolist()
    found = compared(rewards, NAMED[name], others)
    shown = [0.0 if advantage is None else advantage for advantage in found["advantages"]]
    assert shown == learned
    assert [advantage is None for advantage in found["advantages"]] == [math.isnan(reward) for reward in rewards]
    if found["without_signal"]:
        assert set(learned) == {0.0}
    # The arithmetic that is shown leads to the advantages that are shown.
    rows = zip(rewards, found["baselines"], found["divisors"], found["advantages"], strict=True)
    for reward, baseline, divisor, advantage in rows:
        if advantage is not None and not found["without_signal"]:
            assert (reward - baseline) / divisor == pytest.approx(advantage, rel=1e-5, abs=1e-6)
    # What is worked out of the rewards by itself is what the learner divides by.
    known = NAMED[name].advantage.statistics(rewards_N, groups_N)
    spread = {"group": found, "batch": found["batch"]}
    if found["deviation_of"] and not found["without_signal"]:
        assert spread[found["deviation_of"]]["deviation"] == pytest.approx(float(known.deviation[0]), rel=1e-12)


# A group that is typed


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


# Memory


def kept(plan: dict[str, Any], *parts: str) -> int:
    """Bytes of these parts of a plan of the page, of all its networks without any."""
    blocks = plan["blocks"]["held"] | plan["blocks"]["learning"]
    others = ("activations", "layer", "logits", "rounded", "cache", "copies")
    return sum(size for part, size in blocks.items() if (part in parts if parts else part not in others))


def test_memory_of_ppo_beside_grpo(page: TestClient) -> None:
    """docs/algorithms.md: 20 bytes a parameter with GRPO, 36 with PPO; with a reward model 40."""
    plans = ask(page, "memory?model=abacus&device=cpu")["plans"]
    learned = ask(page, "memory?model=abacus&device=cpu&reward_model=ppo")["plans"]
    for plan, per_parameter in ((plans["grpo"], 20), (plans["ppo"], 36), (learned["grpo"], 20), (learned["ppo"], 40)):
        assert kept(plan) / 1_188_736 == pytest.approx(per_parameter, rel=1e-3)
        assert sum(plan["blocks"]["held"].values()) == plan["sums"]["held"]  # no cache is held on a CPU
    assert plans["ppo"]["sums"]["learning"] - plans["grpo"]["sums"]["learning"] == pytest.approx(
        16 * 1_188_736, rel=1e-3
    )
    large = ask(page, "memory")["plans"]["ppo"]
    assert {"cache", "copies"} <= set(large["blocks"]["held"])  # CUDA graphs keep their addresses
    assert sum(large["blocks"]["held"].values()) == large["sums"]["held"]
    both = ask(page, "memory?model=abacus&reward_model=both&algorithm=grpo")["plans"]
    assert list(both) == ["grpo"]
    assert kept(both["grpo"], "reward_model") == pytest.approx(4 * 1_188_736, rel=1e-3)


def test_memory_settings_of_the_planner(page: TestClient) -> None:
    """Halved weights and moments, no reference: 2 + 4 + 2 * 2 bytes a parameter instead of 4 + 4 + 8 and 4."""
    usual, saving = (
        ask(page, f"memory?model=abacus&device=cpu&algorithm=grpo{more}")["plans"]["grpo"]
        for more in ("", "&weights=bfloat16&moments=bfloat16&reference=none")
    )
    assert kept(usual, "policy") == 2 * kept(saving, "policy")
    assert kept(usual, "moments") == 2 * kept(saving, "moments")
    assert (kept(usual, "reference"), kept(saving, "reference")) == (kept(usual, "policy"), 0)


def test_four_bits_below_an_adapter_in_the_planner(page: TestClient) -> None:
    """28 layers with 233,046,016 weights in matrices, at 4 bits and (1 + 4 / 256) / 64 bytes of scale each."""
    half, small = (
        ask(page, f"memory?model=Qwen2.5-7B&algorithm=grpo&lora_rank=16&weights={weights}")["plans"]["grpo"]
        for weights in ("bfloat16", "nf4")
    )
    saved = 28 * 233_046_016 * (2 - 0.5 - (1 + 4 / 256) / 64)
    assert kept(half, "policy") - kept(small, "policy") == pytest.approx(saved, rel=1e-6)
    answer = page.get("/api/explain/memory?model=Qwen2.5-7B&weights=nf4")
    assert (answer.status_code, "LoRA rank" in answer.json()["error"]) == (400, True)


def test_memory_of_a_config_json_and_of_a_hub_id(page: TestClient) -> None:
    """The published numbers of Qwen2.5-0.5B, and its 494,032,768 parameters; no file is read for them."""
    config = {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2}
    config |= {"intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True, "model_type": "qwen2"}
    own = ask(page, f"memory?config={json.dumps(config)}")
    assert own["parameters"] == 494_032_768
    assert own["plans"] == ask(page, "memory?model=Qwen/Qwen2.5-0.5B-Instruct")["plans"]
    for query in ("config=[1]", "config={", "model=/etc", "model=.", "config={}"):
        answer = page.get(f"/api/explain/memory?{query}")
        assert (answer.status_code, "expected" in answer.json()["error"]) == (400, True)
