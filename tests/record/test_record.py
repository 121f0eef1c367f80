"""The run directory: what goes in comes out, nothing is overwritten, and no crash leaves it unreadable."""

from __future__ import annotations

import json
import math
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import recorded_steps
from grouprl.files import read_json
from grouprl.record.files import atomic_directory, atomic_write_text, json_text
from grouprl.record.read import (
    Example,
    RecordedGroup,
    RecordedRewards,
    incomplete_steps,
    measure_of,
    read_json_lines,
    read_rewards,
    read_rollouts,
    read_run,
    rows_of,
)
from grouprl.record.rollouts import open_rollouts
from grouprl.record.write import RunRecord
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
from recorded_steps import ADVANTAGES, CHAT, CONFIG, OUTCOMES, PLAIN, SEEN, TRACES, completion, record_steps

SUPPORT = Path(recorded_steps.__file__).parent


def query(directory: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(directory / "rollouts.sqlite")) as database:
        return database.execute(sql).fetchall()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with RunRecord.create(tmp_path / "run", CONFIG) as record:
        record_steps(record, range(1, 4))
    return tmp_path / "run"


def test_rollouts_come_back_as_they_were(run: Path) -> None:
    plain, chat = read_rollouts(run, 2)
    assert plain == RecordedGroup(PLAIN, OUTCOMES[0], (1.0, -3.0), ADVANTAGES[0], TRACES[0])
    assert (chat.group, chat.traces) == (CHAT, TRACES[1])
    assert (chat.advantages, chat.token_advantages) == ((0.0, 0.0), ADVANTAGES[1])
    assert chat.outcomes[0] == OUTCOMES[1][0]
    assert not chat.outcomes[1].valid
    assert chat.outcomes[1].reason == "correct: timed out"
    assert read_rollouts(run, 99) == ()


def test_steps_of_a_completion_come_back(tmp_path: Path) -> None:
    stepped = RewardOutcome(1.5, {"equations": 0.5}, steps=(StepReward(1, 1.0), StepReward(2, 0.0)))
    with RunRecord.create(tmp_path / "run", CONFIG) as record:
        record.step(StepRecord(1, {}, (PLAIN,), ((stepped, OUTCOMES[0][1]),), ADVANTAGES[:1]))
    assert read_rollouts(tmp_path / "run", 1)[0].outcomes == (stepped, OUTCOMES[0][1])
    assert query(tmp_path / "run", "SELECT step_rewards FROM completions") == [("[[1, 1.0], [2, 0.0]]",), (None,)]


def test_what_was_earned_and_which_groups_were_kept_come_back(tmp_path: Path) -> None:
    # 0.3 - 0.7 + 0.7 is not 0.3: what was earned is recorded, not computed from the total.
    penalized = RewardOutcome(0.3, {"right": 0.3, "soft_overlong": -0.7})
    with RunRecord.create(tmp_path / "run", CONFIG) as record:
        outcomes = ((penalized, OUTCOMES[0][1]), OUTCOMES[1])
        record.step(StepRecord(1, {}, (PLAIN, CHAT), outcomes, ADVANTAGES, kept=[True, False]))
        record.step(StepRecord(2, {}, (PLAIN, CHAT), outcomes, ADVANTAGES))
    first, second = (read_rollouts(tmp_path / "run", step) for step in (1, 2))
    assert first[0].outcomes == (penalized, OUTCOMES[0][1])
    assert [group.kept for group in first] == [True, False]
    assert [group.kept for group in second] == [True, True]
    assert query(tmp_path / "run", "SELECT earned, kept FROM completions WHERE step = 1") == [
        (0.3, 1), (0.0, 1), (0.25, 0), (None, 0)
    ]  # fmt: skip


def test_rewards_come_back_with_their_kinds(run: Path, tmp_path: Path) -> None:
    with RunRecord.reopen(run, 3) as record:
        assert read_rewards(run) == RecordedRewards({}, {})
        record.rewards({"weights": 0.5}, {})
        assert read_rewards(run) == RecordedRewards({"weights": 0.5}, {})
        record.rewards({"right": 1.0}, {"steps": 0.25})
    assert read_rewards(run) == RecordedRewards({"right": 1.0}, {"steps": 0.25})
    for damaged in ('{"weights": 0.5}', '{"weights": {"right": "x"}, "process": {}}', '{"process": {"right": true}}'):
        (run / "rewards.json").write_text(damaged)
        with pytest.raises(UserError, match="expected the weight of each reward by its name"):
            read_rewards(run)


