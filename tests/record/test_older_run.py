"""A run of the previous version, in older_run/: read, exported, shown, forked and resumed, with nothing made up.

Two steps of two problems with two completions each, `algorithm=dapo`, whose length penalty is half of every limit. Its
database (here as SQL text) does not say which groups were learned from, nor what a reward was before the penalty.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from starlette.testclient import TestClient

from grouprl.config.run import RunConfig, load_config
from grouprl.lab.app import create_app
from grouprl.lab.forks import fork_directory
from grouprl.models.manifest import write_manifest
from grouprl.record.export import export
from grouprl.record.layout import RunDirectory
from grouprl.record.read import RecordedRewards, earned_reward, read_rewards, read_rollouts, read_run
from grouprl.record.rollouts import recorded_verdicts
from grouprl.record.write import RunRecord
from grouprl.report.write import write_report
from grouprl.types import StepRecord

OLDER = Path(__file__).parent / "older_run"
# Step 1, group 2: both functions said 0.5, the lengths differ, and DAPO dropped the group.
REWARDS = {(1, 0): [-0.25, -1.0], (1, 1): [-1.0, -1.0], (1, 2): [-0.25, -0.5]}
EARNED = {(1, 0): [0.5, 0.0], (1, 1): [0.0, 0.0], (1, 2): [0.5, 0.5]}


@pytest.fixture
def older(tmp_path: Path) -> Path:
    run = tmp_path / "runs" / "older"
    shutil.copytree(OLDER, run)
    sql = run / "rollouts.sql"
    with closing(sqlite3.connect(run / "rollouts.sqlite")) as database:
        database.executescript(sql.read_text(encoding="utf-8"))
    sql.unlink()
    return run


def columns(run: Path) -> set[str]:
    with closing(sqlite3.connect(run / "rollouts.sqlite")) as database:
        return {name for _, name, *_ in database.execute("PRAGMA table_info(completions)")}


def test_it_is_read_as_it_was_recorded_and_the_rest_is_not_recorded(older: Path) -> None:
    groups = read_rollouts(older, 1)
    for place, group in enumerate(groups):
        assert [outcome.total for outcome in group.outcomes] == REWARDS[1, place]
        assert [outcome.earned for outcome in group.outcomes] == EARNED[1, place]
        assert [outcome.penalty for outcome in group.outcomes] == [
            outcome.components["soft_overlong"] for outcome in group.outcomes
        ]
        assert group.kept is None
    assert read_rewards(older) == RecordedRewards({"boxed_format": 0.5, "correct_answer": 1.0}, None)
    assert len(read_run(older).metrics) == 2
    assert len(recorded_verdicts(older, until=2)) == 7
    assert columns(older).isdisjoint({"earned", "kept"})  # reading changes nothing


def test_it_is_exported(older: Path, tmp_path: Path) -> None:
    rows = parquet.read_table(export(older, tmp_path / "older.parquet")).to_pylist()
    assert [row["reward"] for row in rows[:6]] == [reward for place in range(3) for reward in REWARDS[1, place]]
    assert {row["kept"] for row in rows} == {row["earned"] for row in rows} == {None}


def test_it_is_shown(older: Path) -> None:
    write_report(older)
    with TestClient(create_app(older.parent)) as client:
        (listed,) = client.get("/api/runs").json()["runs"]
        assert (listed["status"], listed["step"], listed["algorithm"]) == ("finished", 2, "dapo")
        group: dict[str, Any] = client.get("/api/runs/older/groups/1/2").json()
        assert group["statistics"]["rewards"] == REWARDS[1, 2]
        assert (group["statistics"]["dropped"], group["statistics"]["agree"]) == (True, True)
        assert not client.get("/api/runs/older/groups/1/0").json()["statistics"]["dropped"]
        walk = client.get("/api/explain/group", params={"run": "older", "step": 1, "group": 2}).json()
        assert [row["reward"] for row in walk["stages"]["rewards"]["completions"]] == REWARDS[1, 2]
        assert walk["stages"]["rewards"]["by_step"] == []


def test_it_is_resumed_and_then_records_what_it_did_not(older: Path) -> None:
    before = read_rollouts(older, 1)
    groups = [group.group for group in before]
    outcomes = [group.outcomes for group in before]
    advantages = [group.token_advantages for group in before]
    with RunRecord.reopen(older, 1) as record:
        record.step(StepRecord(2, {"reward": 0.5}, groups, outcomes, advantages, kept=[True, False, False]))
    assert read_rollouts(older, 1) == before
    again = read_rollouts(older, 2)
    assert [group.outcomes for group in again] == outcomes
    assert [group.kept for group in again] == [True, False, False]
    with TestClient(create_app(older.parent)) as client:
        dropped = [
            client.get(f"/api/runs/older/groups/2/{place}").json()["statistics"]["dropped"] for place in range(3)
        ]
    assert dropped == [False, True, True]


def test_it_is_forked(older: Path) -> None:
    checkpoint = RunDirectory(older).checkpoint(1)
    checkpoint.trainer.mkdir(parents=True)
    checkpoint.state.write_text('{"kl_coef": 0.0}')
    write_manifest(checkpoint.path)
    config = load_config(RunConfig, [RunDirectory(older).config], [])
    fork_directory(older, older.parent / "fork", 1, config, RunDirectory(older).config.read_text())
    assert read_rollouts(older.parent / "fork", 1) == read_rollouts(older, 1)
    assert {"earned", "kept"} <= columns(older.parent / "fork")


@pytest.mark.parametrize(
    ("earned", "penalty"), [(1.0, -0.3), (0.1 + 0.2, -0.7), (1 / 3, -1 / 3), (1e-12, -0.5), (2.0, 0.0), (1e17, -0.1)]
)
def test_a_reward_before_its_penalty_is_recorded_or_gives_the_total_again(earned: float, penalty: float) -> None:
    total = earned + penalty
    assert earned_reward(total, earned, penalty) == earned
    found = earned_reward(total, None, penalty)
    assert found + penalty == pytest.approx(total, rel=1e-15)
    assert found == pytest.approx(earned, rel=1e-9, abs=1e-9)
    assert earned_reward(1.0 - 0.3, None, -0.3) == 1.0
