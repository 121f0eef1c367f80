"""The lab's groups: pages of them, one worked out in numbers, a problem through training, and every state of a run."""

from __future__ import annotations

import math
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from starlette.testclient import TestClient

from grouprl.algorithms.named import NAMED
from grouprl.lab.report.groups import groups_of_step, history, one_group
from grouprl.lab.report.tokens import one_completion
from grouprl.lab.report.worked import CompletionParts, against_record, of_step
from grouprl.lab.rollout_routes import SearchTerms, search
from grouprl.lab.server import create_app
from grouprl.learner import PolicyEvaluation, assign_credit, make_batch
from grouprl.learner.trace import token_rows
from grouprl.record import rollouts as rollouts_module
from grouprl.record.write import RunRecord
from grouprl.types import Group, RewardOutcome, Sampling, UserError
from lab_runs import CONFIG, Made, add_step, algorithm_config, make_run

SIX_OF_TEN = Made((1.0,) * 6 + (0.0,) * 4, advantages=(0.8164949,) * 6 + (-1.2247424,) * 4)


def empty_answers(folder: Path) -> None:
    assert groups_of_step(folder, None, offset=0, limit=50) == {"step": None, "steps": None, "total": 0, "groups": []}
    found = search(folder, SearchTerms(), before=None, limit=50)
    assert (found["rows"], found["next"], found["searched"], found["back_to"]) == ([], None, 0, None)
    visits = history(folder, "train-1", before=None, limit=50)
    assert (visits["visits"], visits["total"], visits["prompt"], visits["next"]) == ([], 0, None, None)
    with pytest.raises(UserError, match=r"step 1, group 0: expected a group that .* recorded, found none"):
        one_group(folder, 1, 0)
    with pytest.raises(UserError, match="step 1, group 0, completion 0: expected one"):
        one_completion(folder, 1, 0, 0, root=folder.parent)


def test_a_group_in_a_page(tmp_path: Path) -> None:
    made = Made((2.0, None, 0.0), advantages=(1.0, 0.0, -1.0), correct=(True, None, False))
    run = make_run(tmp_path / "run", [made])
    (group,) = groups_of_step(run, 1, offset=0, limit=50)["groups"]
    assert {name: group[name] for name in group if name != "completions"} == {
        "group_index": 0, "problem_id": "train-1", "prompt": "prompt of train-1", "mean": 1.0, "deviation": 1.0,
        "signal": True,
    }  # fmt: skip
    common = {"length": 2, "stop_reason": "end"}
    assert group["completions"] == [
        {"index": 0, "reward": 2.0, "advantage": 1.0, "correct": True, "invalid": False, **common},
        {"index": 1, "reward": None, "advantage": 0.0, "correct": None, "invalid": True, **common},
        {"index": 2, "reward": 0.0, "advantage": -1.0, "correct": False, "invalid": False, **common},
    ]


def test_equal_and_invalid_groups_have_no_signal(tmp_path: Path) -> None:
    made = [Made((0.7, 0.7, 0.7)), Made((None, None)), Made((1.0, None)), Made((1.0, 0.0, 1.0, 0.0))]
    run = make_run(tmp_path / "run", made, config=algorithm_config(std="sample"))
    found = groups_of_step(run, 1, offset=0, limit=50)["groups"]
    assert [group["mean"] for group in found] == [0.7, None, 1.0, 0.5]
    assert [group["deviation"] for group in found] == [0.0, None, 0.0, pytest.approx(math.sqrt(1 / 3))]
    assert [group["signal"] for group in found] == [False, False, False, True]


def test_pages_hold_every_group_once(tmp_path: Path) -> None:
    five = [Made((float(index), 0.0), problem=f"train-{index}") for index in range(5)]
    run = make_run(tmp_path / "run", [five[0]], five, [five[0]])
    pages = [groups_of_step(run, 2, offset=offset, limit=2) for offset in (0, 2, 4, 6)]
    shown = [[int(group["problem_id"][-1]) for group in page["groups"]] for page in pages]
    assert shown == [[0, 1], [2, 3], [4], []]
    assert {(page["total"], tuple(page["steps"])) for page in pages} == {(5, (1, 3))}
    assert groups_of_step(run, None, offset=0, limit=2)["step"] == 3
    assert groups_of_step(run, 9, offset=0, limit=2) == {"step": 9, "steps": [1, 3], "total": 0, "groups": []}