def test_blobs_are_little_endian_int32_and_float32(run: Path) -> None:
    ids, logprobs = query(run, "SELECT token_ids, logprobs FROM completions LIMIT 1")[0]
    assert ids == bytes([7, 0, 0, 0, 11, 0, 0, 0, 2, 0, 0, 0])
    assert logprobs == bytes.fromhex("000000bf000080be000040c0")


def test_log_probs_are_kept_to_float32(tmp_path: Path) -> None:
    odd = Completion(0, (1,), (-0.1,), (-math.pi,), "x", StopReason.END, 0)
    with RunRecord.create(tmp_path / "run", CONFIG) as record:
        record.step(StepRecord(1, {}, [Group(PLAIN.problem, (1,), (odd,))], [[OUTCOMES[0][0]]], [[[0.0]]]))
        (found,) = read_rollouts(tmp_path / "run", 1)[0].group.completions
    assert (found.logprobs, found.plain_logprobs) == ((float(np.float32(-0.1)),), (float(np.float32(-math.pi)),))


def test_views_answer_the_usual_questions(run: Path) -> None:
    assert query(run, "SELECT * FROM steps WHERE step = 2") == [(2, 2, 4, pytest.approx(1.75 / 3), 1, 3.0, 0.25)]
    groups = query(run, "SELECT problem_id, completions, valid, reward_mean, has_signal FROM groups WHERE step = 3")
    assert groups == [("train-1", 2, 2, 0.75, 1), ("train-2", 2, 1, 0.25, 0)]
    means = query(
        run, "SELECT name, AVG(reward), COUNT(reward) FROM rewards WHERE step = 1 GROUP BY name ORDER BY name"
    )
    assert means == [("boxed", 0.25, 2), ("correct", pytest.approx(1.25 / 3), 3)]
    assert query(run, "SELECT prompt, json_extract(columns, '$.answer') FROM problems ORDER BY 1") == [
        ("3 + 4 = ?", "7"),
        ("Think.\n9 - 1?", 8),
    ]


def test_a_problem_may_come_twice_in_a_step(tmp_path: Path) -> None:
    with RunRecord.create(tmp_path / "run", CONFIG) as record:
        record.step(StepRecord(1, {}, (PLAIN, PLAIN), (OUTCOMES[0],) * 2, (ADVANTAGES[0],) * 2))
    assert [found.group for found in read_rollouts(tmp_path / "run", 1)] == [PLAIN, PLAIN]


def test_columns_that_json_cannot_hold_are_kept_as_text(tmp_path: Path) -> None:
    given = {
        "where": Path("/data"),
        "broken": "\ud800",
        "odd": {3, 20, 1.5, "b", None},
        "nan": [math.nan, {"x": math.inf}],
    }
    problem = Problem("p", "?", given)
    with RunRecord.create(tmp_path / "run", CONFIG) as record:
        record.step(StepRecord(1, {}, [Group(problem, (), (completion(0, "x"),))], [[OUTCOMES[0][0]]], [[[0.0] * 3]]))
    assert read_rollouts(tmp_path / "run", 1)[0].group.problem.columns == {
        "where": "/data",
        "broken": "\ufffd",
        "odd": [1.5, 3, 20, None, "b"],
        "nan": [None, {"x": None}],
    }
    # SQLite's own reader is strict: it refuses NaN.
    assert query(tmp_path / "run", "SELECT json_extract(columns, '$.odd[2]') FROM problems") == [(20,)]


def test_half_a_surrogate_pair_anywhere_does_not_end_a_run(tmp_path: Path) -> None:
    half = "a\udc80b"
    problem = Problem(half, ({"role": "user", "content": half},), {half: half})
    invalid = RewardOutcome(math.nan, {half: None}, reason=half)
    with RunRecord.create(tmp_path / "run", CONFIG) as record:
        record.step(
            StepRecord(1, {half: 1.0}, [Group(problem, (), (completion(0, half),))], [[invalid]], [[[0.0] * 3]])
        )
        record.examples("before", [Example(half, half, half, half, None)])
        record.held_out(0, {"problem_ids": (half,)})
        record.summary({half: half})
    (found,) = read_rollouts(tmp_path / "run", 1)
    assert found.group.problem == Problem(
        "a\ufffdb", ({"role": "user", "content": "a\ufffdb"},), {"a\ufffdb": "a\ufffdb"}
    )
    assert found.group.completions[0].text == found.outcomes[0].reason == "a\ufffdb"
    assert found.group.completions[0].token_ids == (7, 11, 2)
    assert read_run(tmp_path / "run").examples["before"][0].completion == "a\ufffdb"
    assert read_run(tmp_path / "run").summary == {"a\ufffdb": "a\ufffdb"}


