"""A run's metrics beside the log of a TRL training, over the same updates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from grouprl.config.run import RunConfig, load_config
from grouprl.files import is_number, read_json
from grouprl.record.layout import RunDirectory
from grouprl.record.read import read_run
from grouprl.types import UserError

# Those with one name and meaning in both.
_METRICS = ("reward", "frac_reward_zero_std", "completions/mean_length", "entropy", "kl", "grad_norm")
_MOST_ROWS = 20


def rows_beside(directory: str | Path, log: Path) -> Iterator[tuple[str, ...]]:
    """A table's rows, headings first: updates, then the run's and TRL's value of each metric that both have.

    A row of the log is the mean since the row before it; the run's value is the mean over the same updates.

    Args:
        directory: the run.
        log: `trainer_state.json` of a checkpoint of TRL, or of `trainer.save_state()`.

    Raises:
        UserError: there is no such run, or the file is no log of a GRPO training.
    """
    run = read_run(directory)
    updates = load_config(RunConfig, [RunDirectory(run.directory).config], []).algorithm.updates.count
    history = read_json(log).get("log_history")
    entries: list[dict[str, Any]] = [
        entry
        for entry in (history if isinstance(history, list) else [])
        if isinstance(entry, dict) and is_number(entry.get("reward")) and is_number(entry.get("step"))
    ]
    if not entries:
        raise UserError(
            f"{log}: expected trainer_state.json of a GRPO training with TRL, whose log_history has rewards, got none: "
            "give the file of a checkpoint, or of trainer.save_state()"
        )
    names = [name for name in _METRICS if any(is_number(entry.get(name)) for entry in entries)]
    yield "updates", *(f"{name.rpartition('/')[2]} {side}" for name in names for side in ("here", "TRL"))
    stride, before = math.ceil(len(entries) / _MOST_ROWS), 0
    for number, entry in enumerate(entries, start=1):
        last = int(entry["step"])
        if number % stride == 0 or number == len(entries):
            cells = [f"{before + 1}-{last}"]
            rows = [row for row in run.metrics if before < row["step"] * updates <= last]
            for name in names:
                values = [row[name] for row in rows if is_number(row.get(name))]
                cells += [_shown(fmean(values) if values else None), _shown(entry.get(name))]
            yield tuple(cells)
        before = last


def _shown(value: object) -> str:
    return f"{value:.4g}" if is_number(value) else "-"
