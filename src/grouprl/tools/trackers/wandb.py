"""Weights & Biases: online, or with WANDB_MODE=offline as files in the run directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grouprl.tools.trackers.tracker import About, Shown, Table

_STEP = "train/global_step"  # as in transformers; wandb's own counter cannot go back to a checkpoint


class Wandb:
    """A run of wandb with the step on the horizontal axis."""

    def begin(self, about: About) -> Shown:
        """Starts the run, or continues it by its id."""
        import wandb

        wandb.setup(settings=wandb.Settings(silent=True))  # without a key an error, no question in a thread
        about.folder.mkdir(parents=True, exist_ok=True)  # else wandb takes a folder elsewhere
        self._run: Any = wandb.init(
            project=about.project,
            name=about.name,
            id=about.id,
            resume="allow",
            dir=str(about.folder),
            settings=wandb.Settings(console="off"),
        )
        self._run.config.update(dict(about.settings), allow_val_change=True)
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP)
        files = self._run.settings.sync_dir
        return Shown(self._run.id, f"wandb sync {files}" if self._run.offline else self._run.url)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Sends one row."""
        self._run.log({**metrics, _STEP: step})

    def completions(self, step: int, table: Table) -> None:
        """Sends the table under TRL's name."""
        import wandb

        sent = wandb.Table(columns=list(table.columns), data=[list(row) for row in table.rows])
        self._run.log({"completions": sent, _STEP: step})

    def end(self, *, failed: bool) -> None:
        """Uploads what is left."""
        self._run.finish(exit_code=int(failed))