def test_what_does_not_fit_together_is_refused_and_nothing_kept(run: Path) -> None:
    with RunRecord.reopen(run, 3) as record:
        with pytest.raises(ValueError, match="zip"):
            record.step(StepRecord(4, {}, (PLAIN,), OUTCOMES, ADVANTAGES))
        with pytest.raises(ValueError, match="zip"):
            record.step(StepRecord(4, {}, (PLAIN,), (OUTCOMES[0][:1],), (ADVANTAGES[0],)))
        with pytest.raises(ValueError, match="a number for each of 3 tokens, got 2"):
            record.step(StepRecord(4, {}, (PLAIN,), OUTCOMES[:1], [[(1.0,) * 3, (1.0,) * 2]]))
        with pytest.raises(ValueError, match="a number for each of 3 tokens, got 1"):
            record.step(
                StepRecord(4, {}, (PLAIN,), OUTCOMES[:1], ADVANTAGES[:1], [[SEEN, TokenTrace(entropies=(1.0,))]])
            )
        with pytest.raises(sqlite3.IntegrityError):
            record_steps(record, range(3, 4))
    assert query(run, "SELECT DISTINCT step FROM completions") == [(1,), (2,), (3,)]
    assert [row["step"] for row in read_run(run).metrics] == [1, 2, 3]


def test_metrics_are_strict_json(tmp_path: Path) -> None:
    with RunRecord.create(tmp_path / "run", CONFIG) as record:
        record.step(StepRecord(1, {"kl": math.nan, "loss": -math.inf, "completion_tokens": 12}, (), (), ()))
        with pytest.raises(TypeError):
            record.step(StepRecord(2, {"kl": np.float32(1)}, (), (), ()))  # type: ignore[dict-item]
    line = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert json.loads(line, parse_constant=pytest.fail) == {
        "step": 1,
        "kl": None,
        "loss": None,
        "completion_tokens": 12,
    }
    found = read_run(tmp_path / "run")
    assert found.column("kl") == ([], [])
    assert found.column("completion_tokens") == ([1], [12.0])


def test_a_run_is_read_whole(run: Path) -> None:
    before, after = (Example("t1", "1 + 1?", "2", text, correct) for text, correct in (("3", False), ("2", True)))
    with RunRecord.reopen(run, 3) as record:
        record.evaluation(3, {"greedy_accuracy": 0.5, "greedy_interval": (0.4, 0.6)})
        record.examples("before", [before])
        record.examples("after", [before])
        record.examples("after", [after])
        for step in (10, 5):
            record.examples(f"step {step}", [after])
        record.summary({"steps": 3, "before": {"problems": 500}})
    found = read_run(run)
    assert found.config == CONFIG
    assert found.column("reward") == ([1, 2, 3], [0.25, 0.5, 0.75])
    assert found.evaluations == ({"step": 3, "greedy_accuracy": 0.5, "greedy_interval": [0.4, 0.6]},)
    assert list(found.examples) == ["before", "step 5", "step 10", "after"]
    assert (found.examples["before"], found.examples["after"]) == ((before,), (after,))
    assert found.results("before") == {"problems": 500}
    assert found.results("after") == {}
    path = run / "summary.json"
    path.write_text(json.dumps(read_json(path) | {"after": {"reward": None, "problems": 500}}))
    assert read_run(run).results("after") == {"problems": 500}
    path.write_text('{"after": [500]}')
    with pytest.raises(UserError, match="after: expected the results"):
        read_run(run)


