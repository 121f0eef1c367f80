"""Goes back to an earlier checkpoint after an explosion, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from grouprl.learner import Learner
from grouprl.models.save import not_finite
from grouprl.record.layout import Checkpoint, RunDirectory
from grouprl.record.write import RunRecord
from grouprl.run.checkpoint import TrainerState
from grouprl.run.findings import Finding
from grouprl.run.resume import newest_good
from grouprl.run.terminal import Terminal
from grouprl.run.watch import WENT_BACK, Explosion, Health


def look_on_all(health: Health, step: int, metrics: Mapping[str, float], learner: Learner) -> None:
    """Rank 0 looks at a step: see `Health.after`. The `Explosion` that it finds is raised on every rank."""
    networks = [learner.policy, *([learner.critic.critic] if learner.critic is not None else [])]
    own = not_finite(chain.from_iterable(network.named_parameters() for network in networks))
    broken = next(filter(None, learner.ranks.gather(own, "weights that are not finite")), None)

    def look() -> Any:
        try:
            health.after(step, metrics, broken)
        except Explosion as explosion:
            return asdict(explosion.finding), explosion.step
        return None

    if (found := learner.ranks.decided(look, "health of the run")) is not None:
        raise Explosion(Finding(**found[0]), found[1])


def go_back(run: Path, explosion: Explosion, terminal: Terminal) -> tuple[Checkpoint, TrainerState] | None:
    """Returns the newest good checkpoint from before the explosion, None for the start model."""
    before = [saved for saved in RunDirectory(run).saved_models() if saved.step < explosion.step]
    saved = newest_good(before, terminal.say)
    terminal.say(f"The run goes back to {f'step {saved[0].step}' if saved else 'its start'}, once.")
    return saved


def record_going_back(record: RunRecord, finding: Finding, step: int) -> None:
    """Records that the run went back to `step`, so that a second explosion stops it, after a resume too."""
    sentence = f"{finding.sentence} The run went back to step {step}."
    record.warning(asdict(Finding(step, WENT_BACK, finding.metric, sentence, finding.setting)))
