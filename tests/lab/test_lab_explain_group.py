"""The walk-through of recorded groups: real runs against what they recorded, made ones against sums by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from starlette.testclient import TestClient

from explaining import ask, lab
from grouprl import Algorithm, Trainer
from grouprl.algorithms.named import NAMED
from grouprl.config.run import RunConfig, dump_config
from grouprl.lab import export
from grouprl.record.write import RunRecord
from grouprl.rewards.functions import WeightedReward
from grouprl.types import Completion, Group, Problem, RewardOutcome, StepRecord, StepReward, StopReason, TokenTrace
from letter_rewards import letters, rarely, words
from small_runs import ROWS, metrics, rollouts, small_config
from variants import variant

pytestmark = pytest.mark.usefixtures("no_page")

LETTERS = (WeightedReward("letters", letters), WeightedReward("rarely", rarely, weight=0.5))


@pytest.fixture(scope="module")
def train(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[TestClient, Path]]:
    made: dict[Algorithm, tuple[TestClient, Path]] = {}  # of those that only differ in their algorithm

    def run(algorithm: Algorithm, rewards: Any = LETTERS, **changes: Any) -> tuple[TestClient, Path]:
        if rewards is LETTERS and not changes:
            if algorithm not in made:
                made[algorithm] = trained(algorithm, rewards)
            return made[algorithm]
        return trained(algorithm, rewards, **changes)

    def trained(algorithm: Algorithm, rewards: Any, **changes: Any) -> tuple[TestClient, Path]:
        root = tmp_path_factory.mktemp("runs")
        config = small_config(root, steps=2, **changes)
        return lab(root), Trainer(tiny, ROWS, list(rewards), algorithm, config).train().directory

    return run


def groups(page: TestClient, step: int, count: int) -> list[dict[str, Any]]:
    return [ask(page, f"group?run=run&step={step}&group={place}") for place in range(count)]


NAMES = ["grpo", "dr_grpo", "rloo", "reinforce", "reinforce_batch", "gspo", "cispo", "trl", "reinforce_pp"]


@pytest.mark.parametrize("name", NAMES)
def test_the_shares_of_the_groups_are_the_loss_that_the_run_recorded(name: str, train: Any) -> None:
    page, folder = train(variant(name, minibatches=1))
    for row in metrics(folder):
        shown = groups(page, row["step"], 2)
        assert sum(one["stages"]["loss"]["share"] for one in shown) == pytest.approx(row["loss"], abs=1e-6)
        for one in shown:
            stages = one["stages"]
            loss = stages["loss"]
            assert loss["surrogate"] + loss["kl"] == pytest.approx(loss["share"], abs=1e-12)
            assert math.fsum(loss["completions"]) == pytest.approx(loss["share"], abs=1e-12)
            assert loss["batch"] == {"groups": 2, "completions": 8}
            assert (one["kept"], one["notes"]) == (True, [])


@pytest.mark.parametrize("name", [name for name in NAMES if NAMED[name].advantage.credit == "completion"])
def test_the_arithmetic_leads_to_the_advantages_that_the_run_recorded(name: str, train: Any) -> None:
    page, folder = train(NAMED[name])
    for step in (1, 2):
        for place, one in enumerate(groups(page, step, 2)):
            shown = one["stages"]["statistics"]["compared"]["advantages"]
            where = f"step = {step} AND group_index = {place}"
            rows = rollouts(folder, f"SELECT advantage FROM completions WHERE {where} ORDER BY completion_index")
            assert shown == pytest.approx([row[0] for row in rows], abs=1e-5)
            assert one["stages"]["advantages"]["completions"] == [row[0] for row in rows]
    # Something was learned, or all of this would hold of zeros.
    assert max(abs(row[0]) for row in rollouts(folder, "SELECT advantage FROM completions")) > 0.01


def fields(value: Any) -> Any:
    """The names in an answer, without those that the run or its task chose."""
    if isinstance(value, list):
        return [fields(value[0])] if value and isinstance(value[0], dict) else None
    chosen = ("messages", "columns", "components", "weights")
    return {name: name in chosen or fields(one) for name, one in value.items()} if isinstance(value, dict) else None


def test_the_group_that_is_kept_for_the_exported_page_is_as_the_lab_answers_today(train: Any) -> None:
    page, _ = train(NAMED["grpo"])
    kept = json.loads(Path(export.__file__).with_name("example.json").read_text(encoding="utf-8"))
    (walk,) = (answer for key, answer in kept.items() if key.startswith("explain/group?"))
    (today,) = (one for one in groups(page, 1, 2) if one["stages"]["update"]["reason"] is None)
    assert fields(walk) == fields(today)


def test_the_kl_is_what_the_run_recorded(train: Any) -> None:
    page, folder = train(NAMED["grpo"])
    row = metrics(folder)[1]
    sums = [one["sum"] for group in groups(page, 2, 2) for one in group["stages"]["kl"]["completions"]]
    assert row["kl"] > 1e-6
    assert math.fsum(sums) / row["completion_tokens"] == pytest.approx(row["kl"], rel=1e-3)


def test_the_update_of_the_watched_group_is_shown(train: Any) -> None:
    page, _ = train(NAMED["grpo"])
    first, second = groups(page, 1, 2)
    watched = first["stages"]["update"]["watched"]
    assert [one["step"] for one in watched] == [1]
    shown, hidden = (first, second) if watched[0]["group"] == 0 else (second, first)
    moves = [
        (one["after"] - one["before"], advantage)
        for one, advantage in zip(
            shown["stages"]["update"]["completions"], shown["stages"]["advantages"]["completions"], strict=True
        )
    ]
    # One small step of gradient descent: what was better than the mean has become more probable in the mean.
    assert sum(move * advantage for move, advantage in moves) > 0
    assert shown["stages"]["update"]["reason"] is None
    for one in shown["stages"]["update"]["completions"]:
        assert one["probability_after"] / one["probability_before"] == pytest.approx(one["factor"])
    assert {one["after"] for one in hidden["stages"]["update"]["completions"]} == {None}
    assert f"step 1 group {watched[0]['group']}" in hidden["stages"]["update"]["reason"]
    assert "1, 11, 21" in hidden["stages"]["update"]["reason"]


def test_groups_that_are_dropped_have_no_share(train: Any) -> None:
    algorithm = variant("dapo", refills=1, overlong_buffer=0.5)
    page, folder = train(
        algorithm, [WeightedReward("rarely", rarely)], rollout={"problems_per_step": 4, "group_size": 4}
    )
    dropped = 0
    for row in metrics(folder):
        shown = groups(page, row["step"], int(row["groups/sampled"]))
        assert [one["kept"] for one in shown].count(True) == row["groups/kept"]
        for one in shown:
            rewards = [completion["components"]["rarely"] for completion in one["stages"]["rewards"]["completions"]]
            assert one["kept"] == (len(set(rewards)) > 1)
            if not one["kept"]:
                dropped += 1
                assert one["stages"]["loss"]["share"] == 0
                assert "dropped" in one["notes"][0]
        if "loss" in row:
            assert sum(one["stages"]["loss"]["share"] for one in shown) == pytest.approx(row["loss"], abs=1e-6)
    assert dropped


def test_steps_are_compared_with_all_steps_of_the_group(train: Any) -> None:
    rewards = (WeightedReward("letters", letters), WeightedReward("words", words, per_step=True))
    page, _ = train(NAMED["grpo_process"], rewards)
    for one in groups(page, 1, 2):
        found = one["stages"]["statistics"]
        rows = found["steps"]
        flat = [step["reward"] for row in rows for step in row]
        assert found["count"] == len(flat) > 4
        assert found["deviation"] == pytest.approx(math.sqrt(found["sum_of_squares"] / found["divided_by"]))
        # What steps earn is no part of a completion's reward.
        rewarded = one["stages"]["rewards"]
        assert rewarded["by_step"] == ["words"]
        assert all(row["reward"] == row["components"]["letters"] for row in rewarded["completions"])
        assert found["mean"] == pytest.approx(sum(flat) / len(flat))
        # A token's advantage is the sum over the steps that end at or after it.
        assert one["stages"]["advantages"]["by_token"]
        for row, advantages in zip(rows, one["stages"]["advantages"]["tokens"], strict=True):
            expected = [sum(step["normalised"] for step in row if step["end"] >= t) for t in range(len(advantages))]
            assert advantages == pytest.approx(expected, abs=1e-5)


# Groups that were made for it


def made(
    folder: Path,
    algorithm: Algorithm,
    *,
    rewards: Any = ({"name": "exact", "weight": 2.0},),
    others: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Two completions of 1 and 2 tokens; the policy has moved by the factors 1.5, and 0.5 and 1.1, since it sampled."""
    factors = ((1.5,), (0.5, 1.1))
    completions = tuple(
        Completion(index, (7, 8)[: len(row)], (-1.0,) * len(row), (-1.0,) * len(row), f"t{index}", StopReason.END, 0)
        for index, row in enumerate(factors)
    )
    traces = [
        TokenTrace(
            tuple(-1 + math.log(factor) for factor in row),
            (0.0,) * len(row),
            tuple(-1 + math.log(factor) + math.log(2) for factor in row),  # the reference: twice as probable
            tuple(-0.5 for _ in row) if index == 0 else None,
        )
        for index, row in enumerate(factors)
    ]
    outcomes = [
        RewardOutcome(2.0, {"exact": 1.0, **others}),
        RewardOutcome(0.0, {"exact": 0.0, **others}, steps=(StepReward(0, 0.5),)),
    ]
    config = dump_config(RunConfig(name=folder.name, algorithm=algorithm, rewards=rewards, rollout={"max_tokens": 4}))
    with RunRecord.create(folder, config) as run:
        group = Group(Problem("p", "2 + 2", {"answer": "4"}), (1, 2, 3), completions)
        run.step(
            StepRecord(3, {"loss": 0.5, "learning_rate": 0.1}, [group], [outcomes], [[[1.0], [-1.0, -1.0]]], [traces])
        )