def test_reopen_drops_what_came_later(run: Path) -> None:
    later = Group(Problem("train-9", "?", {}), (1,), (completion(0, "x"),))
    with RunRecord.reopen(run, 3) as record:
        record.evaluation(2, {"greedy_accuracy": 0.5})
        record.evaluation(4, {"greedy_accuracy": 0.6})
        record.step(StepRecord(4, {"reward": 9.0}, (later,), ((OUTCOMES[0][0],),), (((0.0,) * 3,),)))
    with RunRecord.reopen(run, 2) as record:
        record_steps(record, range(3, 4))
    found = read_run(run)
    assert found.column("reward") == ([1, 2, 3], [0.25, 0.5, 0.75])
    assert [row["step"] for row in found.evaluations] == [2]
    assert query(run, "SELECT step, COUNT(*) FROM completions GROUP BY step") == [(1, 4), (2, 4), (3, 4)]
    assert query(run, "SELECT problem_id FROM problems ORDER BY 1") == [("train-1",), ("train-2",)]


def test_a_torn_last_line_is_left_out_and_dropped_on_reopen(run: Path) -> None:
    whole = (run / "metrics.jsonl").read_text()
    with (run / "metrics.jsonl").open("ab") as lines:
        lines.write(b'{"step": 4, "reward": 0.\xc3')
    assert [row["step"] for row in read_run(run).metrics] == [1, 2, 3]
    RunRecord.reopen(run, 10).close()
    assert (run / "metrics.jsonl").read_text() == whole


def test_a_damaged_line_is_named_and_the_lock_let_go(run: Path) -> None:
    whole, failed = (run / "metrics.jsonl").read_text(), '{"state": "failed", "reason": "no memory", "step": 3}'
    (run / "metrics.jsonl").write_text(whole.replace('{"step": 2', "[2"))
    (run / "summary.json").write_text(failed)
    with pytest.raises(UserError, match=r"metrics.jsonl:2: expected JSON"):
        RunRecord.reopen(run, 3)
    assert (run / "summary.json").read_text() == failed
    (run / "metrics.jsonl").write_text(whole)
    RunRecord.reopen(run, 3).close()
    assert not (run / "summary.json").exists()


