"""Whole runs are the same, to the bit, on any number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from grouprl import Trainer
from grouprl.algorithms.named import NAMED
from grouprl.rewards.functions import WeightedReward
from letter_rewards import letters
from small_runs import ROWS, assert_same_run, small_config

pytestmark = pytest.mark.usefixtures("no_page")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("algorithm", ["ppo", "dapo"])
def test_a_run_is_the_same_on_any_number_of_threads(tiny: Path, tmp_path: Path, algorithm: str) -> None:
    for count in (1, 3):
        config = small_config(
            tmp_path,
            name=str(count),
            steps=2,
            algorithm=NAMED[algorithm],
            model={"threads": count},
            rollout={"problems_per_step": 6, "group_size": 8, "max_tokens": 12},
            learner={"learning_rate": 0.01, "micro_batch_tokens": 150},
        )
        Trainer(tiny, ROWS, [WeightedReward("letters", letters)], config=config).train()
        assert torch.get_num_threads() == count
    assert_same_run(tmp_path / "1", tmp_path / "3", step=2)