def test_ratios_clip_loss_and_gradient_by_hand(tmp_path: Path) -> None:
    made(tmp_path / "run", variant(passes=2, kl_coef=0.1))
    found = ask(lab(tmp_path), "group?run=run&step=3&group=0")
    stages = found["stages"]
    first, second = stages["ratio"]["completions"]
    assert first["ratios"] == pytest.approx([1.5], rel=1e-5)
    assert second["ratios"] == pytest.approx([0.5, 1.1], rel=1e-5)
    # 1.5 with an advantage of 1 is beyond 1.2; 0.5 with -1 is below 0.8; 1.1 is inside.
    assert (first["clip_high_fraction"], second["clip_low_fraction"]) == (1, 0.5)
    assert [one["dead_tokens"] for one in stages["gradient"]["completions"]] == [1, 1]
    assert (first["reason"], second["reason"]) == (None, None)
    assert "2 updates" in found["notes"][0]
    # k3 with a reference that is twice as probable: 2 - 1 - log 2; its gradient is 1 - 2.
    k3 = 1 - math.log(2)
    assert [one["sum"] for one in stages["kl"]["completions"]] == pytest.approx([k3, 2 * k3], rel=1e-4)
    # Weights are 1/2 and, of two tokens, 1/4 each.
    surrogate = -1.2 / 2 + (0.8 + 1.1) / 4
    assert stages["loss"]["surrogate"] == pytest.approx(surrogate, rel=1e-5)
    assert stages["loss"]["kl"] == pytest.approx(0.1 * k3, rel=1e-4)
    assert stages["loss"]["share"] == pytest.approx(stages["loss"]["alone"])
    assert stages["loss"]["step"] == 0.5
    gradients = [one["sum"] for one in stages["gradient"]["completions"]]
    assert gradients == pytest.approx([-0.1 / 2, 1.1 / 4 - 2 * 0.1 / 4], rel=1e-4)
    assert [one["surrogate_sum"] for one in stages["gradient"]["completions"]] == pytest.approx([0, 1.1 / 4], rel=1e-5)
    assert [one["weight"] for one in stages["gradient"]["completions"]] == [0.5, 0.5]


