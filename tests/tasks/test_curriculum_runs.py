"""The curriculum of whole runs: the visits of a resumed run, and the metrics of its pass rates."""

from __future__ import annotations

from pathlib import Path

import pytest

from grouprl.record.read import read_run
from grouprl.record.rollouts import recorded_verdicts
from grouprl.tasks.curriculum import PassRates, curriculum_metrics, update
from small_runs import as_killed, assert_same_run, grouprl, rollouts, small_settings

pytestmark = pytest.mark.usefixtures("no_page")


@pytest.mark.slow
def test_a_resumed_run_visits_the_same_problems_as_a_whole_one(tmp_path: Path) -> None:
    settings = small_settings(
        tmp_path,
        task={"name": "word_problems", "train_problems": 12},
        rollout={
            "problems_per_step": 4,
            "group_size": 3,
            "max_tokens": 32,
            "curriculum": {"order": "edge", "floor": 0.3},
        },
        learner={"learning_rate": 0.001},
        algorithm="dapo",  # drops groups without signal, and refills
        evaluation={"problems": 1, "samples": 0},
        checkpoint={"every": 2, "keep": 2},
        steps=4,
    )
    assert grouprl("train", *settings, "--name", "whole").code == 0
    as_killed(tmp_path / "whole", tmp_path / "broken", after=2)
    assert grouprl("train", "--resume", "--name", "broken", f"runs_dir={tmp_path}").code == 0
    assert_same_run(tmp_path / "whole", tmp_path / "broken", 4)
    last = read_run(tmp_path / "whole").metrics[-1]
    known = update(PassRates(), recorded_verdicts(tmp_path / "whole", until=4))
    assert {name: value for name, value in last.items() if name.startswith("curriculum/")} == curriculum_metrics(known)
    assert last["curriculum/seen"] > 4
    groups = rollouts(tmp_path / "whole", "SELECT step, COUNT(*), COUNT(DISTINCT problem_id) FROM groups GROUP BY step")
    assert all(different == min(count, 12) for _, count, different in groups)
    assert max(count for _, count, _ in groups) > 4  # there were refills