def test_an_invalid_reward_takes_no_part(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [Made((3.0, None, 1.0), advantages=(1.0, 0.0, -1.0))])
    found = one_group(run, 1, 0)["statistics"]
    assert found["rewards"] == [3.0, None, 1.0]
    assert (found["count"], found["mean"], found["deviation"]) == (2, 2.0, 1.0)
    assert (found["deviations"], found["baselines"]) == ([1.0, None, -1.0], [2.0, None, 2.0])
    assert found["advantages"] == [pytest.approx(1.0, abs=1e-5), None, pytest.approx(-1.0, abs=1e-5)]
    assert found["agree"] is True


def test_a_group_may_be_compared_with_its_step(tmp_path: Path) -> None:
    config = algorithm_config(baseline="batch_mean", scale="batch_std", eps=0.0)
    step = [Made((1.0, 1.0), advantages=(1.0, 1.0)), Made((0.0, 0.0, None), advantages=(-1.0, -1.0, 0.0))]
    run = make_run(tmp_path / "run", step, [Made((9.0,))], config=config)
    found = one_group(run, 1, 1)["statistics"]
    assert [found["batch"][name] for name in ("count", "mean", "deviation")] == [4, 0.5, 0.5]
    assert (found["mean"], found["signal"]) == (0.0, False)
    assert (found["baselines"], found["divisors"]) == ([0.5, 0.5, None], [0.5, 0.5, None])
    assert (found["advantages"], found["agree"]) == ([-1.0, -1.0, None], True)


def test_a_dropped_group_has_no_advantage(tmp_path: Path) -> None:
    """All earned 0.9, so the group is dropped, though a length penalty makes their rewards differ.

    Taken away again, this penalty leaves 0.9000000000000001.
    """
    config = algorithm_config(drop_equal="true", overlong_buffer=0.2)
    penalty = -9 / 7 / 29
    long = Made((0.9 + penalty, 0.9), penalties=(penalty, 0.0), kept=False)
    mixed = Made((0.7, 0.0), penalties=(-0.3, 0.0), advantages=(1.0, -1.0))
    run = make_run(tmp_path / "run", [long, mixed], config=config)
    dropped, kept = (one_group(run, 1, group)["statistics"] for group in (0, 1))
    assert (dropped["dropped"], dropped["signal"], dropped["agree"]) == (True, True, True)
    assert dropped["advantages"] == [0, 0]
    assert (kept["dropped"], kept["agree"]) == (False, True)
    config = algorithm_config(baseline="constant", scale="none", drop_above=0.9)
    easy = one_group(make_run(tmp_path / "easy", [Made((1.0, 1.0), kept=False)], config=config), 1, 0)["statistics"]
    assert (easy["dropped"], easy["advantages"], easy["agree"]) == (True, [0.0, 0.0], True)


@pytest.mark.parametrize(
    ("fields", "agree", "said"),
    [
        # What rewards alone do not decide is not made up.
        ({"baseline": "critic", "critic": "copy", "credit": "token", "scale": "none"}, None, "the critic's prediction"),
        ({"credit": "step"}, None, "Each reasoning step has a reward"),
        ({"reward_mix": "normalise_then_sum"}, None, "normalized separately"),
        ({"credit": "token", "baseline": "batch_mean", "scale": "batch_std"}, None, "over all tokens of the step"),
        # A difference has its reason.
        ({"kl_in": "reward", "scale": "none"}, False, "KL to the reference is part of the reward"),
        ({"credit": "token", "gamma": 0.9}, False, "discounted by 0.9"),
        ({"credit": "token", "mask_overlong": "true"}, False, "Truncated completions are masked"),
        ({"std": "sample"}, False, "such as before a fork"),
    ],
)
def test_what_differs_has_its_reason(tmp_path: Path, fields: dict[str, str], agree: bool | None, said: str) -> None:
    made = Made((1.0, 0.0), advantages=(0.3, -0.2))
    found = one_group(make_run(tmp_path / "run", [made], config=algorithm_config(**fields)), 1, 0)["statistics"]
    assert (found["agree"], said in found["why"]) == (agree, True)
    if agree is None:
        assert {found[name] for name in ("advantages", "divisors", "baselines", "batch")} == {None}