def test_rewards_and_update_by_hand(tmp_path: Path) -> None:
    made(tmp_path / "run", Algorithm())
    stages = ask(lab(tmp_path), "group?run=run&step=3&group=0")["stages"]
    assert stages["prompt"] == {
        "problem_id": "p", "text": "2 + 2", "messages": None, "columns": {"answer": "4"}, "tokens": 3,
    }  # fmt: skip
    assert stages["completions"][1] == {"index": 1, "text": "t1", "length": 2, "stop_reason": "end"}
    assert stages["rewards"]["weights"] == {"exact": 2.0}
    assert stages["rewards"]["completions"][1]["steps"] == [{"end": 0, "reward": 0.5}]
    first, second = stages["update"]["completions"]
    assert first["sampled"] == -1.0
    assert first["probability_before"] == pytest.approx(1.5 / math.e, rel=1e-5)
    assert first["probability_after"] == pytest.approx(math.exp(-0.5), rel=1e-5)
    assert second["probability_before"] == pytest.approx(0.5 * 1.1 / math.e**2, rel=1e-5)
    assert second["probability_after"] is None


def test_process_rewards_are_those_that_were_recorded(tmp_path: Path) -> None:
    rewards = ({"name": "exact", "weight": 2.0}, {"name": "steps", "weight": 1.0})
    made(tmp_path / "run", variant(credit="step"), rewards=rewards, others={"steps": 0.5})
    page = lab(tmp_path)
    found = ask(page, "group?run=run&step=3&group=0")["stages"]["rewards"]
    assert (found["names"], found["by_step"]) == (["exact", "steps"], None)  # an older version's
    recorded = '{"weights": {"exact": 2.0}, "process": {"steps": 1.0}}'
    (tmp_path / "run" / "rewards.json").write_text(recorded)
    found = ask(page, "group?run=run&step=3&group=0")["stages"]["rewards"]
    assert (found["names"], found["by_step"]) == (["exact", "steps"], ["steps"])
    made(tmp_path / "plain", Algorithm(), rewards=rewards, others={"steps": 0.5})
    assert ask(lab(tmp_path), "group?run=plain&step=3&group=0")["stages"]["rewards"]["by_step"] == []


