"""What is learned of a recorded run: its right completions, pairs that the verifier ranks, pairs of older runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from grouprl.models.load import load_tokenizer
from grouprl.supervised.preferences import load_preferences
from grouprl.supervised.recorded import right_completions
from grouprl.supervised.settings import PairsConfig, PreferencesConfig, SftConfig
from grouprl.supervised.sft import sft
from grouprl.types import UserError
from pairs import recorded_run

# Completion i of problem p is token 40 + p, i + 1 times; every second one ends. A reward of 1 is right, one of 1.5 is a
# learned reward's mistake.
STEPS = [[[1.0, 0.0, 1.0], [0.0, 0.0]], [[math.nan, 1.0], [1.5, 0.5, 1.0, 0.0]]]


def settings(run: Path, **given: Any) -> SftConfig:
    model = {"path": str(run.parent / "model"), "threads": 1}
    return SftConfig(name="again", runs_dir=str(run.parent), model=model, pairs={"run": str(run), **given})


def test_the_right_completions_are_learned_as_they_were_sampled(tiny: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tiny))
    run, end = recorded_run(tmp_path / "run", tiny, STEPS, tokenizer), tokenizer.eos_token_id
    right = {5: [[40], [40, 40, 40]], 7: [[42, 42, end]], 8: [[43, 43, 43]]}
    expected = [((5, 6, 7 + p - 5), tuple(ids)) for p, own in right.items() for ids in own]
    found = right_completions(PairsConfig(run=str(run)), tokenizer)
    assert [(one.prompt_ids, one.completions[0].token_ids) for one in found] == expected
    assert len(right_completions(PairsConfig(run=str(run), last_step=1), tokenizer)) == 2
    (tmp_path / "model").symlink_to(tiny)
    sft(settings(run))
    model, total, count = AutoModelForCausalLM.from_pretrained(tiny).eval(), 0.0, 0
    for prompt, ids in expected:
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        total, count = total + float(cross_entropy(logits, torch.tensor(ids), reduction="sum")), count + len(ids)
    (row,) = [json.loads(line) for line in (tmp_path / "again" / "metrics.jsonl").read_text().splitlines()]
    assert row["loss"] == pytest.approx(total / count, abs=1e-4)


def test_a_completion_that_was_written_twice_is_learned_once(tiny: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tiny))
    run = recorded_run(tmp_path / "run", tiny, [[[1.0, 0.0]], [[1.0, 0.0]]], tokenizer, again=True)
    (found,) = right_completions(PairsConfig(run=str(run)), tokenizer)
    assert found.completions[0].token_ids == (40,)


def test_a_run_without_right_completions_is_refused(tiny: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tiny))
    run = recorded_run(tmp_path / "run", tiny, [[[0.5, 0.0]]], tokenizer)
    with pytest.raises(
        UserError, match=r"run: expected completions that .* found none in 1 groups: choose other steps"
    ):
        right_completions(PairsConfig(run=str(run)), tokenizer)


def test_the_verifier_ranks_where_the_reward_is_not_to_be_trusted(tiny: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tiny))
    run = recorded_run(tmp_path / "run", tiny, [[[1.0, 0.5, 1.5, 1.0], [math.nan, 1.0, 1.5]]], tokenizer)

    def pairs(**given: Any) -> list[tuple[str, int, int]]:
        found = load_preferences(PreferencesConfig(run=str(run), per_group=4, **given), tokenizer)
        return [(one.group.problem.id, *(own.index for own in one.group.completions)) for one in found]

    assert pairs() == [("p0", 2, 1), ("p1", 2, 1)]  # 1.0 and 1.0 of p0 are no pair
    assert pairs(rank="correct") == [("p0", 0, 2), ("p0", 3, 1), ("p1", 1, 2)]


@pytest.mark.parametrize(("share", "of_older"), [(0.1, ["p0"]), (0.5, ["p0", "p1", "p2", "p3"]), (0.18, ["p0", "p2"])])
def test_pairs_of_older_runs_have_their_share_of_all(
    tiny: Path, tmp_path: Path, share: float, of_older: list[str]
) -> None:
    tokenizer = load_tokenizer(str(tiny))
    old = recorded_run(tmp_path / "old", tiny, [[[1.0, 0.0]] * 4], tokenizer)
    new = recorded_run(tmp_path / "new", tiny, [[[1.0, 0.0]]] * 2 + [[[1.0, 0.0]] * 7], tokenizer)
    given = PreferencesConfig(run=str(new), older=str(old), older_share=share)
    found = [pair.group.problem.id for pair in load_preferences(given, tokenizer)]
    assert found == [*(f"p{n}" for n in range(9)), *of_older]
    later = given.model_copy(update={"first_step": 3})  # of the new run alone
    assert len(load_preferences(later, tokenizer)) == 7 + min(4, round(7 * share / (1 - share)))
