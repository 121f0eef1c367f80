"""The walk-through of watched groups: real runs against what they recorded otherwise; what a made one shows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from explained_group import TOKENS, UPDATED
from explaining import ask, lab
from grouprl import Algorithm, Trainer
from grouprl.algorithms.named import NAMED
from grouprl.algorithms.stages import group_stages
from grouprl.config.run import RunConfig, dump_config
from grouprl.record.write import RunRecord
from grouprl.rewards.functions import WeightedReward
from grouprl.types import Completion, Group, Problem, RewardOutcome, StepRecord, StepReward, StopReason, TokenTrace
from letter_rewards import rarely, words
from small_runs import LETTERS, ROWS, metrics, rollouts, small_config
from variants import variant

BOTH = (LETTERS, WeightedReward("rarely", rarely, weight=0.5))


@pytest.fixture(scope="module")
def train(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[TestClient, Path]]:
    @cache
    def trained(
        algorithm: Algorithm, rewards: tuple[WeightedReward, ...] = BOTH, problems: int = 1
    ) -> tuple[TestClient, Path]:
        root = tmp_path_factory.mktemp("runs")
        rollout = {"problems_per_step": problems, "group_size": 4, "max_tokens": 8}
        evaluation = {"problems": 1, "samples": 0}
        config = small_config(root, steps=1, rollout=rollout, evaluation=evaluation)
        return lab(root), Trainer(tiny, ROWS, list(rewards), algorithm, config).train().directory

    return trained


def two_passes(name: str) -> Algorithm:
    """So that policy and behavior policy differ."""
    return variant(name, minibatches=1, passes=2)


def blobs(folder: Path, column: str) -> list[list[float]]:
    rows = rollouts(folder, f"SELECT {column} FROM completions WHERE step = 1 ORDER BY completion_index")
    return [np.frombuffer(blob, "<f4").astype(float).tolist() for (blob,) in rows]


@pytest.mark.parametrize("name", ["grpo", "gspo", "reinforce_pp"])
def test_a_group_that_is_the_batch_has_the_numbers_of_the_step(name: str, train: Any) -> None:
    algorithm = two_passes(name)
    page, folder = train(algorithm)
    row = metrics(folder)[0]
    assert ask(page, "steps?run=run") == {"steps": [1]}
    found = ask(page, "group?run=run&step=1")
    stages = found["stages"]
    loss = stages["loss"]
    assert loss["share"] == pytest.approx(row["loss"], abs=1e-6) == loss["step"]
    assert loss["surrogate"] + loss["kl"] == pytest.approx(loss["share"], abs=1e-12)
    assert math.fsum(loss["completions"]) == pytest.approx(loss["share"], abs=1e-12)
    assert loss["batch"] == {"groups": 1, "completions": 4}
    assert max(one["max"] for one in stages["ratio"]["completions"]) == pytest.approx(row["ratio_max"], rel=1e-5)
    if algorithm.has_kl_loss:
        sums = [one["sum"] for one in stages["kl"]["completions"]]
        assert math.fsum(sums) / row["completion_tokens"] == pytest.approx(row["kl"], rel=1e-3, abs=1e-9)
    for column, side in (("learner_logprobs", "before"), ("updated_logprobs", "after")):
        sums = [math.fsum(values) for values in blobs(folder, column)]
        assert [one[side] for one in stages["update"]["completions"]] == pytest.approx(sums, rel=1e-5)
    assert (stages["update"]["learning_rate"], stages["update"]["grad_norm"]) == (
        row["learning_rate"],
        row["grad_norm"],
    )
    if algorithm.advantage.credit == "completion":  # the arithmetic leads to the recorded advantages
        recorded = [value for (value,) in rollouts(folder, "SELECT advantage FROM completions WHERE step = 1")]
        assert stages["statistics"]["compared"]["advantages"] == pytest.approx(recorded, abs=1e-5)
        assert stages["advantages"]["completions"] == recorded
        assert max(map(abs, recorded)) > 0.01


def test_shares_of_several_groups_add_up(train: Any) -> None:
    """The watched group is one of the kept ones: its share is what the others leave of the step's loss."""
    page, folder = train(variant("dapo", refills=1), problems=4)
    row = metrics(folder)[0]
    found = ask(page, "group?run=run&step=1")
    place = f"step = 1 AND group_index = {found['source']['group']}"
    assert rollouts(folder, f"SELECT DISTINCT kept FROM completions WHERE {place}") == [(1,)]
    assert found["stages"]["loss"]["batch"]["groups"] == row["groups/kept"]
    weights = [one["weight"] for one in found["stages"]["gradient"]["completions"]]
    lengths = [length for (length,) in rollouts(folder, f"SELECT length FROM completions WHERE {place}")]
    total = rollouts(folder, "SELECT SUM(length) FROM completions WHERE step = 1 AND kept")[0][0]
    assert weights == pytest.approx([length / total for length in lengths])  # DAPO: mean over all tokens


