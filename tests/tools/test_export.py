"""A run as Parquet: DuckDB and pyarrow read back what was recorded, and a kill leaves no half of it."""

from __future__ import annotations

import json
import math
import signal
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from grouprl.record.read import RecordedGroup, read_rollouts
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
        record.step(StepRecord(3, {}, groups[::-1], outcomes[::-1], [((0.1, 0.1), (0.0,))] * len(groups)))
    return tmp_path / "hostile"


def regrouped(rows: list[dict[str, Any]]) -> dict[int, tuple[RecordedGroup, ...]]:
    """Recorded groups by step, from the rows of an export."""
    steps: dict[int, list[RecordedGroup]] = defaultdict(list)
    for (step, _), group in groupby(rows, key=lambda row: (row["step"], row["group_index"])):
        members = list(group)
        head = members[0]
        prompt = head["prompt"] if head["messages"] is None else tuple(json.loads(head["messages"]))
        problem = Problem(head["problem_id"], prompt, json.loads(head["columns"]))
        steps[step].append(
            RecordedGroup(
                Group(problem, tuple(head["prompt_ids"]), tuple(map(completion_of, members))),
                tuple(map(outcome_of, members)),
                tuple(row["advantage"] for row in members),
                tuple(
                    (row["advantage"],) * row["length"] if (own := row["token_advantages"]) is None else tuple(own)
                    for row in members
                ),
                tuple(map(trace_of, members)),
            )
        )
    return {step: tuple(groups) for step, groups in steps.items()}


def trace_of(row: Mapping[str, Any]) -> TokenTrace:
    names = ("learner_logprobs", "entropies", "reference_logprobs", "updated_logprobs")
    return TokenTrace(*(None if row[name] is None else tuple(row[name]) for name in names))


def completion_of(row: Mapping[str, Any]) -> Completion:
    return Completion(
        row["completion_index"],
        tuple(row["token_ids"]),
        tuple(row["logprobs"]),
        tuple(row["plain_logprobs"]),
        row["text"],
        StopReason(row["stop_reason"]),
        row["weights_version"],
    )


def outcome_of(row: Mapping[str, Any]) -> RewardOutcome:
    return RewardOutcome(
        math.nan if row["reward"] is None else row["earned"],
        dict(row["rewards"]),
        row["invalid_reason"] or "",
        tuple(StepReward(step["end"], step["reward"]) for step in row["step_rewards"] or ()),
        row["correct"],
        dict(row["rewards"]).get("soft_overlong") or 0.0,
    )


def with_duckdb(path: Path) -> list[dict[str, Any]]:
    found = duckdb.execute("SELECT * FROM read_parquet(?)", [str(path)])
    names = [name for name, *_ in found.description]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def with_pyarrow(path: Path) -> list[dict[str, Any]]:
    return list(parquet.read_table(path).to_pylist())


def comparable(groups: tuple[RecordedGroup, ...]) -> str:
    return repr(groups)  # NaN differs from itself, its text does not; and no digit of any number is lost


@pytest.mark.parametrize("read", [with_duckdb, with_pyarrow])
def test_an_export_holds_exactly_what_was_recorded(
    hostile: Path, tmp_path: Path, read: Callable[[Path], list[dict[str, Any]]]
) -> None:
    out = export(hostile, tmp_path / "deep" / "rollouts.parquet")
    found = regrouped(read(out))
    assert list(found) == [1, 3]
    for step, groups in found.items():
        assert comparable(groups) == comparable(read_rollouts(hostile, step))
    assert found[1][2].group.completions[0].text == "before\0after"
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
    found = regrouped([row for index in range(file.num_row_groups) for row in file.read_row_group(index).to_pylist()])
    assert comparable(found[3]) == comparable(read_rollouts(hostile, 3))


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


def test_what_goes_wrong_in_the_middle_leaves_nothing(
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
