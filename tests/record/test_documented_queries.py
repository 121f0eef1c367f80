"""The questions of the documentation, as they stand there, asked of a run whose answers are known."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from grouprl.record.write import RunRecord
from grouprl.tools.export import export
from grouprl.types import Problem, RewardOutcome, StepRecord
from groups import group_of

duckdb = pytest.importorskip("duckdb")
pytest.importorskip("pyarrow.parquet")

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [sql for page in PAGES for sql in re.findall(r"^```sql\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)]
QUERIES = [sql for sql in BLOCKS if ".parquet" in sql]


def outcome(total: float, *, correct: bool | None = None, reason: str = "") -> RewardOutcome:
    return RewardOutcome(total, {"picky": None if math.isnan(total) else total}, reason, correct=correct)


RIGHT, WRONG = outcome(1.0, correct=True), outcome(0.0, correct=False)
PAID, HALF = outcome(0.5, correct=False), outcome(0.25, correct=False)
# Problem -> its outcomes at each step: learned, forgotten, never known, half known, and invalid.
STEPS = (
    {"p1": (WRONG, PAID), "p2": (RIGHT, RIGHT), "p3": (WRONG, WRONG), "p4": (RIGHT, HALF)},
    {"p1": (RIGHT, RIGHT), "p2": (WRONG, WRONG), "p3": (WRONG, WRONG), "p4": (RIGHT, RIGHT)},
    {"p5": (outcome(math.nan, reason="no reward applies"),) * 2},
)
EXPECTED: dict[str, list[tuple[Any, ...]]] = {
    "hopeless_at": [("p1", 1, 2, "p1?")],
    "WHERE NOT correct": [
        (0.5, {"picky": 0.5}, 1, "p1", "text 1"),
        (0.25, {"picky": 0.25}, 1, "p4", "text 1"),
        *(
            (0.0, {"picky": 0.0}, 1, name, text)
            for name, text in (("p1", "text 0"), ("p3", "text 0"), ("p3", "text 1"))
        ),
        *((0.0, {"picky": 0.0}, 2, name, text) for name in ("p2", "p3") for text in ("text 0", "text 1")),
    ],
}


@pytest.fixture(autouse=True)
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run in place of the one that the documentation names."""
    monkeypatch.chdir(tmp_path)
    with RunRecord.create(tmp_path / "runs" / "demo", "task: x\n") as record:
        for step, outcomes in enumerate(STEPS, 1):
            texts = {name: [f"text {n}" for n in range(len(row))] for name, row in outcomes.items()}
            groups = [group_of(Problem(name, f"{name}?"), *texts[name]) for name in outcomes]
            zeros = [[[0.0, 0.0] for _ in row] for row in outcomes.values()]
            record.step(StepRecord(step, {}, groups, list(outcomes.values()), zeros))
    return tmp_path / "runs" / "demo"


@pytest.mark.parametrize("part", EXPECTED)
def test_a_question_has_its_answer(demo: Path, part: str) -> None:
    (sql,) = [sql for sql in QUERIES if part in sql]
    (place,) = set(re.findall(r"'([^']+/rollouts\.parquet)'", sql))
    export(demo, Path(place))
    assert list(duckdb.sql(sql).fetchall()) == EXPECTED[part]
