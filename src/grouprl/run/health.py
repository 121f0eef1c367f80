"""Goes back to an earlier checkpoint after an explosion, once."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from grouprl.learner import Learner
from grouprl.models.save import not_finite
from grouprl.record.layout import Checkpoint, RunDirectory
from grouprl.record.write import RunRecord
from grouprl.report.health import Finding
from grouprl.report.terminal import Terminal
from grouprl.report.watch import WENT_BACK, Explosion
from grouprl.run.checkpoint import TrainerState
from grouprl.run.resume import newest_good


def broken_weight(learner: Learner) -> str | None:
    """The name of a weight of policy or critic that is not finite; None when all are."""
    return not_finite(learner.policy) or (None if learner.critic is None else not_finite(learner.critic))


def go_back(run: Path, explosion: Explosion, terminal: Terminal) -> tuple[Checkpoint, TrainerState] | None:
    """Returns the newest good checkpoint from before the explosion, None for the start model."""
    before = [saved for saved in RunDirectory(run).saved_models() if saved.step < explosion.step]
    saved = newest_good(before, terminal.say)
    terminal.say(f"Going back to {f'step {saved[0].step}' if saved else 'the start'}, once.")
    return saved


def record_going_back(record: RunRecord, finding: Finding, step: int) -> None:
    """Records that the run went back to `step`, so that a second explosion stops it, after a resume too."""
    sentence = f"{finding.sentence} The run went back to step {step}."
    record.warning(asdict(Finding(step, WENT_BACK, finding.metric, sentence, finding.setting)))
