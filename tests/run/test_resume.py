"""What a resume starts from: a good checkpoint and a whole record, or an error that says how to continue."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from grouprl import UserError
from grouprl.config.run import RunConfig, dump_config
from grouprl.forward.devices import resolve_device
from grouprl.models.load import load_model
from grouprl.models.manifest import MANIFEST
from grouprl.record.layout import RunDirectory
from grouprl.record.read import incomplete_steps, read_json_lines, read_rollouts
from grouprl.record.write import RunRecord
from grouprl.run.resume import check_resumable, newest_good
from small_runs import assert_same_run, assert_same_weights, checkpoint_names, metrics, small_config, small_run, tree

SIX = {"checkpoint": {"every": 2, "keep": 9}, "evaluation": {"every": 2, "problems": 3, "samples": 2}}


def train(model: Path, config: RunConfig, *, resume: bool = False, step: int | None = None) -> Path:
    return small_run(model, config, resume=resume, step=step).directory


@pytest.fixture(scope="module")
def whole(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny, small_config(tmp_path_factory.mktemp("whole"), **SIX))


@pytest.fixture
def stopped(whole: Path, tmp_path: Path) -> Path:
    """The run as a kill left it after its last checkpoint, before the last evaluation."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    (run / "summary.json").unlink()
    lines = (run / "evaluations.jsonl").read_text().splitlines()
    (run / "evaluations.jsonl").write_text("".join(f"{line}\n" for line in lines[:-1]))
    return run


def resumed(tiny: Path, run: Path, *, step: int | None = None) -> Path:
    return train(tiny, small_config(run.parent, **SIX), resume=True, step=step)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


DAMAGES: list[tuple[str, Callable[[Path], object]]] = [
    ("model.safetensors", flip),
    ("trainer/optimizer.safetensors", lambda path: os.truncate(path, 100)),
    ("trainer/state.json", Path.unlink),
    ("adapter_config.json", lambda path: path.write_text("{}")),  # a file that was added
    (MANIFEST, Path.unlink),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES, ids=[f"{n} {name}" for n, (name, _) in enumerate(DAMAGES)])
def test_a_damaged_checkpoint_is_skipped_with_a_message(
    stopped: Path, name: str, damage: Callable[[Path], object]
) -> None:
    damage(RunDirectory(stopped).checkpoint(6).path / name)
    chosen, said = newest_good(stopped, announce=(sentences := list[str]()).append), " ".join(sentences)
    assert chosen is not None
    assert chosen[0].step == chosen[1].step == 4
    assert re.search("The run skips a damaged checkpoint.*step-000006.*The run continues from .*step-000004", said)


def test_a_run_without_its_last_checkpoint_is_made_again_from_the_one_before(
    stopped: Path, whole: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(RunDirectory(stopped).checkpoint(6).path / "model.safetensors")
    resumed(tiny, stopped)
    assert "The run skips a damaged checkpoint" in " ".join(capsys.readouterr().out.split())
    assert_same_run(whole, stopped)
    assert "step-000006.aside" in checkpoint_names(stopped)


def test_without_a_good_checkpoint_nothing_is_touched(stopped: Path, tiny: Path) -> None:
    for checkpoint in RunDirectory(stopped).checkpoints():
        flip(checkpoint.path / "model.safetensors")
    before = tree(stopped)
    with pytest.raises(UserError, match=r"expected an undamaged checkpoint, got none: .*step-000006.*step-000002"):
        resumed(tiny, stopped)
    assert tree(stopped) == before


def test_a_damaged_checkpoint_is_no_model_either(stopped: Path, tmp_path: Path) -> None:
    folder = RunDirectory(stopped).checkpoint(6).path
    load_model(str(folder), device=resolve_device("cpu"))
    flip(folder / "model.safetensors")
    with pytest.raises(UserError, match=r"model.safetensors of [0-9]+ bytes with SHA-256"):
        load_model(str(folder), device=resolve_device("cpu"))
    (folder / MANIFEST).unlink()  # the folder of somebody who changed the model on purpose
    load_model(str(folder), device=resolve_device("cpu"))


def test_the_manifest_is_what_sha256sum_says(stopped: Path) -> None:
    folder = RunDirectory(stopped).checkpoint(6).path
    entries = json.loads((folder / MANIFEST).read_text())["files"]
    assert set(entries) == {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {MANIFEST}
    printed = subprocess.run(["sha256sum", *entries], cwd=folder, capture_output=True, text=True, check=True).stdout
    assert {line.split()[1]: line.split()[0] for line in printed.splitlines()} == {
        name: entry["sha256"] for name, entry in entries.items()
    }
    assert all((folder / name).stat().st_size == entry["bytes"] for name, entry in entries.items())


def lose_lines(run: Path, *steps: int) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines if json.loads(line)["step"] not in steps))


