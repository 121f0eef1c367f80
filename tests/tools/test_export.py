"""A run as Parquet: DuckDB and pyarrow read back what was recorded, and a kill leaves no half of it."""

from __future__ import annotations

import json
import math
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grouprl.record.write import RunRecord
from grouprl.tools import export as exporting
from grouprl.tools.export import export
from grouprl.types import (
    Completion,
    Group,
    Problem,
    RewardOutcome,
    StepRecord,
    StepReward,
    StopReason,
    TokenTrace,
    UserError,
)

duckdb = pytest.importorskip("duckdb")
parquet = pytest.importorskip("pyarrow.parquet")

HOSTILE = [
    "",
    "\0",
    "before\0after",
    "'; DROP TABLE completions; --",
    '"}],\\u0000\n\r\n\t\x1b[31m',
    "\u202eright to left\u2066 \ufeff\u200b",
    "𝔘😀\U0010ffff\ud7ff\ue000\uffff",
    "e\u0301 is not é",
    "x" * 2**20,
    "\\boxed{" * 500,
]


def hostile_groups() -> tuple[Group, ...]:
    """A group for each text, which is everywhere that text can be."""
    return tuple(
        Group(
            Problem(
                f"{place}/{text[:40]}",
                text if place % 2 else ({"role": "system", "content": ""}, {"role": "user", "content": text}),
                {"answer": text, "nested": {"list": [1, 2.5, None, text[:9]]}, text[:9]: place},
            ),
            tuple(range(place)),
            (
                Completion(0, (7, 2**31 - 1), (-0.5, -1e30), (-0.25, -0.1), text, StopReason.END, place),
                Completion(1, (2,), (0.0,), (-0.0,), text[::-1], StopReason.LENGTH, place),
            ),
        )
        for place, text in enumerate(HOSTILE)
    )


def hostile_outcomes() -> tuple[tuple[RewardOutcome, RewardOutcome], ...]:
    return tuple(
        (
            RewardOutcome(
                0.1 * place, {"a": 0.1 * place, text[:20]: None}, steps=(StepReward(1, 1 / 3),), correct=True
            ),
            RewardOutcome(math.nan, {"a": None}, reason=f"a {text[:50]}!", correct=(None, False)[place % 2]),
        )
        for place, text in enumerate(HOSTILE)
    )


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    groups, outcomes = hostile_groups(), hostile_outcomes()
    with RunRecord.create(tmp_path / "hostile", "task: x\n") as record:
        seen = [(TokenTrace((-1.5, -0.5), (0.5, 2.0), (-0.25, -4.0), (-1.0, -0.5)), TokenTrace())] * len(groups)
        record.step(StepRecord(1, {}, groups, outcomes, [((0.5, -0.125), (0.1,))] * len(groups), seen))
        kept = [place % 2 == 0 for place in range(len(groups))]
        advantages = [((0.1, 0.1), (0.0,))] * len(groups)
        record.step(StepRecord(3, {}, groups[::-1], outcomes[::-1], advantages, kept=kept))
    return tmp_path / "hostile"


def recorded_rows(run: Path) -> list[dict[str, Any]]:
    """Every completion of the database with its problem: blobs are little-endian numbers, and JSON is a value."""
    with closing(sqlite3.connect(run / "rollouts.sqlite")) as database:
        database.row_factory = sqlite3.Row
        joined = (
            "SELECT * FROM completions JOIN problems USING (problem_id) ORDER BY step, group_index, completion_index"
        )
        return [
            {name: value_of(name, stored) for name, stored in dict(row).items()} for row in database.execute(joined)
        ]


def value_of(name: str, stored: Any) -> Any:
    if isinstance(stored, bytes):
        return np.frombuffer(stored, "<i4" if name.endswith("_ids") else "<f4").tolist()
    if stored is not None and name == "step_rewards":
        return [{"end": end, "reward": reward} for end, reward in json.loads(stored)]
    return json.loads(stored) if name == "components" else stored


def assert_recorded(rows: list[dict[str, Any]], run: Path) -> None:
    """No row and no digit is lost, and none is added."""
    recorded = recorded_rows(run)
    assert len(rows) == len(recorded) == 40
    for row, own in zip(rows, recorded, strict=True):
        assert row | {"rewards": dict(row["rewards"])} == {name: own.get(name) for name in row} | {
            "rewards": own["components"]
        }


