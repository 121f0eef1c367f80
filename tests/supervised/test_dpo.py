"""Direct preference optimization against plain transformers on single rows: log-probs, gradient, metrics, the model."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from grouprl.models.load import frozen_copy, load_model, load_tokenizer
from grouprl.supervised.preference_learning import dpo, dpo_metrics
from grouprl.supervised.preferences import load_preferences, split_preferences
from grouprl.supervised.settings import DpoConfig
from grouprl.supervised.training import SupervisedLoss
from grouprl.types import Group, UserError
from pairs import ROWS, recorded_run
from small_runs import grouprl, tree, write_rows

CPU = torch.device("cpu")


def config(tmp_path: Path, tiny: Path, **changes: Any) -> DpoConfig:
    data = tmp_path / "pairs.jsonl"
    if not data.exists():
        write_rows(data, ROWS)
    given = {"runs_dir": str(tmp_path / "runs"), "model": {"path": str(tiny), "threads": 1}, "batch_pairs": 4}
    return DpoConfig(**{"preferences": {"path": str(data)}, **given, **changes})


def groups_of(settings: DpoConfig) -> list[Group]:
    tokenizer = load_tokenizer(settings.model.path)
    return [pair.group for pair in load_preferences(settings.preferences, tokenizer)]


def plain_logprob(model: Any, group: Group, index: int) -> torch.Tensor:
    """Log-prob of a completion on a row of its own, by transformers' own forward pass."""
    prompt, own = list(group.prompt_ids), list(group.completions[index].token_ids)
    logits = model(input_ids=torch.tensor([prompt + own])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.double(), -1)[torch.arange(len(own)), own].sum()


def plain_margins(model: Any, start: Any, groups: Sequence[Group], beta: float) -> torch.Tensor:
    """beta times how much more the model than the start prefers each chosen completion."""

    def preference(policy: Any) -> torch.Tensor:
        return torch.stack([plain_logprob(policy, group, 0) - plain_logprob(policy, group, 1) for group in groups])

    with torch.no_grad():
        before = preference(start)
    return beta * (preference(model) - before)