def lose_rows(run: Path, which: str) -> None:
    with closing(sqlite3.connect(run / "rollouts.sqlite")) as database, database:
        database.execute(f"DELETE FROM completions WHERE {which}")


GAPS: list[tuple[str, Callable[[Path], object], list[int], int]] = [
    ("lines", lambda run: lose_lines(run, 3), [3], 2),
    ("a step of rollouts", lambda run: lose_rows(run, "step = 5"), [5], 4),
    ("one completion", lambda run: lose_rows(run, "step = 1 AND group_index = 1 AND completion_index = 3"), [1], 0),
    ("rollouts.sqlite", lambda run: (run / "rollouts.sqlite").unlink(), [1, 2, 3, 4, 5, 6], 0),
    ("evaluations.jsonl", lambda run: (run / "evaluations.jsonl").unlink(), [0], 0),
]


@pytest.mark.parametrize(("lose", "steps", "back"), [gap[1:] for gap in GAPS], ids=[gap[0] for gap in GAPS])
def test_a_record_with_a_gap_is_an_error_that_says_how_to_continue(
    stopped: Path, whole: Path, tiny: Path, lose: Callable[[Path], object], steps: list[int], back: int
) -> None:
    assert incomplete_steps(stopped, 6) == ()
    lose(stopped)
    assert incomplete_steps(stopped, 6) == tuple(steps)
    before = tree(stopped)
    with pytest.raises(UserError, match=rf"lacks all or a part of steps {steps[0]}.* --resume --step {back} "):
        resumed(tiny, stopped)
    assert tree(stopped) == before
    if steps in ([3], [1, 2, 3, 4, 5, 6]):  # from a checkpoint, and from the start
        resumed(tiny, stopped, step=back)
        assert_same_run(whole, stopped)


def test_lost_checkpoints_are_no_reason_to_start_again(stopped: Path, tiny: Path) -> None:
    shutil.rmtree(stopped / "checkpoints")
    with pytest.raises(UserError, match=r"records 6 steps and saved every 2, found none: .* --resume --step 0"):
        resumed(tiny, stopped)


def test_a_checkpoint_can_be_chosen(stopped: Path, whole: Path, tiny: Path) -> None:
    with pytest.raises(UserError, match="--step: expected one of the checkpoints 2, 4, 6, or 0, got 3"):
        resumed(tiny, stopped, step=3)
    resumed(tiny, stopped, step=2)
    assert_same_run(whole, stopped)
    aside = ["step-000004.aside", "step-000006.aside"]
    assert checkpoint_names(stopped) == ["step-000002", "step-000004", *aside[:1], "step-000006", *aside[1:]]


def test_an_evaluation_that_a_kill_ended_is_made_again(stopped: Path, whole: Path, tiny: Path) -> None:
    """Killed after the checkpoint of step 4, before its evaluation was recorded."""
    shutil.rmtree(RunDirectory(stopped).checkpoint(6).path)
    lines = (stopped / "evaluations.jsonl").read_text().splitlines()
    (stopped / "evaluations.jsonl").write_text("".join(f"{line}\n" for line in lines if '"step": 4' not in line))
    resumed(tiny, stopped)
    assert (stopped / "evaluations.jsonl").read_text() == (whole / "evaluations.jsonl").read_text()


def test_results_of_an_evaluation_that_a_kill_ended_are_dropped(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "held_out.jsonl").unlink()
    with RunRecord.reopen(tmp_path / "run", 6) as record:
        record.held_out(4, {"problem_ids": ["a"]})
        record.held_out(5, {"problem_ids": ["b"]})  # no evaluation of step 5 was recorded
    RunRecord.reopen(tmp_path / "run", 6).close()
    assert [row["step"] for row in read_json_lines(tmp_path / "run" / "held_out.jsonl")] == [4]