def with_duckdb(path: Path) -> list[dict[str, Any]]:
    found = duckdb.execute("SELECT * FROM read_parquet(?)", [str(path)])
    names = [name for name, *_ in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def with_pyarrow(path: Path) -> list[dict[str, Any]]:
    return list(parquet.read_table(path).to_pylist())


@pytest.mark.parametrize("read", [with_duckdb, with_pyarrow])
def test_an_export_holds_what_was_recorded(
    hostile: Path, tmp_path: Path, read: Callable[[Path], list[dict[str, Any]]]
) -> None:
    out = export(hostile, tmp_path / "deep" / "rollouts.parquet")
    rows = read(out)
    assert_recorded(rows, hostile)
    assert (rows[4]["text"], rows[4]["reward"], rows[5]["reward"]) == ("before\0after", 0.2, None)
    assert json.loads(rows[4]["columns"])["answer"] == "before\0after"
    assert [path.name for path in out.parent.iterdir()] == ["rollouts.parquet"]


def test_columns_have_types_that_need_no_decoding(hostile: Path, tmp_path: Path) -> None:
    out = export(hostile, tmp_path / "rollouts.parquet")
    described = duckdb.execute("DESCRIBE SELECT * FROM read_parquet(?)", [str(out)]).fetchall()
    types = {name: kind for name, kind, *_ in described}
    assert types["token_ids"] == "INTEGER[]"
    assert types["logprobs"] == types["plain_logprobs"] == types["token_advantages"] == "FLOAT[]"
    assert types["rewards"] == "MAP(VARCHAR, DOUBLE)"
    assert (types["reward"], types["correct"], types["step"]) == ("DOUBLE", "BOOLEAN", "INTEGER")
    asked = "SELECT rewards['a'], json_extract(columns, '$.nested.list[1]'), list_sum(logprobs) FROM read_parquet(?)"
    first = duckdb.execute(f"{asked} WHERE group_index = 3 AND step = 1", [str(out)]).fetchone()
    assert first == (pytest.approx(0.3), "2.5", pytest.approx(-1e30))


def test_row_groups_bound_the_memory(hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "ROWS", 3)
    monkeypatch.setattr(exporting, "MIB", 1)
    file = parquet.ParquetFile(export(hostile, tmp_path / "rollouts.parquet"))
    sizes = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
    assert sum(sizes) == 40
    assert max(sizes) == 3
    assert min(sizes) < 3  # a text of 1 MiB ends its group
    assert_recorded([row for index in range(len(sizes)) for row in file.read_row_group(index).to_pylist()], hostile)


def test_a_run_without_a_step_gives_a_table_without_a_row(tmp_path: Path) -> None:
    RunRecord.create(tmp_path / "run", "task: x\n").close()
    assert with_duckdb(export(tmp_path / "run", tmp_path / "empty.parquet")) == []


def test_nothing_is_overwritten_and_what_cannot_be_is_said(hostile: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.parquet").write_text("mine")
    with pytest.raises(UserError, match=r"mine.parquet: expected a new file, but it exists"):
        export(hostile, tmp_path / "mine.parquet")
    with pytest.raises(UserError, match="cannot be written"):
        export(hostile, tmp_path / "mine.parquet" / "rollouts.parquet")
    for name in ("rollouts.csv", "rollouts", "runs.parquet.gz"):
        with pytest.raises(UserError, match=rf"expected a file name that ends in .parquet, got '{name}'"):
            export(hostile, tmp_path / name)
    with pytest.raises(UserError, match="expected the rollouts of a run, found no such file"):
        export(tmp_path, tmp_path / "new.parquet")
    assert (tmp_path / "mine.parquet").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"hostile", "mine.parquet"}


def test_a_run_of_an_older_version_is_said_to_be_one(hostile: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(hostile / "rollouts.sqlite")) as database:
        database.execute("ALTER TABLE completions DROP COLUMN correct")
    with pytest.raises(UserError, match="columns correct, found none: restore"):
        export(hostile, tmp_path / "new.parquet")


def test_without_pyarrow_the_extra_is_named(hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"expected the package pyarrow, got none: run pip install 'grouprl\[data\]'"):
        export(hostile, tmp_path / "new.parquet")


def test_what_fails_in_the_middle_leaves_nothing(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(hostile / "rollouts.sqlite")) as database, database:
        database.execute("UPDATE completions SET components = '[1' WHERE step = 3 AND group_index = 9")
    monkeypatch.setattr(exporting, "ROWS", 1)
    with pytest.raises(json.JSONDecodeError):
        export(hostile, tmp_path / "new" / "rollouts.parquet")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_run_that_goes_on_is_exported_as_far_as_it_got(hostile: Path, tmp_path: Path) -> None:
    groups, outcomes = hostile_groups()[:1], hostile_outcomes()[:1]
    with RunRecord.reopen(hostile, 3) as record:
        for step in (4, 5):
            record.step(StepRecord(step, {}, groups, outcomes, [((0.0, 0.0), (0.0,))]))
            found = with_duckdb(export(hostile, tmp_path / f"{step}.parquet"))
            assert sorted({row["step"] for row in found}) == [1, 3, 4, 5][: step - 1]


# Killed

EXPORTED = """
import os, signal, sys
from pathlib import Path
import grouprl.tools.export as exporting
exporting.ROWS = 8
rows = exporting._table
def table(*arguments):
    if (Path(sys.argv[1]).parent / "out.parquet.tmp").stat().st_size > 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return rows(*arguments)
exporting._table = table
exporting.export(Path(sys.argv[1]), Path(sys.argv[1]).parent / "out.parquet")
"""


def test_a_killed_export_can_be_made_again(hostile: Path, tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", EXPORTED, str(hostile)], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert (tmp_path / "out.parquet.tmp").exists()
    assert not (tmp_path / "out.parquet").exists()
    assert len(with_duckdb(export(hostile, tmp_path / "out.parquet"))) == 40
    assert not (tmp_path / "out.parquet.tmp").exists()