def rewarded(*rewards: float) -> tuple[RewardOutcome, ...]:
    return tuple(RewardOutcome(reward, {"exact": reward}, "" if reward == reward else "failed") for reward in rewards)


def uneven(group: Group) -> Group:
    """Its completions with 1, 2, 3, ... tokens."""
    sizes = range(1, 1 + len(group.completions))
    rows = [
        replace(one, token_ids=(7,) * size, logprobs=(-0.5,) * size, plain_logprobs=(-0.5,) * size)
        for one, size in zip(group.completions, sizes, strict=True)
    ]
    return replace(group, completions=tuple(rows))


@pytest.mark.parametrize("name", NAMED)
def test_the_numbers_are_those_that_the_learner_makes(name: str) -> None:
    """Of every algorithm of the family: the learner's own advantages, without a KL."""
    algorithm = NAMED[name]
    outcomes = [rewarded(1.0, 0.25, 0.0), rewarded(1.0, 1.0), rewarded(0.5, math.nan, 2.0, 0.5)]
    groups = [uneven(Made((0.0,) * len(row)).group()) for row in outcomes]
    kept = algorithm.group_filter.kept([[one.earned for one in row] for row in outcomes])
    learned = [place for place, keep in enumerate(kept) if keep]
    batch = make_batch([groups[place] for place in learned], Sampling())
    seen = PolicyEvaluation(values_NT=torch.zeros(batch.mask_NT.shape) if algorithm.critic is not None else None)
    rows = [outcome for place in learned for outcome in outcomes[place]]
    credit = assign_credit(rows, {"exact": 1.0}, batch, seen, algorithm, kl_coef=0.0)
    advantages = iter(token_rows(credit.advantages_NT, batch))
    scored = [
        CompletionParts(place, None if math.isnan(outcome.total) else outcome.total, kept[place], index + 1)
        for place, row in enumerate(outcomes)
        for index, outcome in enumerate(row)
    ]
    for place, row in enumerate(outcomes):
        recorded = [math.fsum(one := next(advantages)) / len(one) if kept[place] else 0.0 for _ in row]
        own = scored if of_step(algorithm) else [one for one in scored if one.group == place]
        found = against_record(place, own, recorded, algorithm)
        of_tokens = name in ("grpo_process", "reinforce_pp", "rf_baseline", "ppo")
        assert found["agree"] is (None if of_tokens else True)


def test_a_group_has_everything_but_its_tokens(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [Made((2.0,), texts=("7",), correct=(True,), penalties=(-0.5,))])
    (run / "rewards.json").write_text('{"weights": {"soft_overlong": 1.0, "exact": 2.0}, "process": {}}')
    found = one_group(run, 1, 0)
    assert (found["prompt"], found["messages"], found["columns"]) == ("prompt of train-1", None, {"answer": "7"})
    assert found["algorithm"]["name"] == "grpo"
    (completion,) = found["completions"]
    assert completion == {
        "index": 0, "text": "7", "reward": 2.0, "components": {"exact": 1.0, "soft_overlong": -0.5},
        "weights": {"exact": 2.0, "soft_overlong": 1.0}, "invalid_reason": None, "correct": True, "advantage": 0.0,
        "length": 2, "stop_reason": "end", "weights_version": 3, "step_rewards": None, "extra": None,
        "episode": None,
    }  # fmt: skip
    own = one_group(make_run(tmp_path / "own", [Made((2.0,))]), 1, 0)
    assert own["completions"][0]["weights"] == {"exact": None}


