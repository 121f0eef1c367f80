"""Samplers that are K steps ahead: which weights sampled, and runs that are killed or extended."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from grouprl.config.run import RunConfig
from grouprl.models.load import load_model, load_tokenizer
from grouprl.record.read import read_rollouts
from grouprl.rollout import NativeEngine, Request
from grouprl.types import Sampling
from small_runs import as_killed, assert_same_run, metrics, rollouts, small_config, small_run
from variants import variant

VERSIONS = "SELECT DISTINCT step, weights_version FROM completions ORDER BY 1"
CORRECTED = {
    "truncate": variant("grpo", correction="truncate", kl_coef=0.0),
    "prime_rl": variant("prime_rl", minibatches=1, drop_equal=False),
}


def config_of(runs: Path, lead: int, steps: int = 6) -> RunConfig:
    cluster = {"backend": "ray", "samplers": 2, "max_staleness": lead}
    changes = {"checkpoint": {"every": 1, "keep": 9}, "learner": {"learning_rate": 0.002}}
    return small_config(runs, steps=steps, cluster=cluster, **changes)


@pytest.mark.usefixtures("thread_ray")
@pytest.mark.parametrize(("lead", "correction"), [(1, "truncate"), (2, "prime_rl"), (4, "truncate")])
def test_groups_are_of_the_weights_of_k_steps_before_and_a_killed_run_is_resumed_exactly(
    tiny: Path, tmp_path: Path, lead: int, correction: str
):
    algorithm = CORRECTED[correction]
    whole = small_run(tiny, config_of(tmp_path / "whole", lead), algorithm).directory
    assert rollouts(whole, VERSIONS) == [(step, max(0, step - 1 - lead)) for step in range(1, 7)]
    assert [row["staleness"] for row in metrics(whole)] == [min(step, lead) for step in range(6)]

    # An engine of this process with the weights of K steps before writes the last step's groups.
    policy = load_model(str(whole / "checkpoints" / f"step-{5 - lead:06d}"), device=torch.device("cpu"))
    recorded = [scored.group for scored in read_rollouts(whole, step=6)]
    requests = [Request(group.problem, group.prompt_ids, 4, "epoch 0") for group in recorded]
    engine = NativeEngine(policy, load_tokenizer(str(tiny)), seed=0, max_rows=256)
    for group, expected in zip(recorded, engine.generate(requests, Sampling(max_tokens=8)), strict=True):
        assert [one.token_ids for one in group.completions] == [one.token_ids for one in expected.completions]

    for after in (1, 4):
        copy = as_killed(whole, tmp_path / f"after-{after}" / "run", after=after)
        small_run(tiny, config_of(copy.parent, lead), algorithm, resume=True)
        assert_same_run(whole, copy)


@pytest.mark.usefixtures("thread_ray")
def test_a_run_that_goes_on_for_longer_samples_the_new_steps_from_the_weights_of_now(tiny: Path, tmp_path: Path):
    algorithm = CORRECTED["truncate"]
    whole = small_run(tiny, config_of(tmp_path, 3, steps=4), algorithm).directory
    assert rollouts(whole, VERSIONS) == [(1, 0), (2, 0), (3, 0), (4, 0)]
    copy = as_killed(whole, tmp_path / "longer" / "run", after=3)  # with the groups of step 4 alone
    small_run(tiny, config_of(copy.parent, 3, steps=6), algorithm, resume=True)
    assert rollouts(copy, VERSIONS) == [(1, 0), (2, 0), (3, 0), (4, 0), (5, 3), (6, 3)]
