"""Preference pairs from lines of a file and from groups of a run; what is learned of a recorded run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from grouprl.models.load import load_tokenizer
from grouprl.supervised.preferences import (
    Preference,
    load_preferences,
    refuse_longer,
    split_preferences,
    write_preferences,
)
from grouprl.supervised.recorded import right_completions
from grouprl.supervised.settings import DpoConfig, PairsConfig, PreferencesConfig, SftConfig
from grouprl.supervised.sft import sft
from grouprl.types import Completion, Group, Problem, StopReason, UserError
from pairs import ROWS, recorded_run
from small_runs import write_rows
from tiny import tiny_model_folder

NAN = math.nan


def of_file(path: Path, tokenizer: Any) -> tuple[Preference, ...]:
    return load_preferences(PreferencesConfig(path=str(path)), tokenizer)


def test_a_line_of_text_is_prompt_and_two_ended_completions(tiny: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tiny))
    pairs = of_file(write_rows(tmp_path / "pairs.jsonl", ROWS), tokenizer)
    assert len(pairs) == len(ROWS)
    for row, pair in zip(ROWS, pairs, strict=True):
        assert list(pair.group.prompt_ids) == tokenizer(row["prompt"])["input_ids"]
        for name, completion in zip(("chosen", "rejected"), pair.group.completions, strict=True):
            assert completion.token_ids[-1] == tokenizer.eos_token_id
            assert tokenizer.decode(completion.token_ids[:-1]) == row[name]
        assert pair.rewards is None
    assert pairs[6].group.problem.id == f"{tmp_path / 'pairs.jsonl'}:7"


def test_messages_go_through_the_template(tiny: Path, tmp_path: Path) -> None:
    row = {
        "prompt": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
        "chosen": [{"role": "assistant", "content": "Hello!"}],
        "rejected": [{"role": "assistant", "content": "No."}],
    }
    tokenizer = load_tokenizer(str(tiny))
    (pair,) = of_file(write_rows(tmp_path / "pairs.jsonl", [row]), tokenizer)
    assert tokenizer.decode(pair.group.prompt_ids) == "<|system|>Be kind.<|user|>Hi<|assistant|>"
    assert [tokenizer.decode(own.token_ids) for own in pair.group.completions] == ["Hello!<|end|>", "No.<|end|>"]


@settings(max_examples=12)  # each one writes a run
@given(
    rewards=st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, NAN]), min_size=2, max_size=6), per_group=st.integers(1, 4)
)
def test_pairs_of_a_group_are_the_widest_ones(
    tmp_path_factory: pytest.TempPathFactory, tiny: Path, rewards: list[float], per_group: int
) -> None:
    tokenizer = load_tokenizer(str(tiny))
    run = recorded_run(tmp_path_factory.mktemp("runs") / "run", tiny, [[rewards, [1.0, 0.0]]], tokenizer)
    pairs = load_preferences(PreferencesConfig(run=str(run), per_group=per_group), tokenizer)
    own = [pair for pair in pairs if pair.group.problem.id == "p0"]
    valid = [reward for reward in rewards if not math.isnan(reward)]
    gaps = []
    while len(valid) > 1 and max(valid) > min(valid):  # take the two ends away, again and again
        gaps.append((max(valid), min(valid)))
        valid.remove(max(valid))
        valid.remove(min(valid))
    assert [pair.rewards for pair in own] == gaps[:per_group]
    used = [completion.index for pair in own for completion in pair.group.completions]
    assert len(set(used)) == len(used)
    for pair in own:
        assert tuple(rewards[completion.index] for completion in pair.group.completions) == pair.rewards


def test_only_the_steps_that_are_asked_for(tiny: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tiny))
    run = recorded_run(tmp_path / "run", tiny, [[[1.0, 0.0]]] * 4, tokenizer)

    def steps(**bounds: int) -> list[str]:
        pairs = load_preferences(PreferencesConfig(run=str(run), **bounds), tokenizer)
        return [pair.group.problem.id for pair in pairs]

    assert steps() == ["p0", "p1", "p2", "p3"]
    assert steps(first_step=3) == ["p2", "p3"]
    assert steps(last_step=2) == ["p0", "p1"]
    assert steps(first_step=2, last_step=2) == ["p1"]


def test_recorded_token_ids_are_taken_as_they_are(tiny: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tiny))
    run = recorded_run(tmp_path / "run", tiny, [[[0.0, 1.0, 0.5]]], tokenizer)
    (pair,) = load_preferences(PreferencesConfig(run=str(run)), tokenizer)
    chosen, rejected = pair.group.completions
    # The prompt's ids are not those of its text, and the rejected completion was cut: it has no end token.
    assert pair.group.prompt_ids == (5, 6, 7)
    assert chosen.token_ids == (40, 40, tokenizer.eos_token_id)
    assert rejected.token_ids == (40,)
    assert rejected.stop_reason is StopReason.LENGTH


def test_the_pairs_of_a_run_are_encoded_for_a_model_with_another_vocabulary(tiny: Path, tmp_path: Path) -> None:
    recorder = load_tokenizer(str(tiny))
    run = recorded_run(tmp_path / "run", tiny, [[[0.0, 1.0, 0.5]]], recorder)
    other = load_tokenizer("abacus")
    assert other.get_vocab() != recorder.get_vocab()
    (pair,) = load_preferences(PreferencesConfig(run=str(run)), other)
    text = recorder.decode([40])
    assert other.decode(pair.group.prompt_ids) == "Say 0."
    assert other.decode(pair.group.completions[0].token_ids) == text * 2 + other.eos_token
    assert other.decode(pair.group.completions[1].token_ids) == text


def test_written_pairs_read_back_as_the_same_tokens(tiny: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tiny))
    chat = {
        "prompt": [{"role": "user", "content": "Hi"}],
        "chosen": [{"role": "assistant", "content": "Hello!"}],
        "rejected": [{"role": "assistant", "content": "No."}],
    }
    pairs = of_file(write_rows(tmp_path / "pairs.jsonl", [*ROWS, chat]), tokenizer)
    write_preferences(tmp_path / "again.jsonl", pairs)
    again = of_file(tmp_path / "again.jsonl", tokenizer)
    for left, right in zip(pairs, again, strict=True):
        assert left.group.prompt_ids == right.group.prompt_ids
        assert [c.token_ids for c in left.group.completions] == [c.token_ids for c in right.group.completions]
    rows = [json.loads(line) for line in (tmp_path / "again.jsonl").read_text().splitlines()]
    assert rows == [*ROWS, chat]


def test_rewards_are_written_where_they_are_known(tiny: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tiny))
    run = recorded_run(tmp_path / "run", tiny, [[[0.25, 1.0]]], tokenizer)
    write_preferences(tmp_path / "pairs.jsonl", load_preferences(PreferencesConfig(run=str(run)), tokenizer))
    row = json.loads((tmp_path / "pairs.jsonl").read_text())
    text = tokenizer.decode([40])
    assert row == {"prompt": "Say 0.", "chosen": text * 2, "rejected": text, "rewards": [1.0, 0.25]}


def test_no_prompt_is_both_learned_from_and_judged_by(tiny: Path, tmp_path: Path) -> None:
    other = [{**row, "rejected": f"{row['rejected']}!"} for row in ROWS]
    pairs = of_file(write_rows(tmp_path / "pairs.jsonl", [*ROWS, *other]), load_tokenizer(str(tiny)))
    train, test = split_preferences(pairs, 0.1)
    prompts = [{pair.group.problem.prompt_text for pair in part} for part in (train, test)]
    assert not prompts[0] & prompts[1]
    assert len(train) + len(test) == 24
    assert len(prompts[1]) == 2  # a tenth of 12, rounded up
    assert split_preferences(pairs[::-1], 0.1) == (train[::-1], test[::-1])


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([], r"expected at least one row in .*pairs.jsonl"),
        ([ROWS[0], {"prompt": "a", "chosen": "b"}], r"pairs.jsonl:2: expected a column 'rejected', got prompt, chosen"),
        ([{"prompt": "a", "chosen": 3, "rejected": "b"}], r"pairs.jsonl:1: expected text in column 'chosen', got 3"),
        ([ROWS[0], {"prompt": "a", "chosen": "b", "rejected": "b"}], r"pairs.jsonl:2: .* got 'b' twice: remove the"),
        (
            [{"prompt": "a", "chosen": [{"role": "assistant", "content": "b"}], "rejected": "c"}],
            r"pairs.jsonl:1: expected 'prompt', 'chosen' and 'rejected' all as text or all as chat messages",
        ),
        (
            [{name: [{"role": "user", "content": name}] for name in ("prompt", "chosen", "rejected")}],
            r"pairs.jsonl:1: expected one message of the assistant in 'chosen' and in 'rejected', got user",
        ),
    ],
    ids=["empty", "no column", "no text", "identical", "two forms", "no assistant"],
)
def test_a_row_that_is_no_pair_is_said(tiny: Path, tmp_path: Path, rows: list[dict[str, Any]], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        of_file(write_rows(tmp_path / "pairs.jsonl", rows), load_tokenizer(str(tiny)))


def test_messages_need_a_template(tmp_path: Path) -> None:
    row = {name: [{"role": "assistant", "content": name}] for name in ("prompt", "chosen", "rejected")}
    tokenizer = load_tokenizer(str(tiny_model_folder(tmp_path, chat_template=False)))
    with pytest.raises(UserError, match=r"pairs.jsonl:1'.*has no chat template"):
        of_file(write_rows(tmp_path / "pairs.jsonl", [row]), tokenizer)


def test_a_pair_longer_than_the_context_is_named() -> None:
    def pair(prompt: int, *completions: int) -> Group:
        own = (
            Completion(i, (1,) * n, (0.0,) * n, (0.0,) * n, "", StopReason.END, 0) for i, n in enumerate(completions)
        )
        return Group(Problem(f"pairs.jsonl:{prompt}", ""), (1,) * prompt, tuple(own))

    refuse_longer([pair(3, 5, 7), pair(4, 6, 1)], 10)
    with pytest.raises(UserError, match=r"pairs.jsonl:4: expected .* at most 9 tokens .* got 10: shorten or remove"):
        refuse_longer([pair(3, 6, 1), pair(4, 1, 6)], 9)


def test_a_run_without_signal_and_a_folder_without_a_run_are_refused(tiny: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tiny))
    run = recorded_run(tmp_path / "run", tiny, [[[0.5, 0.5], [NAN, 1.0]], [[1.0, 0.0]]], tokenizer)
    with pytest.raises(UserError, match=r"run: expected groups .* found none among 2 groups: choose"):
        load_preferences(PreferencesConfig(run=str(run), last_step=1), tokenizer)
    with pytest.raises(UserError, match="nothing-here: expected a run directory"):
        load_preferences(PreferencesConfig(run=str(tmp_path / "nothing-here")), tokenizer)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "expected either preferences.run or preferences.path, got neither"),
        ({"run": "a", "path": "b.jsonl"}, "expected either preferences.run or preferences.path, got both"),
        (
            {"run": "a", "first_step": 5, "last_step": 4},
            "preferences.last_step: expected preferences.first_step=5 or more, got 4",
        ),
    ],
)
def test_contradicting_sources_name_both_fields(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        DpoConfig(preferences=given)


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
def test_pairs_of_older_runs_have_their_share(tiny: Path, tmp_path: Path, share: float, of_older: list[str]) -> None:
    tokenizer = load_tokenizer(str(tiny))
    old = recorded_run(tmp_path / "old", tiny, [[[1.0, 0.0]] * 4], tokenizer)
    new = recorded_run(tmp_path / "new", tiny, [[[1.0, 0.0]]] * 2 + [[[1.0, 0.0]] * 7], tokenizer)
    given = PreferencesConfig(run=str(new), older=str(old), older_share=share)
    found = [pair.group.problem.id for pair in load_preferences(given, tokenizer)]
    assert found == [*(f"p{n}" for n in range(9)), *of_older]
    later = given.model_copy(update={"first_step": 3})  # of the new run alone
    assert len(load_preferences(later, tokenizer)) == 7 + min(4, round(7 * share / (1 - share)))