def test_a_problem_is_followed_backwards(tmp_path: Path) -> None:
    first = Made((0.0, 0.0, None), texts=("a", "b", "c"), correct=(False, False, None))
    last = Made((1.0, 0.0, None), texts=("d", "e", "f"), correct=(True, False, None))
    other = Made((5.0,), problem="train/2")
    run = make_run(tmp_path / "run", [first, other], [other], [other, last, first])
    found = history(run, "train-1", before=None, limit=2)
    assert (found["total"], found["prompt"], found["next"]) == (3, "prompt of train-1", "3-1")
    assert [(visit["step"], visit["group_index"]) for visit in found["visits"]] == [(3, 2), (3, 1)]
    visit = found["visits"][1]
    assert (visit["mean"], visit["correct"]) == (0.5, 0.5)
    shown = [(one["text"], one["reward"], one["correct"]) for one in visit["completions"]]
    assert shown == [("d", 1.0, True), ("e", 0.0, False), ("f", None, None)]
    rest = history(run, "train-1", before=(3, 1), limit=2)
    assert ([visit["step"] for visit in rest["visits"]], rest["next"]) == ([1], None)
    client = TestClient(create_app(tmp_path))
    asked = client.get("/api/runs/run/history?problem=train%2F2&limit=1").json()
    assert (asked["total"], [visit["step"] for visit in asked["visits"]], asked["next"]) == (3, [3], "3-0")


def test_a_run_that_goes_on_and_its_copies(root: Path) -> None:
    (root / "none").mkdir()
    (root / "none" / "config.yaml").write_text(CONFIG)
    empty_answers(root / "none")
    (root / "none" / "rollouts.sqlite").touch()  # made, and no table in it yet
    empty_answers(root / "none")
    with RunRecord.create(root / "run", CONFIG) as record:
        empty_answers(root / "run")
        for step in (1, 2):
            add_step(record, step, [SIX_OF_TEN])
            assert groups_of_step(root / "run", None, offset=0, limit=1)["steps"] == [1, step]
        shutil.copytree(root / "run", root / "copy")
        for name in ("config.yaml", "rollouts.sqlite"):
            shutil.copy(root / "run" / name, root / "none")
    assert groups_of_step(root / "copy", None, offset=0, limit=1)["steps"] == [1, 2]
    empty_answers(root / "none")  # all that is recorded was in the -wal file
    assert one_group(root / "run", 2, 0)["statistics"]["agree"] is True


def test_every_connection_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, opened = make_run(tmp_path / "run", [SIX_OF_TEN]), list[sqlite3.Connection]()

    read_only = rollouts_module._read_only

    def watched(path: Path) -> sqlite3.Connection:
        opened.append(read_only(path))
        return opened[-1]

    monkeypatch.setattr(rollouts_module, "_read_only", watched)
    groups_of_step(run, 1, offset=0, limit=1)
    one_completion(run, 1, 0, 0, root=tmp_path)
    with pytest.raises(UserError):
        one_group(run, 9, 9)
    assert len(opened) == 3
    for database in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            database.execute("SELECT 1")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("groups?limit=0", "limit: expected a whole number from 1 to 200, got '0'"),
        ("groups?step=one", "step: expected a whole number from 0 to 999999999999999, got 'one'"),
        ("groups/1/0x1", "group: expected a whole number from 0 to 999999999999999, got '0x1'"),
        ("groups?colour=red", "expected the parameters step, offset, limit, got 'colour'"),
        ("groups/1/9", "step 1, group 9: expected a group that run recorded"),
        ("history?problem=train-1&before=3", "before: expected what another call gave as `next`, got '3'"),
        ("history?problem=train-1&limit=101", "limit: expected a whole number from 1 to 100"),
    ],
)
def test_what_is_asked_wrongly_is_said(tmp_path: Path, path: str, said: str) -> None:
    make_run(tmp_path / "run", [SIX_OF_TEN])
    found = TestClient(create_app(tmp_path)).get(f"/api/runs/run/{path}")
    assert (found.status_code, said in found.json()["error"]) == (400, True), found.text