def test_a_step_without_signal_has_no_walk(train: Any) -> None:
    page, _ = train(NAMED["dr_grpo"], (WeightedReward("same", lambda completions, **_: [1.0] * len(completions)),))
    assert ask(page, "steps?run=run") == {"steps": []}


def test_steps_are_compared_with_all_steps_of_the_group(train: Any) -> None:
    rewards = (LETTERS, WeightedReward("words", words, per_step=True))
    page, _ = train(NAMED["grpo_process"], rewards)
    stages = ask(page, "group?run=run&step=1")["stages"]
    found = stages["statistics"]
    rows = found["steps"]
    flat = [step["reward"] for row in rows for step in row]
    assert found["count"] == len(flat) > 4
    assert found["deviation"] == pytest.approx(math.sqrt(found["sum_of_squares"] / found["divided_by"]))
    assert found["mean"] == pytest.approx(sum(flat) / len(flat))
    # What steps earn is no part of a completion's reward.
    rewarded = stages["rewards"]
    assert rewarded["by_step"] == ["words"]
    assert all(row["reward"] == row["components"]["letters"] for row in rewarded["completions"])
    # A token's advantage is the sum over the steps that end at or after it.
    assert stages["advantages"]["by_token"]
    for row, advantages in zip(rows, stages["advantages"]["tokens"], strict=True):
        expected = [sum(step["normalised"] for step in row if step["end"] >= t) for t in range(len(advantages))]
        assert advantages == pytest.approx(expected, abs=1e-5)


def made(folder: Path, algorithm: Algorithm, others: Mapping[str, float] = MappingProxyType({})) -> None:
    """Step 11 has two completions of 1 and 2 tokens, with the stages of tests/algorithms/test_stages.py."""
    completions = tuple(
        Completion(index, (7, 8)[:length], (-1.0,) * length, (-1.0,) * length, f"t{index}", StopReason.END, 0)
        for index, length in enumerate((1, 2))
    )
    traces = [TokenTrace(updated=(-0.5,) * length) for length in (1, 2)]
    outcomes = [
        RewardOutcome(2.0, {"exact": 1.0, **others}),
        RewardOutcome(0.0, {"exact": 0.0, **others}, steps=(StepReward(0, 0.5),)),
    ]
    config = dump_config(RunConfig(name=folder.name, algorithm=algorithm, rollout={"max_tokens": 4}))
    with RunRecord.create(folder, config) as run:
        run.rewards({"exact": 2.0}, {"steps": 1.0})
        group = Group(Problem("p", "2 + 2", {"answer": "4"}), (1, 2, 3), completions)
        stages = group_stages(algorithm, TOKENS, UPDATED, kl_coef=algorithm.kl_coef)
        stages["loss"]["batch"] = {"groups": 1, "completions": 2}
        row = {"loss": 0.5, "learning_rate": 0.1}
        advantages = [[[1.0], [-1.0, -1.0]]]
        run.step(StepRecord(11, row, [group], [outcomes], advantages, [traces], stages=stages))


def test_what_was_recorded_is_shown(tmp_path: Path) -> None:
    made(tmp_path / "run", variant(passes=2))
    found = ask(lab(tmp_path), "group?run=run&step=11")
    stages = found["stages"]
    assert found["source"] == {"run": "run", "step": 11, "group": 0}
    assert "2 updates" in found["notes"][0]
    assert stages["prompt"] == {
        "problem_id": "p", "text": "2 + 2", "messages": None, "columns": {"answer": "4"}, "tokens": 3,
    }  # fmt: skip
    assert stages["completions"][1] == {"text": "t1", "length": 2, "stop_reason": "end"}
    assert stages["rewards"]["weights"] == {"exact": 2.0}
    recorded = json.loads(rollouts(tmp_path / "run", "SELECT value FROM stages WHERE stage = 'ratio'")[0][0])
    assert stages["ratio"]["completions"] == recorded["completions"]
    assert stages["ratio"]["reason"] is None
    assert stages["loss"]["step"] == 0.5


def test_process_rewards_are_those_that_were_recorded(tmp_path: Path) -> None:
    made(tmp_path / "run", variant(credit="step"), others={"steps": 0.5})
    found = ask(lab(tmp_path), "group?run=run&step=11")["stages"]["rewards"]
    assert (found["names"], found["by_step"]) == (["exact", "steps"], ["steps"])
    made(tmp_path / "plain", Algorithm(), others={"steps": 0.5})
    assert ask(lab(tmp_path), "group?run=plain&step=11")["stages"]["rewards"]["by_step"] == []


