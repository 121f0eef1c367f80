"""Runs whose numbers break: no update, no saved weights, one step back, and an end that says where and why."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from grouprl import Run, UserError
from grouprl.learner import TokenGrid
from grouprl.learner.terms import PolicyTerm
from grouprl.models.load import load_model, load_tokenizer
from grouprl.models.save import save_model
from small_runs import assert_same_weights, metrics, small_config, small_run

Loss = Callable[[PolicyTerm, TokenGrid, float], tuple[Tensor, dict[str, Tensor]]]
EVERY = {"every": 1, "keep": 99}


def train(tiny: Path, runs: Path, *, resume: bool = False, name: str = "grpo", **changes: Any) -> Run:
    config = small_config(runs, **{"checkpoint": EVERY, "evaluation": {"problems": 1, "samples": 0}, **changes})
    return small_run(tiny, config, name, resume=resume)


def rows(runs: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (runs / "run" / name).read_text().splitlines()]


def broken_in(steps: set[int], monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """The loss is not finite in these steps, counted by calls: a step of the tests has one pack and one update."""
    original: Loss = PolicyTerm.loss
    calls = iter(range(1, 1000))

    def loss(term: PolicyTerm, tokens: TokenGrid, kl_coef: float) -> tuple[Tensor, dict[str, Tensor]]:
        total, stats = original(term, tokens, kl_coef)
        return (total * value if next(calls) in steps else total), stats

    monkeypatch.setattr(PolicyTerm, "loss", loss)


def test_a_loss_that_is_not_finite_makes_no_update(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_in({3}, monkeypatch, math.inf)
    directory = train(tiny, tmp_path, steps=5, learner={"learning_rate": 0.01, "weight_decay": 0.1}).directory
    assert_same_weights(*(directory / "checkpoints" / f"step-00000{step}" for step in (2, 3)))
    states = [
        json.loads((directory / f"checkpoints/step-00000{n}/trainer/state.json").read_text()) for n in range(1, 6)
    ]
    assert [state["updates"] for state in states] == [1, 2, 2, 3, 4]
    assert [row.get("skipped_updates") for row in metrics(directory)] == [None, None, 1, None, None]
    found = [row for row in rows(tmp_path, "warnings.jsonl") if row["kind"] == "not_finite"]
    assert [row["step"] for row in found] == [3]
    assert "Step 3: not finite: loss" in found[0]["sentence"]
    assert "learner.learning_rate" in found[0]["setting"]


def test_three_steps_in_a_row_end_the_run(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_in({2, 4, 5, 6}, monkeypatch, math.nan)
    with pytest.raises(UserError, match=r"Step 6: not finite: loss.*learning rate.*rollouts\.sqlite"):
        train(tiny, tmp_path, steps=9)
    assert len(metrics(tmp_path / "run")) == 6


def test_weights_that_are_not_finite_are_never_saved(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Step 1: its update put NaN or infinity into .* went back .* so it stops"):
        train(tiny, tmp_path, steps=4, learner={"learning_rate": 3e38})
    assert not list((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert [row["kind"] for row in rows(tmp_path, "warnings.jsonl")] == ["went_back", "explosion"]
    model = load_model(str(tiny), device=torch.device("cpu"))
    with torch.no_grad():
        model.model.norm.weight[3] = math.inf
    with pytest.raises(UserError, match=r"expected finite weights to save, got NaN or infinity in model\.norm\.weight"):
        save_model(model, load_tokenizer(str(tiny)), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_an_explosion_goes_back_once_and_then_ends_the_run(tiny: Path, tmp_path: Path) -> None:
    """A learning rate 1,000 times too high, after a warm-up that keeps the first steps sane."""
    with pytest.raises(UserError, match=r"Step \d+: the KL .* already went back to a checkpoint once, so it stops"):
        train(tiny, tmp_path, steps=12, learner={"learning_rate": 10.0, "warmup_steps": 3})
    kinds = [row["kind"] for row in rows(tmp_path, "warnings.jsonl")]
    assert kinds.count("went_back") == 1
    assert kinds.count("explosion") == 1
    saved = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert all(tensor.isfinite().all() for path in saved for tensor in load_file(path / "model.safetensors").values())
    with pytest.raises(UserError, match="so it stops"):
        train(tiny, tmp_path, steps=12, learner={"learning_rate": 10.0, "warmup_steps": 3}, resume=True)


def test_a_run_that_goes_back_is_the_run_that_was_never_broken(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One gradient of step 4 is a million times too large, once: the steps made again are those of a sound run."""
    train(tiny, tmp_path / "sound", steps=6)
    original: Loss = PolicyTerm.loss
    calls = iter(range(1, 1000))

    def loss(term: PolicyTerm, tokens: TokenGrid, kl_coef: float) -> tuple[Tensor, dict[str, Tensor]]:
        total, stats = original(term, tokens, kl_coef)
        return (total * 1e6 if next(calls) == 4 else total), stats

    monkeypatch.setattr(PolicyTerm, "loss", loss)
    assert train(tiny, tmp_path / "broken", steps=6).finished
    assert metrics(tmp_path / "broken" / "run") == metrics(tmp_path / "sound" / "run")
    ends = [tmp_path / name / "run" / "checkpoints" / "step-000006" for name in ("sound", "broken")]
    assert_same_weights(*ends)
    kinds = [row["kind"] for row in rows(tmp_path / "broken", "warnings.jsonl")]
    assert (kinds[0], kinds.count("explosion")) == ("went_back", 0)
