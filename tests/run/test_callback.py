"""The callback of a `Trainer`: a plain function of each step's frozen record."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from grouprl import StepRecord, Trainer, WeightedReward
from letter_rewards import letters
from small_runs import ROWS, assert_same_run, rollouts, small_config

pytestmark = pytest.mark.usefixtures("no_page")
REWARDS = [WeightedReward("letters", letters)]


def test_a_callback_gets_each_step_after_it_is_recorded(tiny: Path, tmp_path: Path) -> None:
    got: list[StepRecord] = []

    def follow(record: StepRecord) -> None:
        row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
        assert row == {"step": record.step, **record.metrics}, "recorded before the call"
        with pytest.raises(FrozenInstanceError):
            record.step = 7  # type: ignore[misc]
        got.append(record)

    Trainer(tiny, ROWS, REWARDS, config=small_config(tmp_path, steps=3), callback=follow).train()
    assert [record.step for record in got] == [1, 2, 3]
    texts = [one.text for record in got for group in record.groups for one in group.completions]
    assert texts == [text for (text,) in rollouts(tmp_path / "run", "SELECT text FROM completions ORDER BY rowid")]


def test_an_exception_in_a_callback_stops_the_run_which_can_be_resumed(tiny: Path, tmp_path: Path) -> None:
    def fail(record: StepRecord) -> None:
        if record.step == 3:
            raise ZeroDivisionError("mine")

    saving = {"steps": 4, "checkpoint": {"every": 2}}
    config = small_config(tmp_path, **saving)
    with pytest.raises(ZeroDivisionError, match="mine") as raised:
        Trainer(tiny, ROWS, REWARDS, config=config, callback=fail).train()
    assert raised.traceback[-1].name == "fail"
    resumed = Trainer(tiny, ROWS, REWARDS, config=config).train(resume=True)
    straight = Trainer(tiny, ROWS, REWARDS, config=small_config(tmp_path, "straight", **saving)).train()
    assert_same_run(resumed.directory, straight.directory, step=4)