@pytest.mark.parametrize("micro_batch_tokens", [1, 60, 16384])
def test_the_gradient_is_that_of_single_rows(tmp_path: Path, tiny: Path, micro_batch_tokens: int) -> None:
    settings = config(tmp_path, tiny, beta=0.3, learner={"micro_batch_tokens": micro_batch_tokens})
    groups = groups_of(settings)
    policy = load_model(str(tiny), device=CPU)
    metrics = SupervisedLoss(dpo_metrics(policy, frozen_copy(policy), beta=0.3), settings).metrics(
        groups, gradient=True
    )
    plain, start = (AutoModelForCausalLM.from_pretrained(tiny).eval() for _ in range(2))
    loss = torch.log1p(torch.exp(-plain_margins(plain, start, groups, 0.3))).mean()
    loss.backward()
    assert metrics["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert metrics["margin"] == 0
    assert loss.item() == pytest.approx(math.log(2), abs=1e-6)
    ours, theirs = dict(policy.named_parameters()), dict(plain.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(weight.grad, theirs[name].grad, atol=2e-4, rtol=1e-3)


def test_pairs_of_a_file_teach_a_policy_that_plain_transformers_loads(tmp_path: Path, tiny: Path) -> None:
    settings = config(tmp_path, tiny, beta=0.2, epochs=8, learner={"learning_rate": 1e-3}, eval_share=0.25)
    learned = dpo(settings)
    run = tmp_path / "runs" / "dpo"
    assert learned == run / "model"
    pairs = load_preferences(settings.preferences, load_tokenizer(str(tiny)))
    start, model = (AutoModelForCausalLM.from_pretrained(folder).eval() for folder in (tiny, learned))
    train, test = ([pair.group for pair in part] for part in split_preferences(pairs, 0.25))
    assert (len(train), len(test)) == (9, 3)
    assert plain_margins(model, start, train, 0.2).min().item() > 0

    summary = json.loads((run / "summary.json").read_text())
    margins = plain_margins(model, start, test, 0.2)
    assert summary["before"]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert summary["after"]["margin"] == pytest.approx(margins.mean().item(), abs=1e-4)
    assert summary["after"]["loss"] == pytest.approx(torch.log1p(torch.exp(-margins)).mean().item(), abs=1e-4)
    assert summary["after"]["accuracy"] == pytest.approx((margins > 0).double().mean().item())
    assert summary["after"]["accuracy_interval"][0] <= summary["after"]["accuracy"]
    likelier = [float(plain_logprob(model, group, 0) > plain_logprob(model, group, 1)) for group in test]
    assert summary["after"]["chosen_likelier"] == pytest.approx(sum(likelier) / 3)
    assert (summary["pairs"], summary["held_out_pairs"], summary["steps"]) == (9, 3, 24)


def test_a_recorded_run_is_learned_from_in_its_own_tokens(tmp_path: Path, tiny: Path) -> None:
    run = recorded_run(tmp_path / "source", tiny, [[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.2]]], load_tokenizer(str(tiny)))
    ended = grouprl(
        "dpo", "--model", tiny, f"preferences.run={run}", f"runs_dir={tmp_path / 'runs'}", "eval_share=0.3",
        "model.threads=1",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert f"Model: {tmp_path / 'runs' / 'dpo' / 'model'}" in ended.text
    assert "2 pairs" in ended.text
    rows = [json.loads(line) for line in (tmp_path / "runs" / "dpo" / "pairs.jsonl").read_text().splitlines()]
    assert [row["rewards"] for row in rows] == [[1.0, 0.0], [1.0, 0.0], [0.5, 0.2]]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"preferences": {"path": "no.jsonl"}}, "expected a data file at no.jsonl, found none: check the path"),
        ({"preferences": {"run": "no-run"}}, "no-run: expected a run directory"),
        ({"preferences": {"path": "long.jsonl"}}, r"long.jsonl:1: expected a prompt and completion of at most 256 to"),
        ({"model": {"path": "./no-model"}}, "model './no-model': expected a tokenizer"),
    ],
)
def test_nothing_is_written_before_everything_is_checked(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], sentence: str
) -> None:
    settings = config(tmp_path, tiny, **changes)
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "long.jsonl", [{"prompt": "a", "chosen": "b " * 300, "rejected": "c"}, *ROWS])
    before = tree(tmp_path)
    with pytest.raises(UserError, match=sentence):
        dpo(settings)
    assert tree(tmp_path) == before


def test_the_command_line_names_both_sources_and_shows_an_example(tmp_path: Path) -> None:
    ended = grouprl("dpo", f"runs_dir={tmp_path}")
    assert ended.code == 2
    assert "preferences.run=runs/NAME or preferences.path=FILE.jsonl" in ended.text
    help_text = grouprl("dpo", "--help").text
    assert "Example: grouprl dpo abacus_dpo preferences.run=runs/demo" in help_text


def test_every_update_is_recorded(tmp_path: Path, tiny: Path) -> None:
    dpo(config(tmp_path, tiny, epochs=2, learner={"learning_rate": 1e-3}))
    rows = [json.loads(line) for line in (tmp_path / "runs" / "dpo" / "metrics.jsonl").read_text().splitlines()]
    expected = {"step", "loss", "accuracy", "margin", "chosen_reward", "rejected_reward", "grad_norm", "learning_rate"}
    assert all(expected <= row.keys() for row in rows)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    for row in rows:
        assert row["margin"] == pytest.approx(row["chosen_reward"] - row["rejected_reward"], abs=1e-5)
        assert row["grad_norm"] > 0
    assert rows[-1]["learning_rate"] < rows[0]["learning_rate"] == 1e-3
    written = [json.loads(line) for line in (tmp_path / "runs" / "dpo" / "pairs.jsonl").read_text().splitlines()]
    assert written == ROWS