def test_a_step_is_whole_with_one_line_and_what_it_names(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with RunRecord.create(run, CONFIG) as record:
        for step in (1, 2, 3):
            metrics = {"groups/sampled": 2, "completion_tokens": 13 if step == 2 else 12}
            record.step(StepRecord(step, metrics, (PLAIN, CHAT), OUTCOMES, ADVANTAGES, TRACES))
    assert [incomplete_steps(run, until, evaluated=False) for until in (1, 2, 4)] == [(), (2,), (2, 4)]
    assert incomplete_steps(run, 1) == (0,)
    with (run / "metrics.jsonl").open("a") as lines:
        lines.write((run / "metrics.jsonl").read_text().splitlines()[2] + "\n")
    assert incomplete_steps(run, 4, evaluated=False) == (2, 3, 4)


@pytest.mark.parametrize(
    ("summary", "row", "measure"),
    [
        ({}, {"reward": 1.0}, "reward"),
        ({}, {"reward": 1.0, "greedy_accuracy": 0.5}, "greedy_accuracy"),
        ({"measure": "reward"}, {"greedy_accuracy": 0.5}, "reward"),
        ({}, {}, "greedy_accuracy"),
    ],
)
def test_what_measures_a_run(summary: dict[str, str], row: dict[str, float], measure: str) -> None:
    assert measure_of(summary, [row]) == measure


def test_lines_have_a_limit_numbers_and_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grouprl.record.read._MOST_LINES", 2)
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 0}}\n{{"step": {2**53 - 1}}}\n')
    assert [row["step"] for row in read_json_lines(path)] == [0, 2**53 - 1]
    for text, said in (
        ('{"step": 0}\n' * 3, "at most 2 lines"),
        (f'{{"step": {2**53}}}\n', "jsonl:1: expected a step"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=said):
            read_json_lines(path)
    with path.open("rb") as file, pytest.raises(UserError, match="jsonl:2: expected a step"):
        [*rows_of(file, path, first=2)]


def test_what_is_no_run_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a run directory"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(UserError, match="expected the rollouts of a run"):
        read_rollouts(tmp_path, 1)
    with pytest.raises(UserError, match="expected a run to resume"):
        RunRecord.reopen(tmp_path / "nowhere", 1)
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(UserError, match="expected a JSON object"):
        read_json(tmp_path / "list.json")
    assert read_json_lines(tmp_path / "none.jsonl") == ()


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from grouprl.record.write import RunRecord
from recorded_steps import CONFIG, record_steps
record_steps(RunRecord.create(Path(sys.argv[1]), CONFIG), range(1, 10**9))
"""


@pytest.mark.parametrize("attempt", range(3))
def test_a_killed_run_leaves_whole_steps_and_can_go_on(tmp_path: Path, attempt: int) -> None:
    directory = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", KILLED, str(directory), str(SUPPORT)]) as writer:
        try:
            while len(read_json_lines(directory / "metrics.jsonl")) < 5:
                assert writer.poll() is None
                time.sleep(0.01)
            time.sleep(0.017 * attempt)
        finally:
            writer.send_signal(signal.SIGKILL)
    assert query(directory, "PRAGMA integrity_check") == [("ok",)]
    assert query(directory, "SELECT DISTINCT COUNT(*) FROM completions GROUP BY step") == [(4,)]
    last = read_run(directory).metrics[-1]["step"]
    assert read_rollouts(directory, last)[0].group == PLAIN
    with RunRecord.reopen(directory, last) as record:
        record_steps(record, range(last + 1, last + 2))
    assert [row["step"] for row in read_run(directory).metrics] == list(range(1, last + 2))


@pytest.mark.slow
def test_rollouts_can_be_read_while_the_run_writes(run: Path) -> None:
    with RunRecord.reopen(run, 3) as record, closing(sqlite3.connect(run / "rollouts.sqlite")) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT MAX(step) FROM completions").fetchone() == (3,)
        record_steps(record, range(4, 5))
        reader.execute("COMMIT")
        assert reader.execute("SELECT MAX(step) FROM completions").fetchone() == (4,)
        record.close()  # a reader that stays does not hinder the end of a run
    assert len(read_rollouts(run, 4)) == 2


def test_a_finished_run_is_one_plain_database_file(run: Path) -> None:
    assert query(run, "PRAGMA journal_mode") == [("delete",)]
    assert sorted(path.name for path in run.glob("rollouts*")) == ["rollouts.sqlite"]


def test_without_shared_memory_the_database_still_works(tmp_path: Path) -> None:
    # This way of locking has no shared memory, like a network file system.
    with closing(open_rollouts(f"file:{tmp_path}/rollouts.sqlite?vfs=unix-dotfile")) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("truncate",)
        assert database.execute("SELECT COUNT(*) FROM steps").fetchone() == (0,)


def test_a_run_directory_may_have_any_name(tmp_path: Path) -> None:
    directory = tmp_path / "a #1? 100% ü"
    with RunRecord.create(directory, CONFIG) as record:
        record_steps(record, range(1, 2))
    assert len(read_rollouts(directory, 1)) == 2


def test_atomic_text_replaces_whole_files_only(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    atomic_write_text(path, "ü\n")
    with pytest.raises(UnicodeEncodeError):
        atomic_write_text(path, "half" + "\ud800")
    assert path.read_bytes() == b"\xc3\xbc\n"


def fail_in_the_middle(target: Path, error: BaseException) -> None:
    with atomic_directory(target) as folder:
        (folder / "other").write_text("half")
        raise error


def test_atomic_directory_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "checkpoints" / "step-000100"
    with pytest.raises(KeyboardInterrupt):
        fail_in_the_middle(target, KeyboardInterrupt())
    assert list(target.parent.iterdir()) == []
    with atomic_directory(target) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "model").write_text("first")
        assert not target.exists()
    with pytest.raises(ValueError, match="stop"):
        fail_in_the_middle(target, ValueError("stop"))
    assert (target / "deep" / "model").read_text() == "first"
    with atomic_directory(target) as folder:
        (folder / "model").write_text("second")
        assert (target / "deep" / "model").read_text() == "first"
    assert [path.name for path in target.parent.iterdir()] == ["step-000100"]
    assert [path.name for path in target.iterdir()] == ["model"]


def test_leftovers_of_a_crash_do_not_get_into_a_new_directory(tmp_path: Path) -> None:
    (tmp_path / "c.tmp").mkdir()
    (tmp_path / "c.tmp" / "junk").write_text("old")
    with atomic_directory(tmp_path / "c") as folder:
        (folder / "model").write_text("new")
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["model"]


def test_json_text_goes_all_the_way_down() -> None:
    assert json_text({"a": [1.5, math.nan, {"b": (math.inf, "ü")}]}) == '{"a": [1.5, null, {"b": [null, "ü"]}]}'