def test_weights_of_the_task_are_those_that_were_recorded(tmp_path: Path) -> None:
    made(tmp_path / "run", Algorithm(), rewards=())
    assert ask(lab(tmp_path), "group?run=run&step=3&group=0")["stages"]["rewards"]["weights"] == {"exact": None}
    (tmp_path / "run" / "rewards.json").write_text('{"exact": 2.0}')
    assert ask(lab(tmp_path), "group?run=run&step=3&group=0")["stages"]["rewards"]["weights"] == {"exact": 2.0}


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
    found = ask(lab(tmp_path), "group?run=run&step=3&group=0")["stages"]["statistics"]
    assert found["kind"] == kind
    assert said in found["sentence"]


def test_a_kl_in_the_reward_is_taken_off_before_rewards_are_compared(tmp_path: Path) -> None:
    made(tmp_path / "run", NAMED["rloo"])
    stages = ask(lab(tmp_path), "group?run=run&step=3&group=0")["stages"]
    # k1 from the sampler's log-probs: references are 3 times as probable, then 1 and 2.2 times.
    taken = [-0.03 * math.log(3), -0.03 * math.log(2.2)]
    assert [one["penalty"] for one in stages["rewards"]["completions"]] == pytest.approx(taken, rel=1e-4)
    assert stages["statistics"]["compared"]["rewards"] == pytest.approx([2 - taken[0], -taken[1]])
    assert stages["loss"]["kl"] == 0
    # Nothing is clipped, so nothing is said of clipping.
    assert stages["ratio"]["bounds"] == []
    assert {one["clip_low_fraction"] for one in stages["ratio"]["completions"]} == {None}


# What is refused


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("group?run=run&step=4&group=0", "step 4, group 0: expected a recorded group"),
        ("group?run=run&step=3&group=1", "step 3, group 1: expected a recorded group"),
        ("group?run=elsewhere&step=3&group=0", "expected a run below"),
        ("group?run=..&step=3&group=0", "expected a run below"),
        ("group?run=run", "step: expected a value"),
        ("group?run=run&step=-1", "step: expected a whole number from 1"),
        ("group?run=run&step=3&rewards=1,0", "expected either a run with step and group, or rewards"),
        ("group", "rewards: expected a value"),
        ("advantages?rewards=1", "rewards: expected 2 to 16"),
        (f"advantages?rewards={','.join(['1'] * 17)}", "rewards: expected 2 to 16"),
        ("advantages?rewards=1,inf", "rewards: expected a number"),
        ("advantages?rewards=1,1e7", "rewards: expected a number"),
        ("advantages?rewards=1,1_0", "rewards: expected a number"),
        ("advantages?rewards=1,٣", "rewards: expected a number"),
        ("advantages?rewards=1,NaN", "rewards: expected a number"),
        ("advantages?rewards=1,0&rewards=1,1", "expected each parameter once"),
        ("advantages?rewards=1,0&colour=red", "expected the parameters rewards, algorithms, got 'colour'"),
        ("advantages?rewards=1,0&algorithms=ppo", "algorithms: expected some of grpo"),
        ("advantages?rewards=1,0&algorithms=grpo,grpo", "algorithms: expected some of"),
        ("objective?clip_low=1.5", "clip_low: expected a number from 0 to 1"),
        ("objective?surrogate=soft", "surrogate: expected one of clip, cispo, plain, sapo, gmpo"),
        ("objective?surrogate=plain&dual_clip=2", "dual_clip: expected none with surrogate=plain"),
        ("kl?kind=k4", "got 'kind'"),
        ("pass_rate?group_size=65", "group_size: expected a whole number from 2 to 64"),
        ("pass_rate?group_size=8.0", "group_size: expected a whole number"),
        ("memory?model=large", "model: expected Llama-3.1-70B, Llama-3.1-8B"),
        ("memory?problems=0", "problems: expected a whole number from 1"),
        ("memory?lora_rank=0", "lora_rank: expected a whole number from 1"),
    ],
)
def test_a_mistake_is_told_with_what_was_expected(tmp_path: Path, path: str, said: str) -> None:
    made(tmp_path / "run", Algorithm())
    answer = lab(tmp_path).get(f"/api/explain/{path}")
    assert answer.status_code == 400
    assert said in json.loads(answer.text)["error"]


def test_settings_of_another_version_are_refused(tmp_path: Path) -> None:
    made(tmp_path / "run", Algorithm())
    (tmp_path / "run" / "config.yaml").write_text("algorithm: {name: grpo, temperature: 3}\nrollout: {max_tokens: 4}\n")
    answer = lab(tmp_path).get("/api/explain/group?run=run&step=3&group=0")
    assert answer.status_code == 400
    assert "open the run with the version that made it" in answer.json()["error"]
