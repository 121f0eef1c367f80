"""Goes back to an earlier checkpoint after an explosion, once."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

from grouprl.learner import Learner
from grouprl.models.save import not_finite
from grouprl.record.layout import Checkpoint, RunDirectory
from grouprl.record.write import RunRecord
from grouprl.report.health import Finding
from grouprl.report.terminal import Terminal
from grouprl.report.watch import WENT_BACK, Explosion
from grouprl.run.checkpoint import TrainerState, latest_checkpoint


def broken_weight(learner: Learner) -> str | None:
    """The name of a weight of policy or critic that is not finite; None when all are."""
    return not_finite(learner.policy) or (None if learner.critic is None else not_finite(learner.critic))


def go_back(run: Path, explosion: Explosion, terminal: Terminal) -> tuple[Checkpoint, TrainerState] | None:
    """Removes the checkpoints of exploded weights; returns the newest of the others, None for the start model."""
    for checkpoint in RunDirectory(run).checkpoints():
        if checkpoint.step >= explosion.step:
            shutil.rmtree(checkpoint.path)
    saved = latest_checkpoint(run) if RunDirectory(run).checkpoints() else None
    terminal.say(f"Going back to {f'step {saved[0].step}' if saved else 'the start'}, once.")
    return saved


def record_going_back(record: RunRecord, finding: Finding, step: int) -> None:
    """Records that the run went back to `step`, so that a second explosion stops it, after a resume too."""
    sentence = f"{finding.sentence} The run went back to step {step}."
    record.warning(asdict(Finding(step, WENT_BACK, finding.metric, sentence, finding.setting)))
