"""Runs with moments in 8 bits: killed and resumed, with a critic, and what does not go with them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from grouprl import Trainer, UserError
from grouprl.algorithms.named import NAMED
from grouprl.config.checks import check_sections
from grouprl.config.run import RunConfig
from grouprl.record.layout import RunDirectory
from grouprl.rewards.functions import WeightedReward
from letter_rewards import letters
from small_runs import ROWS, assert_same_run, small_config

pytestmark = pytest.mark.usefixtures("no_page")


def train(tiny: Path, runs: Path, name: str, *, threads: int = 1, resume: bool = False, algorithm: str) -> Path:
    config = small_config(
        runs,
        name,
        model={"threads": threads},
        steps=4,
        checkpoint={"every": 2, "keep": 9},
        evaluation={"problems": 2, "samples": 0},
        algorithm=NAMED[algorithm],
        learner={"learning_rate": 1e-3, "micro_batch_tokens": 60, "moments": "8bit"},
    )
    return Trainer(tiny, ROWS, [WeightedReward("letters", letters)], config=config).train(resume=resume).directory


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_resumed_run_is_the_same_to_the_bit(tiny: Path, tmp_path: Path, algorithm: str) -> None:
    whole = train(tiny, tmp_path, "whole", algorithm=algorithm)
    again = tmp_path / "again"
    shutil.copytree(whole, again)  # as a kill left it after step 2
    shutil.rmtree(RunDirectory(again).checkpoint(4).path)
    (again / "summary.json").unlink()
    train(tiny, tmp_path, "again", threads=2, resume=True, algorithm=algorithm)
    assert_same_run(whole, again, step=4)


@pytest.mark.parametrize(
    ("model", "other", "words"),
    [
        ({"weights": "bfloat16", "dtype": "bfloat16"}, {}, r"learner\.moments: expected bfloat16 with model\.weights"),
        ({}, {"distributed": {"shard": True}}, r"learner\.moments: expected its default with distributed\.shard"),
    ],
)
def test_what_does_not_go_with_them_is_refused(model: dict[str, str], other: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_sections(RunConfig(model=model, learner={"moments": "8bit"}, **other))  # type: ignore[arg-type]


def test_an_adapter_of_bfloat16_weights_may_have_them() -> None:
    model = {"weights": "bfloat16", "dtype": "bfloat16", "lora": {}}
    check_sections(RunConfig(model=model, learner={"moments": "8bit"}))  # type: ignore[arg-type]