def test_the_lock_is_taken_before_the_checkpoint_is_read(stopped: Path, tiny: Path) -> None:
    """Another process has the run and is about to save: nothing of it may be read before the lock is free."""
    code = (
        "import sys, time; from pathlib import Path; from grouprl.record.layout import lock_directory; "
        "lock_directory(Path(sys.argv[1])); print('locked', flush=True); time.sleep(60)"
    )
    for checkpoint in RunDirectory(stopped).checkpoints():
        flip(checkpoint.path / "model.safetensors")  # reading one would be the first error
    with subprocess.Popen([sys.executable, "-c", code, stopped], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(UserError, match=f"run directory in use by process {holder.pid}"):
            resumed(tiny, stopped)
        holder.kill()


def test_a_copy_with_another_name_and_step_1000000_are_never_removed_for_new_ones(
    stopped: Path, tiny: Path, tmp_path: Path
) -> None:
    folder = RunDirectory(stopped).checkpoint(2).path
    for name in ("step-best-000002", "step-2", "step-000004.bak"):
        shutil.copytree(folder, folder.with_name(name))
    config = small_config(tmp_path, **{**SIX, "checkpoint": {"every": 2, "keep": 1}})
    train(tiny, config, resume=True)
    assert checkpoint_names(stopped) == ["step-000004.bak", "step-000006", "step-2", "step-best-000002"]
    assert RunDirectory(tmp_path).checkpoint(1_000_000).path.name == "step-1000000"


def test_rollouts_with_a_hot_journal_can_be_read(whole: Path, tmp_path: Path) -> None:
    """A kill in the last moment of a run leaves a journal that has to be rolled back."""
    run, source = tmp_path / "hot", tmp_path / "source"
    for folder in (run, source):
        shutil.copytree(whole, folder)
    with closing(sqlite3.connect(source / "rollouts.sqlite", isolation_level=None)) as database:
        database.execute("PRAGMA cache_size=2")  # so that pages are written to the file before the end
        database.execute("BEGIN")
        database.execute("UPDATE completions SET text = text || ?", ("x" * 5000,))
        for name in ("rollouts.sqlite", "rollouts.sqlite-journal"):
            shutil.copy(source / name, run / name)
    assert (run / "rollouts.sqlite").read_bytes() != (whole / "rollouts.sqlite").read_bytes()
    assert read_rollouts(run, 6) == read_rollouts(whole, 6)


@pytest.mark.parametrize(
    ("learner", "change", "words"),
    [
        (
            {"schedule": "linear"},
            "steps",
            "with learner.schedule=linear the learning rate of each step depends on steps",
        ),
        (
            {"warmup_steps": 0.1},
            "steps",
            "with learner.warmup_steps=0.1 the learning rate of each step depends on steps",
        ),
        ({"schedule": "linear"}, "seed", None),
    ],
)
def test_more_steps_are_refused_with_the_setting_that_forbids_them(
    tmp_path: Path, learner: dict[str, Any], change: str, words: str | None
) -> None:
    config = small_config(tmp_path, learner=learner)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(dump_config(config))
    with pytest.raises(UserError, match=f"{change}: ") as refused:
        check_resumable(tmp_path / "run", config.model_copy(update={change: 9}))
    assert words is None or words in str(refused.value)
    assert words is not None or "depends on steps" not in str(refused.value)


def test_a_run_without_evaluations_is_resumed(tiny: Path, tmp_path: Path) -> None:
    unevaluated = {"evaluation": {"problems": 0}}
    whole = train(tiny, small_config(tmp_path / "whole", steps=4, **unevaluated))
    run = train(tiny, small_config(tmp_path, steps=2, **unevaluated))
    assert incomplete_steps(run, 2, evaluated=False) == ()
    assert train(tiny, small_config(tmp_path, steps=2, **unevaluated), resume=True) == run  # it has all of its steps
    train(tiny, small_config(tmp_path, steps=4, **unevaluated), resume=True)
    assert_same_weights(*(one / "checkpoints/step-000004" for one in (whole, run)))
    assert metrics(whole) == metrics(run)
