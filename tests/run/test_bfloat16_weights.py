"""Runs that keep the policy in bfloat16: killed and resumed, on any number of threads, and saved for others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from grouprl import Trainer, UserError
from grouprl.algorithms.named import NAMED
from grouprl.config.run import RunConfig
from grouprl.record.layout import RunDirectory
from grouprl.rewards.functions import WeightedReward
from letter_rewards import letters
from small_runs import ROWS, assert_same_run, assert_same_weights, small_config

pytestmark = pytest.mark.usefixtures("no_page")
MODEL = {"weights": "bfloat16", "dtype": "bfloat16"}


def config_of(runs: Path, name: str, threads: int = 1, **changes: object) -> RunConfig:
    usual = {"steps": 4, "checkpoint": {"every": 2, "keep": 9}, "evaluation": {"problems": 2, "samples": 0}}
    return small_config(runs, name, model={**MODEL, "threads": threads}, **usual | changes)  # type: ignore[arg-type]


def train(tiny: Path, config: RunConfig, *, resume: bool = False) -> Path:
    return Trainer(tiny, ROWS, [WeightedReward("letters", letters)], config=config).train(resume=resume).directory


@pytest.mark.parametrize(("algorithm", "moments"), [("grpo", "bfloat16"), ("ppo", "float32")])
def test_a_resumed_run_is_the_same_to_the_bit(tiny: Path, tmp_path: Path, algorithm: str, moments: str) -> None:
    learner = {"learning_rate": 1e-3, "micro_batch_tokens": 60, "moments": moments}
    chosen = {"algorithm": NAMED[algorithm], "learner": learner}
    whole = train(tiny, config_of(tmp_path, "whole", **chosen))
    again = tmp_path / "again"
    shutil.copytree(whole, again)  # as a kill left it after step 2
    shutil.rmtree(RunDirectory(again).checkpoint(4).path)
    (again / "summary.json").unlink()
    train(tiny, config_of(tmp_path, "again", threads=2, **chosen), resume=True)
    assert_same_run(whole, again, step=4)


def test_a_checkpoint_is_in_bfloat16_and_others_load_it(tiny: Path, tmp_path: Path) -> None:
    run = train(tiny, config_of(tmp_path, "run", steps=2))
    saved = load_file(RunDirectory(run).checkpoint(2).path / "model.safetensors")
    assert {(tensor.ndim > 1, tensor.dtype) for tensor in saved.values()} == {
        (True, torch.bfloat16),
        (False, torch.float32),
    }
    theirs = AutoModelForCausalLM.from_pretrained(RunDirectory(run).checkpoint(2).path)
    assert theirs.config.dtype == torch.bfloat16
    embedding = theirs.get_input_embeddings().weight.detach()
    assert torch.equal(embedding.bfloat16(), saved["model.embed_tokens.weight"])


def test_a_reference_on_the_cpu_gives_the_same_run(tiny: Path, tmp_path: Path) -> None:
    """As far as a machine without a GPU can tell: the reference is where it was asked for already."""
    for place in ("device", "cpu"):
        train(tiny, small_config(tmp_path, place, steps=2, model={"reference": place}))
    assert_same_weights(
        RunDirectory(tmp_path / "device").checkpoint(2).path, RunDirectory(tmp_path / "cpu").checkpoint(2).path
    )


def test_a_float32_computation_is_refused(tiny: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path, model={"weights": "bfloat16"})
    with pytest.raises(UserError, match=r"set model\.dtype=bfloat16"):
        train(tiny, config)