@pytest.mark.parametrize(
    ("algorithm", "kind", "said"),
    [
        (NAMED["ppo"], "tokens", "the critic's prediction"),
        (NAMED["reinforce_pp"], "tokens", "the batch's tokens"),
        (NAMED["openrlhf"], "tokens", "the group"),
        (variant(reward_mix="normalise_then_sum"), "components", "Each reward function gives its own advantages"),
    ],
)
def test_what_is_compared_is_said(tmp_path: Path, algorithm: Algorithm, kind: str, said: str) -> None:
    made(tmp_path / "run", algorithm)
    found = ask(lab(tmp_path), "group?run=run&step=11")["stages"]["statistics"]
    assert found["kind"] == kind
    assert said in found["sentence"]


def test_a_kl_in_the_reward_is_taken_off_before_rewards_are_compared(tmp_path: Path) -> None:
    made(tmp_path / "run", NAMED["rloo"])
    stages = ask(lab(tmp_path), "group?run=run&step=11")["stages"]
    # k1 from the sampler's log-probs: references are 3 times as probable, then 1 and 2.2 times.
    taken = [-0.03 * math.log(3), -0.03 * math.log(2.2)]
    assert [one["penalty"] for one in stages["rewards"]["completions"]] == pytest.approx(taken, rel=1e-4)
    assert stages["statistics"]["compared"]["rewards"] == pytest.approx([2 - taken[0], -taken[1]])
    assert stages["ratio"]["bounds"] == []


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    root = tmp_path_factory.mktemp("plain")
    made(root / "run", Algorithm())
    return lab(root)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("group?run=run&step=4", "step 4: expected a step whose walk-through the run recorded (11), got another"),
        ("group?run=elsewhere&step=11", "expected a run below"),
        ("group?run=..&step=11", "expected a run below"),
        ("group?run=run&step=11&group=0", "expected the parameters run, step, rewards"),
        ("group?run=run", "step: expected a value"),
        ("group?run=run&step=11&rewards=1,0", "expected either a run with a step, or rewards"),
        ("group", "rewards: expected a value"),
        ("advantages?rewards=1", "rewards: expected 2 to 16"),
        (f"advantages?rewards={','.join(['1'] * 17)}", "rewards: expected 2 to 16"),
        ("advantages?rewards=1,inf", "rewards: expected a number"),
        ("advantages?rewards=1,1e7", "rewards: expected a number"),
        ("advantages?rewards=1,٣", "rewards: expected a number"),
        ("advantages?rewards=1,0&rewards=1,1", "expected each parameter once"),
        ("advantages?rewards=1,0&colour=red", "expected the parameters rewards, algorithms, got 'colour'"),
        ("advantages?rewards=1,0&algorithms=ppo", "algorithms: expected some of grpo"),
        ("objective?clip_low=1.5", "clip_low: expected a number from 0 to 1"),
        ("objective?surrogate=soft", "surrogate: expected one of clip, cispo, plain, sapo, gmpo, vespo"),
        ("objective?surrogate=plain&dual_clip=2", "dual_clip: expected none with surrogate=plain"),
        ("kl?kind=k4", "got 'kind'"),
        ("pass_rate?group_size=65", "group_size: expected a whole number from 2 to 64"),
        ("memory?model=large", "model: expected Llama-3.1-70B, Llama-3.1-8B"),
        ("memory?model=Qwen2.5-7B&weights=nf4", "LoRA rank"),
        ("memory?config=[1]", "expected"),
        ("memory?config={", "expected"),
        ("memory?config={}", "expected"),
        ("memory?model=/etc", "expected"),
        ("memory?lora_rank=0", "lora_rank: expected a whole number from 1"),
    ],
)
def test_a_mistake_is_told_with_what_was_expected(plain: TestClient, path: str, said: str) -> None:
    answer = plain.get(f"/api/explain/{path}")
    assert (answer.status_code, said in answer.json()["error"]) == (400, True), answer.text


def test_settings_of_another_version_are_refused(tmp_path: Path) -> None:
    made(tmp_path / "run", Algorithm())
    (tmp_path / "run" / "config.yaml").write_text("algorithm: {name: grpo, temperature: 3}\nrollout: {max_tokens: 4}\n")
    answer = lab(tmp_path).get("/api/explain/group?run=run&step=11")
    assert (answer.status_code, "restore the file" in answer.json()["error"]) == (400, True)
