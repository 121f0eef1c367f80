"""Every algorithm of the family, run whole: by name, on record, and after a break bit for bit as without one."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from grouprl import Algorithm, Run, Trainer, UserError, WeightedReward
from grouprl.algorithms.named import NAMED
from grouprl.record.read import read_rollouts
from letter_rewards import letters, rarely, words
from small_runs import LETTERS, ROWS, as_killed, assert_same_run, metrics, rollouts, small_config
from variants import variant

FILE = "model.safetensors"
WORDS = WeightedReward("words", words, 0.5, per_step=True)


def rewards_for(algorithm: Algorithm) -> list[WeightedReward]:
    return [LETTERS, WORDS] if algorithm.advantage.credit == "step" else [LETTERS]


def run(tiny: Path, runs: Path, algorithm: Algorithm, *, resume: bool = False, **changes: Any) -> Run:
    config = small_config(runs, **{"evaluation": {"problems": 1, "samples": 1}, **changes})
    return Trainer(tiny, ROWS, rewards_for(algorithm), algorithm=algorithm, config=config).train(resume=resume)


@pytest.fixture(scope="module")
def finished(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """One step of a named algorithm, run once."""
    runs = tmp_path_factory.mktemp("family")
    return cache(lambda name: run(tiny, runs / name, NAMED[name], steps=1))


@pytest.mark.parametrize("name", NAMED)
def test_every_name_trains_and_leaves_its_figures(name: str, tiny: Path, finished: Callable[[str], Run]) -> None:
    directory = finished(name).directory
    (row,) = metrics(directory)
    assert math.isfinite(row["grad_norm"] + row["loss"])
    assert row["groups/kept"] <= row["groups/sampled"]
    assert ("kl" in row) == (NAMED[name].kl is not None)
    assert ("value_loss" in row) == (NAMED[name].critic is not None)
    assert not same_weights(tiny, directory, step=1)


def same_weights(start: Path, directory: Path, step: int) -> bool:
    left, right = map(load_file, (start / FILE, directory / "checkpoints" / f"step-{step:06d}" / FILE))
    return all(left[key].equal(right[key]) for key in right)


@pytest.mark.parametrize(
    ("name", "networks", "files"),
    [
        ("dr_grpo", set(), set()),
        ("grpo", {"reference"}, set()),
        ("ppo", {"reference", "critic", "critic_optimizer"}, {"critic", "critic_optimizer"}),
        ("grpo_iterative", {"reference"}, {"reference"}),
    ],
)
def test_networks_are_counted_and_what_moved_is_saved(
    name: str, networks: set[str], files: set[str], finished: Callable[[str], Run]
) -> None:
    ended = finished(name)
    sizes = ended.summary["networks_mib"]
    assert sizes.keys() == {"policy", "optimizer"} | networks
    assert sizes.get("reference", sizes["policy"]) == sizes["policy"]
    assert sizes["optimizer"] == pytest.approx(2 * sizes["policy"], rel=0.01)
    saved = {path.name for path in (ended.directory / "checkpoints" / "step-000001" / "trainer").iterdir()}
    assert saved == {"state.json", *(f"{file}.safetensors" for file in files | {"optimizer"})}


STATEFUL = {
    "a critic that warms up": variant("ppo", passes=2, minibatches=2, critic_warmup=2),
    "a shared critic": variant("ppo", critic="shared"),
    "a reference that moves, and a steered KL": variant(refresh_reference=2, kl_coef=0.5, kl_target=1e-3, kl_rate=0.5),
    "refilled": variant("dapo", minibatches=2),
    "corrected": variant(correction="truncate", entropy_share=0.5, entropy_coef=0.01),
}


@pytest.mark.parametrize("name", STATEFUL)
def test_a_run_with_a_break_is_bit_for_bit_the_run_without(name: str, tiny: Path, tmp_path: Path) -> None:
    algorithm = STATEFUL[name]
    changes: dict[str, Any] = {"steps": 3, "checkpoint": {"every": 1, "keep": 9}}
    whole = run(tiny, tmp_path / "whole", algorithm, **changes).directory
    (tmp_path / "broken").mkdir()
    broken = as_killed(whole, tmp_path / "broken" / "run", after=2)
    run(tiny, tmp_path / "broken", algorithm, resume=True, **changes)
    assert_same_run(whole, broken, step=3)
    ends = [directory / "checkpoints" / "step-000003" / "trainer" for directory in (whole, broken)]
    ours, theirs = ({path.name: load_file(path) for path in end.glob("*.safetensors")} for end in ends)
    assert ours.keys() == theirs.keys()
    for file, tensors in ours.items():
        assert [key for key in tensors if not tensors[key].equal(theirs[file][key])] == []


def test_the_reference_is_refreshed_after_every_second_step(tiny: Path, tmp_path: Path) -> None:
    rows = metrics(run(tiny, tmp_path, variant(refresh_reference=2, kl_coef=0.5)).directory)
    # Before the update of steps 1, 3 and 5 policy and reference are one.
    assert [row["kl"] > 1e-6 for row in rows] == [False, True] * 3


def test_the_critic_has_a_learning_rate_of_its_own(tiny: Path, tmp_path: Path) -> None:
    learner = {"learning_rate": 0.01, "critic_learning_rate": 0.0}
    directory = run(tiny, tmp_path, NAMED["ppo"], steps=2, learner=learner).directory
    critic = load_file(directory / "checkpoints" / "step-000002" / "trainer" / "critic.safetensors")
    assert not critic["head.weight"].any()


def test_a_steered_coefficient_reaches_the_reward(tiny: Path, tmp_path: Path) -> None:
    """Step 1 is the same with and without; in step 2 the same completions lose more for the same KL."""
    fixed = variant("rloo", kl_coef=0.5)
    steered = variant(fixed, kl_target=1e-9, kl_rate=1.0)
    query = "SELECT step, text, reward, advantage FROM completions ORDER BY 1, group_index, completion_index"
    left, right = (
        rollouts(run(tiny, tmp_path / name, algorithm, steps=2).directory, query)
        for name, algorithm in (("fixed", fixed), ("steered", steered))
    )
    assert [row for row in left if row[0] == 1] == [row for row in right if row[0] == 1]
    assert [row[:3] for row in left] == [row[:3] for row in right]
    assert left != right


# Process supervision


def test_steps_are_on_record_and_differ_within_a_completion(finished: Callable[[str], Run]) -> None:
    groups = read_rollouts(finished("grpo_process").directory, 1)
    outcomes = [outcome for group in groups for outcome in group.outcomes]
    assert any(len(outcome.steps) > 1 for outcome in outcomes)
    assert any(len(set(row)) > 1 for group in groups for row in group.token_advantages)
    assert any("words" in outcome.components for outcome in outcomes)


@pytest.mark.parametrize(
    ("algorithm", "rewards", "told"),
    [
        (NAMED["grpo_process"], [LETTERS], "algorithm.credit: 'step' needs process rewards, got"),
        (NAMED["grpo"], [LETTERS, WORDS], "rewards: expected no process reward with algorithm.credit='completion'"),
        (NAMED["grpo_process"], [WORDS], "rewards: expected a reward for whole completions besides the process reward"),
        (NAMED["grpo"], [WeightedReward("soft_overlong", letters)], "expected names other than 'soft_overlong'"),
    ],
)
def test_rewards_and_credit_must_fit(
    algorithm: Algorithm, rewards: list[WeightedReward], told: str, tiny: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=told):
        Trainer(tiny, ROWS, rewards, algorithm=algorithm, config=small_config(tmp_path)).train()
    assert not (tmp_path / "run").exists()


# Dynamic sampling


def dynamic(tiny: Path, runs: Path, reward: Any, *, max_tokens: int = 8, **changes: Any) -> Path:
    algorithm = variant("dapo", **{"overlong_buffer": 0.0, **changes})
    config = small_config(runs, steps=3, rollout={"problems_per_step": 4, "group_size": 2, "max_tokens": max_tokens})
    trainer = Trainer(tiny, ROWS, [WeightedReward("rarely", reward)], algorithm=algorithm, config=config)
    return trainer.train().directory


def test_dropped_groups_are_replaced_until_the_batch_is_full(tiny: Path, tmp_path: Path) -> None:
    query = "SELECT step, COUNT(*), SUM(has_signal) FROM groups GROUP BY step"
    without = rollouts(dynamic(tiny, tmp_path / "a", rarely, refills=0), query)
    with_refills = dynamic(tiny, tmp_path / "b", rarely, refills=50)
    assert [sampled for _, sampled, _ in without] == [4, 4, 4]
    assert any(signal < 4 for *_, signal in without)
    assert [signal for *_, signal in rollouts(with_refills, query)] == [4, 4, 4]
    assert [(row["groups/sampled"], row["groups/kept"]) for row in metrics(with_refills)] == [
        (sampled, signal) for _, sampled, signal in rollouts(with_refills, query)
    ]
    # what was dropped is on record, and moved nothing
    idle = "FROM completions JOIN groups USING (step, group_index) WHERE NOT has_signal"
    ((dropped, moved),) = rollouts(with_refills, f"SELECT COUNT(*), SUM(advantage != 0) {idle}")
    assert dropped > 0
    assert moved == 0


def same(prompts: Any, completions: Any, completion_ids: Any, **columns: Any) -> list[float]:
    return [0.5] * len(completions)


def test_a_step_whose_groups_are_all_dropped_changes_nothing(tiny: Path, tmp_path: Path) -> None:
    """They are dropped for their rewards, whatever a penalty takes for their lengths."""
    directory = dynamic(tiny, tmp_path, same, max_tokens=30, refills=2, overlong_buffer=1.0)
    assert [(row["groups/sampled"], row["groups/kept"]) for row in metrics(directory)] == [(12, 0)] * 3
    assert len({reward for (reward,) in rollouts(directory, "SELECT reward FROM completions")}) > 1
    assert same_weights(tiny, directory, step=3)


def test_a_prompt_that_only_a_refill_would_meet_is_refused_before_the_run(tiny: Path, tmp_path: Path) -> None:
    rows = [*ROWS, *({"prompt": f"{number} " * 400} for number in range(100, 110))]
    for seed in range(2):  # the one problem of the step is a short one in most of them
        config = small_config(tmp_path, steps=1, seed=seed, rollout={"problems_per_step": 1, "max_tokens": 8})
        algorithm = variant("dapo", refills=100)
        with pytest.raises(UserError, match="expected a prompt of 1 to 248 tokens"):
            Trainer(tiny, rows, [LETTERS], algorithm=algorithm, config=config).train()
    assert not (tmp_path / "run").exists()


# Length


def test_the_penalty_takes_part_when_rewards_are_normalized_one_by_one(tiny: Path, tmp_path: Path) -> None:
    algorithm = variant(kl_coef=0.0, overlong_buffer=1.0, reward_mix="normalise_then_sum")
    config = small_config(tmp_path, steps=2, rollout={"problems_per_step": 8, "group_size": 8, "max_tokens": 16})
    directory = Trainer(tiny, ROWS, [same], algorithm=algorithm, config=config).train().directory
    assert any(row["grad_norm"] > 0 for row in metrics(directory))
