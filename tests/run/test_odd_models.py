"""Runs from checkpoints that are not as they should be: a sentence before the first step, or the right numbers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from grouprl import Trainer, UserError
from grouprl.models.load import load_tokenizer
from grouprl.models.save import save_model
from grouprl.record.layout import RunDirectory
from grouprl.rewards.functions import WeightedReward
from letter_rewards import letters
from small_runs import ROWS, assert_same_weights, metrics, rollouts, small_config, tree
from tiny import tiny_model_folder

pytestmark = pytest.mark.usefixtures("no_page")
LETTERS = WeightedReward("letters", letters)


def train(model: Path, runs: Path, *, name: str = "run", steps: int = 2, resume: bool = False) -> Path:
    config = small_config(runs, name, steps=steps, learner={"learning_rate": 1e-3})
    return Trainer(model, ROWS, [LETTERS], config=config).train(resume=resume).directory


def test_a_padding_that_is_the_end_token_changes_no_gradient(tiny: Path, tmp_path: Path) -> None:
    same = tmp_path / "same"
    tokenizer = load_tokenizer(str(tiny))
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    tokenizer.pad_token = tokenizer.eos_token
    save_model(AutoModelForCausalLM.from_pretrained(tiny), tokenizer, same)
    assert load_tokenizer(str(same)).pad_token_id == tokenizer.eos_token_id
    runs = [train(model, tmp_path, name=name) for model, name in ((tiny, "other"), (same, "end"))]
    assert_same_weights(*(RunDirectory(run).checkpoint(2).path for run in runs))
    ids = "SELECT token_ids FROM completions ORDER BY step, rowid"
    assert rollouts(runs[0], ids) == rollouts(runs[1], ids)


def test_rows_of_the_model_without_a_token_are_learned_like_others(tiny: Path, tmp_path: Path) -> None:
    """Qwen2.5 has 151,936 rows for 151,665 tokens."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny), load_tokenizer(str(tiny))
    model.resize_token_embeddings(len(tokenizer) + 40, mean_resizing=False)
    with torch.no_grad():
        model.get_output_embeddings().weight[len(tokenizer) :] = model.get_output_embeddings().weight[20:60]
    save_model(model, tokenizer, tmp_path / "larger")
    run = train(tmp_path / "larger", tmp_path)
    sampled = [token for (ids,) in rollouts(run, "SELECT token_ids FROM completions") for token in ids_of(ids)]
    assert max(sampled) >= len(tokenizer)
    assert max(row["sampler_learner_gap"] for row in metrics(run)) < 1e-4


def ids_of(blob: bytes) -> list[int]:
    return memoryview(blob).cast("i").tolist()


def test_another_architecture_under_a_resumed_name_is_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model_folder(tmp_path), folder)
    run = train(folder, tmp_path / "runs")
    before = tree(run)
    shutil.rmtree(folder)
    shutil.copytree(tiny_model_folder(tmp_path, kind="llama"), folder)
    with pytest.raises(UserError, match=r"resume: expected the model that the run started.* restore the model"):
        train(folder, tmp_path / "runs", steps=4, resume=True)
    assert tree(run) == before


def test_a_context_that_is_too_short_is_one_sentence(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "short"
    shutil.copytree(tiny, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 12}))
    with pytest.raises(UserError, match=r"expected a prompt of 1 to 4 tokens .* lower rollout\.max_tokens"):
        train(folder, tmp_path / "runs")
    assert not list((tmp_path / "runs").glob("*/metrics.jsonl"))
