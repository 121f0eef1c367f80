"""The questions of the documentation, as they stand there, asked of a real run."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from grouprl.record.read import RecordedGroup, read_json_lines, read_rollouts
from grouprl.record.write import RunRecord
from grouprl.tools.export import export
from grouprl.types import Completion, Group, Problem, RewardOutcome, StepRecord, StopReason
from small_runs import grouprl, small_settings

duckdb = pytest.importorskip("duckdb")
parquet = pytest.importorskip("pyarrow.parquet")

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [sql for page in PAGES for sql in re.findall(r"^```sql\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)]
QUERIES = [sql for sql in BLOCKS if ".parquet" in sql]

REWARDS = '''
def picky(prompts, completions, completion_ids, **columns):
    """Half a point for a long text; cannot judge one whose length is a multiple of 5."""
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    if any(len(text) % 5 == 0 for text in texts):
        raise ValueError("a multiple of 5")
    return [0.5 * (len(text) > 40) for text in texts]
'''


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of the bundled model in which problems are learned, and a reward often fails."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "rewards.py").write_text(REWARDS)
    settings = small_settings(
        folder,
        steps=6,
        task={"name": "word_problems", "train_problems": 8},
        rollout={
            "problems_per_step": 8,
            "group_size": 3,
            "max_tokens": 48,
            "scoring": {"max_invalid": 1.0, "workers": 1},
        },
        learner={"learning_rate": 0.001},
        evaluation={"problems": 1, "samples": 0},
        rewards=[{"name": "correct_answer"}, {"name": "picky", "path": str(folder / "rewards.py")}],
    )
    ended = grouprl("train", "--name", "run", *settings)
    assert ended.code == 0, ended.text
    return folder / "run"


def answers(sql: str, run: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What a query of the documentation gives, of the run in place of the one it names."""
    (place,) = set(re.findall(r"'([^']+/rollouts\.parquet)'", sql))
    monkeypatch.chdir(folder)
    if not Path(place).exists():
        export(run, Path(place))
    return list(duckdb.sql(sql).fetchall())


def recorded(run: Path) -> list[tuple[int, RecordedGroup]]:
    steps = [row["step"] for row in read_json_lines(run / "metrics.jsonl")]
    return [(step, group) for step in steps for group in read_rollouts(run, step)]


def test_the_documentation_asks_three_questions() -> None:
    assert len(QUERIES) >= 3, "expected three ```sql blocks on a .parquet in README.md and docs/"


def test_from_hopeless_to_solved(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (sql,) = [sql for sql in QUERIES if "hopeless_at" in sql]
    visits: dict[str, list[tuple[int, list[bool | None], str]]] = defaultdict(list)
    for step, found in recorded(trained):
        said = [outcome.correct for outcome in found.outcomes]
        visits[found.group.problem.id].append((step, said, found.group.problem.prompt_text))
    expected = [
        (name, seen[0][0], seen[-1][0], seen[0][2])
        for name, seen in visits.items()
        if not any(seen[0][1]) and all(seen[-1][1])
    ]
    assert expected
    assert answers(sql, trained, tmp_path, monkeypatch) == sorted(expected, key=lambda row: (row[2], row[0]))


def test_wrong_completions_that_earned_most(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (sql,) = [sql for sql in QUERIES if "WHERE NOT correct" in sql]
    wrong = [
        (outcome, step, found.group.problem.id, completion.text)
        for step, found in recorded(trained)
        for outcome, completion in zip(found.outcomes, found.group.completions, strict=True)
        if outcome.correct is False
    ]
    wrong.sort(key=lambda row: -math.inf if not row[0].valid else row[0].total, reverse=True)
    expected = [
        (outcome.total if outcome.valid else None, dict(outcome.components), *rest) for outcome, *rest in wrong[:20]
    ]
    assert len(expected) > 3
    assert answers(sql, trained, tmp_path, monkeypatch) == expected


def test_what_rewards_could_not_judge(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (sql,) = [sql for sql in QUERIES if "invalid_reason IS NOT NULL" in sql]
    texts: dict[tuple[int, str], list[str]] = defaultdict(list)
    for step, found in recorded(trained):
        for outcome, completion in zip(found.outcomes, found.group.completions, strict=True):
            if not outcome.valid:
                texts[step, outcome.reason].append(completion.text)
    expected = [(step, "picky", reason, len(found), min(found)[:60]) for (step, reason), found in texts.items()]
    assert expected
    found = answers(sql, trained, tmp_path, monkeypatch)
    assert found == sorted(expected, key=lambda row: (-row[3], row[0], row[2]))


def test_what_no_reward_applies_to_is_laid_to_no_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (sql,) = [sql for sql in QUERIES if "invalid_reason IS NOT NULL" in sql]
    reasons = ("no reward applies", "picky raised ValueError: no", "no reward applies", "no gave nan; picky gave nan")
    completions = tuple(Completion(n, (1,), (0.0,), (0.0,), f"text {n}", StopReason.END, 0) for n in range(4))
    outcomes = [RewardOutcome(math.nan, {"picky": None}, reason) for reason in reasons]
    with RunRecord.create(tmp_path / "run", "task: x\n") as record:
        record.step(StepRecord(1, {}, [Group(Problem("p", "?", {}), (1,), completions)], [outcomes], [[[0.0]] * 4]))
    assert answers(sql, tmp_path / "run", tmp_path, monkeypatch) == [
        (1, None, "no reward applies", 2, "text 0"),
        (1, "no", "no gave nan; picky gave nan", 1, "text 3"),
        (1, "picky", "picky raised ValueError: no", 1, "text 1"),
    ]


def test_the_pass_rates_of_the_documentation(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "evidence.md").read_text("utf-8"), re.M | re.S)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "demo").symlink_to(trained)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/evidence.md", "exec"), {})
    assert len(re.findall(r"^\S+: \d+%, between \d+% and \d+% with", capsys.readouterr().out, re.M)) == 8
