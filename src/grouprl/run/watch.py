"""Watches a run while it trains: warns, and ends a run without finite updates or whose weights exploded.

`run.findings` decides from the metrics; this module records and shows what it decides, and goes back to an earlier
checkpoint after an explosion, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from grouprl.learner import Learner
from grouprl.models.save import not_finite as broken_weight
from grouprl.record.layout import Checkpoint, RunDirectory
from grouprl.record.read import read_json_lines
from grouprl.record.write import RunRecord
from grouprl.run.checkpoint import TrainerState
from grouprl.run.display import Display
from grouprl.run.findings import (
    GAPS,
    Finding,
    GapLimits,
    explosion,
    not_finite,
    not_finite_in_a_row,
    other_sampler,
    unusable,
    warnings,
)
from grouprl.run.resume import newest_good
from grouprl.types import UserError

WENT_BACK = "went_back"  # the kind of the row that says so


class Explosion(Exception):
    """The weights of a run are no longer usable after `step`."""

    def __init__(self, finding: Finding, step: int) -> None:
        super().__init__(finding.sentence)
        self.finding, self.step = finding, step


class Health:
    """Looks at every step of a run after it was recorded."""

    def __init__(self, record: RunRecord, display: Display, limits: GapLimits = GAPS["float32"]) -> None:
        self._record, self._display, self._limits = record, display, limits
        run = RunDirectory(record.directory)
        self._rows = list(read_json_lines(run.metrics))
        self._given = list(read_json_lines(run.warnings))

    def after(self, step: int, metrics: Mapping[str, float], broken: str | None) -> None:
        """Warns about a step; `broken` is the name of a weight that is not finite.

        Raises:
            Explosion: weights, KL, gradient or gap exploded for the first time.
            UserError: they did again, no update was finite for several steps, or another policy sampled.
        """
        self._rows.append({"step": step, **metrics})
        bad = not_finite(self._rows)
        exploded, first_bad = explosion(self._rows) or (None, step)
        if broken is not None:
            sentence = (
                f"Step {step}: its update put NaN or infinity into {broken}. The learning rate is the likely cause."
            )
            exploded = Finding(step, "explosion", "grad_norm", sentence, "lower learner.learning_rate")
            first_bad = step
        for finding in ([bad] if bad else []) + ([exploded] if exploded else []):
            self._give(finding)
        if exploded is not None:
            if any(row.get("kind") == WENT_BACK for row in self._given):
                raise UserError(
                    f"{exploded.sentence} The run already went back to a checkpoint once, so it stops: "
                    f"{exploded.setting}, and start a new run"
                )
            raise Explosion(exploded, first_bad)
        if bad is not None and not_finite_in_a_row(self._rows):
            raise UserError(
                f"{bad.sentence} The run stops after several such steps in a row; its completions are in "
                f"rollouts.sqlite, its checkpoints from earlier steps: {bad.setting}, and start again"
            )
        self.warn()
        if (other := other_sampler(self._rows, self._limits)) is not None:
            raise UserError(f"{other.sentence} The run stops: {other.setting}, and start again")

    def end(self) -> None:
        """Looks at the last step of the run.

        Raises:
            UserError: the weights that the run would end with give no finite log-probs.
        """
        bad = not_finite(self._rows)
        if bad is not None and unusable(self._rows):
            raise UserError(f"{bad.sentence} The run ends with unusable weights: {bad.setting}")

    def warn(self) -> None:
        """Warns about the newest step and evaluation."""
        evaluations = read_json_lines(RunDirectory(self._record.directory).evaluations)
        for finding in warnings(self._rows, evaluations, self._given, self._limits):
            self._give(finding)

    def _give(self, finding: Finding) -> None:
        self._given.append(asdict(finding))
        self._record.warning(asdict(finding))
        self._display.say(f"Warning: {finding.sentence} Suggestion: {finding.setting}.")


def check_health_on_all_ranks(health: Health, step: int, metrics: Mapping[str, float], learner: Learner) -> None:
    """Rank 0 checks a step with `Health.after`; the `Explosion` that this raises is raised on every rank."""
    networks = [learner.policy, *([learner.critic.critic] if learner.critic is not None else [])]
    broken_of_rank = broken_weight(chain.from_iterable(network.named_parameters() for network in networks))
    broken = next(filter(None, learner.ranks.gather(broken_of_rank, "weights that are not finite")), None)

    def check() -> Any:
        try:
            health.after(step, metrics, broken)
        except Explosion as explosion:
            return asdict(explosion.finding), explosion.step
        return None

    exploded = learner.ranks.decided(check, "health of the run")
    if exploded is not None:
        fields, first_bad = exploded
        raise Explosion(Finding(**fields), first_bad)


def go_back(run: Path, explosion: Explosion, display: Display) -> tuple[Checkpoint, TrainerState] | None:
    """Returns the newest good checkpoint from before the explosion, None for the start model."""
    saved = newest_good(run, before=explosion.step, announce=display.say)
    display.say(f"The run goes back to {f'step {saved[0].step}' if saved else 'its start'}, once.")
    return saved


def record_going_back(record: RunRecord, finding: Finding, step: int) -> None:
    """Records that the run went back to `step`, so that a second explosion stops it, after a resume too."""
    sentence = f"{finding.sentence} The run went back to step {step}."
    record.warning(asdict(Finding(step, WENT_BACK, finding.metric, sentence, finding.setting)))
