"""A recorded step computed again: to the last bit as it was, and under settings whose effect is known by hand."""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from grouprl import Trainer, UserError
from grouprl.config.run import RunConfig, load_config
from grouprl.lab.explain_pushes import token_pushes
from grouprl.record.layout import lock_directory
from grouprl.record.read import read_rollouts
from grouprl.run.opened import OpenedRun
from grouprl.tools.proof.changes import completion_changes, cosine, norm, not_finite, token_changes
from grouprl.tools.proof.replay import Replay, replay
from small_runs import LETTERS, ROWS, grouprl, metrics, small_config, tree
from variants import variant


def made(tiny: Path, folder: Path, **changes: Any) -> Path:
    evaluation = {"problems": 1, "samples": 0}
    config = small_config(folder, checkpoint={"every": 2, "keep": 2}, evaluation=evaluation, **changes)
    return Trainer(tiny, ROWS, [LETTERS], config=config).train().directory


@pytest.fixture(scope="module")
def run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps, with checkpoints of steps 4 and 6."""
    return made(tiny, tmp_path_factory.mktemp("replayed"))


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """Of which a test changes something."""
    return Path(shutil.copytree(run, tmp_path / "run"))


def config_of(run: Path, *changes: str) -> RunConfig:
    return load_config(RunConfig, [run / "config.yaml"], changes)


def replayed(run: Path, step: int, *changes: str) -> Replay:
    return replay(run, step, config_of(run), config_of(run, *changes) if changes else None)


@pytest.mark.parametrize(("step", "start"), [(1, 0), (3, 0), (5, 4), (6, 4)])
def test_a_step_is_the_record_to_the_last_bit_and_the_run_stays_as_it_is(run: Path, step: int, start: int):
    before = tree(run)
    lock = lock_directory(run)  # as if it were still running
    found = replayed(run, step)
    os.close(lock)
    assert tree(run) == before
    assert (found.is_identical, found.start, found.first_difference) == (True, start, None)
    names = {one.name for one in found.differences}
    assert {"advantages", "log-probs", "entropies", "reference log-probs", "loss", "grad_norm", "kl"} <= names
    row = metrics(run)[step - 1]
    assert {name: row[name] for name in found.update.metrics} == found.update.metrics
    assert norm(found.update.gradient) == pytest.approx(row["grad_norm"], rel=1e-5)


STATEFUL = {
    "several updates": {"algorithm": variant(passes=2, minibatches=2)},
    "moving reference": {"algorithm": variant("grpo_iterative", refresh_reference=2, reference_mixup=0.6)},
    "critic": {"algorithm": variant("ppo")},
    "adapter": {"model": {"lora": {"rank": 2, "alpha": 4}}},
    "dropped groups": {"algorithm": variant("dapo")},
}


@pytest.mark.parametrize("name", STATEFUL)
def test_steps_with_more_state_are_the_record_too(tiny: Path, tmp_path: Path, name: str):
    assert replayed(made(tiny, tmp_path, steps=4, **STATEFUL[name]), 4).is_identical


def test_a_change_in_the_record_is_found(copy: Path):
    """One log-prob, reward or weight that differs: the right value is named, and the command fails."""
    with closing(sqlite3.connect(copy / "rollouts.sqlite")) as database, database:
        database.execute(
            "UPDATE completions SET reward = reward + 1, earned = earned + 1 WHERE step = 3 AND rowid % 4 = 0"
        )
    found = replayed(copy, 3)
    wrong = {one.name for one in found.differences if one.differing}
    assert {"advantages", "loss", "grad_norm"} <= wrong
    assert not {"log-probs", "reference log-probs"} & wrong  # the weights before step 3 are the run's
    assert not found.is_identical
    ended = grouprl("replay", copy, 4)
    assert ended.code == 1
    assert "Not bit-identical" in ended.text
    assert "first in step 3" in ended.text


def test_weights_after_the_replay_are_the_next_checkpoint(run: Path):
    """The gradient is the one that the run applied: a second way to the same checkpoint would show another."""
    from grouprl.tools.proof import replay as module

    opened = OpenedRun(config_of(run))
    learner, start, _ = module.learner_before(run, opened, 5)
    assert start == 4
    for step in (5, 6):
        module.make_update(learner, module.recorded_groups(run, step, opened.sampling))
    saved = load_file(run / "checkpoints/step-000006/model.safetensors")
    policy = learner.policy.state_dict()
    assert all(torch.equal(policy[name], value) for name, value in saved.items())


def test_advantages_under_another_scale_are_rewards_less_their_mean(run: Path):
    found = replayed(run, 5, "algorithm=dr_grpo", "algorithm.kl_coef=0")
    assert found.is_identical  # the recorded one, whatever else is computed
    for group in range(2):
        rewards = [outcome.total for outcome in found.recorded[group].outcomes]
        expected = {n: reward - sum(rewards) / 4 for n, reward in enumerate(rewards)}
        got = {one.completion: one.other_advantage for one in completion_changes(found) if one.group == group}
        assert got == pytest.approx(expected, abs=1e-6)
    sizes = [abs(one.other_advantage - one.advantage) for one in completion_changes(found)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 0.1


def test_the_opposite_reward_is_the_opposite_gradient(run: Path, copy: Path, tmp_path: Path):
    reward, out = tmp_path / "mine.py", tmp_path / "found.json"
    reward.write_text(
        "LOW = 'abcdefghijklmnopqrstuvwxyz'\n"
        "def minus(completions, **columns):\n"
        "    return [-sum(c in LOW for c in text) / max(1, len(text)) for text in completions]\n"
    )
    given = (1, "algorithm.kl_coef=0", "--reward", f"{reward}:minus", "--json", out)
    assert "expected changes of algorithm, rewards" in grouprl("replay", run, *given, "task.name=word_problems").text
    # The task of the run was given by a program; any other has a `rewards` setting.
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(text.replace(f"name: {config_of(run).task.name}\n", "name: word_problems\n"))
    ended = grouprl("replay", copy, *given)
    assert ended.code == 0, ended.text
    found = json.loads(out.read_text())
    assert found["identical"]
    # In the first step the policy is its reference, so that the KL has no gradient.
    assert found["other"]["gradient_cosine"] == pytest.approx(-1.0, abs=1e-6)
    for one in found["other"]["completions"]:
        assert one["other_reward"] == pytest.approx(-one["reward"])
        assert one["other_advantage"] == pytest.approx(-one["advantage"], abs=1e-6)
    for one in found["other"]["tokens"]:
        assert one["other_share"] == pytest.approx(-one["share"], abs=1e-6)
    assert "cosine -1.0000" in ended.text


def test_a_push_is_weight_times_advantage_where_the_ratio_is_one(run: Path):
    """On policy the derivative of -weight * ratio * A by the log-prob is -weight * A; the KL is at its minimum."""
    found = replayed(run, 1)
    rows = [
        (one, row)
        for group in found.recorded
        for one, row in zip(group.group.completions, group.token_advantages, strict=True)
    ]
    pushes = [row for group in found.update.pushes for row in group]
    for (one, advantages), got in zip(rows, pushes, strict=True):
        assert got == pytest.approx([a / (8 * len(one)) for a in advantages], abs=1e-5)
    assert max(map(max, pushes)) > 0.01


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("rollout.max_tokens=9", r"rollout\.max_tokens: 8 then, 9 now"),
        ("seed=5", "would have sampled other completions"),
        ("algorithm=ppo", "the values of another critic are not in the record"),
    ],
)
def test_a_change_that_would_sample_or_value_otherwise_is_refused(run: Path, change: str, what: str):
    with pytest.raises(UserError, match=what):
        replayed(run, 2, change)


def test_a_step_or_a_model_that_is_not_there_is_named(copy: Path, tiny: Path):
    with pytest.raises(UserError, match="expected the completions of step 7"):
        replayed(copy, 7)
    model = copy / "checkpoints/step-000006"
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(text.replace(str(tiny), str(model)))
    with pytest.raises(UserError, match="expected the model that the run started with"):
        replayed(copy, 2)


def test_a_forked_run_without_its_checkpoint_is_sent_to_its_source(copy: Path):
    (copy / "forked.json").write_text('{"from": "source", "step": 4}\n')
    with pytest.raises(UserError, match="replay them there"):
        replayed(copy, 3)
    assert replayed(copy, 5).is_identical


def test_a_gradient_that_is_not_finite_is_reported_with_its_tokens(copy: Path):
    config = copy / "config.yaml"  # with several updates a batch the loss divides by the sampler's probabilities
    config.write_text(config.read_text().replace("passes: 1\n", "passes: 2\n"))
    where = "WHERE step = 3 AND group_index = 1 AND completion_index = 2"
    with closing(sqlite3.connect(copy / "rollouts.sqlite")) as database, database:
        blob = database.execute(f"SELECT logprobs FROM completions {where}").fetchone()[0]
        broken = torch.full((len(blob) // 4,), float("nan")).numpy().tobytes()
        database.execute(f"UPDATE completions SET logprobs = ? {where}", (broken,))
    found = replayed(copy, 3)
    assert "expected a finite gradient" in found.update.error
    assert not_finite(found.update) == [(1, 2)]
    ended = grouprl("replay", copy, 3)
    assert ended.code == 1
    assert "The update of this step fails: expected a finite gradient" in ended.text
    assert "without a finite push: 1.2" in ended.text


def test_the_same_settings_change_nothing(run: Path):
    found = replayed(run, 5, "learner.micro_batch_tokens=50")
    assert found.other is not None
    assert cosine(found.update.gradient, found.other.gradient) == pytest.approx(1.0, abs=1e-9)
    assert max(abs(one.other_share - one.share) for one in token_changes(found, 5)) < 1e-5


def test_a_changed_filter_and_kl_coefficient_are_those_of_the_other_update(run: Path):
    found = replayed(run, 5, "algorithm.kl_coef=10")
    assert found.other is not None
    assert found.other.metrics["kl_coef"] == 10
    assert found.update.metrics["kl_coef"] != 10
    found = replayed(run, 5, "algorithm.drop_below=1e9")  # no group earns as much
    assert found.other is not None
    assert norm(found.other.gradient) == 0 < norm(found.update.gradient)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("grpo", ["algorithm.kl_coef=0"]),
        ("dr_grpo", []),
        ("dapo", ["algorithm.overlong_buffer=0"]),
        ("gspo", ["algorithm.minibatches=1"]),
        ("cispo", []),
    ],
)
def test_the_page_of_five_algorithms_has_what_a_replay_under_each_of_them_pushes(run: Path, name: str, changes: list):
    other = replayed(run, 1, f"algorithm={name}", *changes).other
    assert other is not None
    total = sum(abs(push) for group in other.pushes for row in group for push in row)
    assert total > 0
    for index, group in enumerate(other.pushes):
        found = token_pushes(run, 1, index)["first"][name]
        for row, pushes, shares, share in zip(group, found["pushes"], found["shares"], found["sums"], strict=True):
            assert pushes == pytest.approx(row, abs=1e-7)
            assert shares == pytest.approx([push / total for push in row], abs=1e-6)
            assert share == pytest.approx(sum(row) / total, abs=1e-6)


def test_a_second_update_on_the_same_tokens_is_clipped_by_each_algorithm_in_its_own_way(run: Path):
    recorded = read_rollouts(run, 1)
    index = next(n for n, group in enumerate(recorded) if group.traces[0].updated is not None)
    found = [token_pushes(run, 1, n)["again"] for n in range(len(recorded))]
    assert [answer is not None for answer in found] == [n == index for n in range(len(recorded))]
    outcomes, traces = recorded[index].outcomes, recorded[index].traces
    rewards = [outcome.total for outcome in outcomes]
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    size = sum(len(group.outcomes) for group in recorded)
    clipped = 0
    for row, (reward, trace) in enumerate(zip(rewards, traces, strict=True)):
        advantage, length = (reward - mean) / (deviation + 1e-6), len(trace.updated)
        changes = [after - before for after, before in zip(trace.updated, trace.logprobs, strict=True)]
        assert any(changes)
        by_token = [
            0.0
            if (advantage > 0 and math.exp(change) > 1.2) or (advantage < 0 and math.exp(change) < 0.8)
            else math.exp(change) * advantage / length / size
            for change in changes
        ]
        ratio = math.exp(sum(changes) / length)
        is_clipped = (advantage > 0 and ratio > 1 + 4e-4) or (advantage < 0 and ratio < 1 - 3e-4)
        by_sequence = [0.0 if is_clipped else ratio * advantage / length / size] * length
        clipped += is_clipped
        assert found[index]["grpo"]["pushes"][row] == pytest.approx(by_token, abs=1e-7)
        assert found[index]["gspo"]["pushes"][row] == pytest.approx(by_sequence, abs=1e-7)
    assert clipped > 0


def test_a_group_that_is_not_recorded_has_no_page_of_five_algorithms(run: Path):
    with pytest.raises(UserError, match=r"step 1, group 99: expected a group of .*, found none: choose one"):
        token_pushes(run, 1, 99)
