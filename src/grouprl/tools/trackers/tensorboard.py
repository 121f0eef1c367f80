"""TensorBoard: event files in the run directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from grouprl.tools.trackers.tracker import About, Shown, Table


class TensorBoard:
    """Writes event files; a resumed run purges the steps that it makes again."""

    def begin(self, about: About) -> Shown:
        """Opens a further event file, and writes the configuration as text."""
        from torch.utils.tensorboard import SummaryWriter

        folder = about.folder / "tensorboard"
        purged = None if about.id is None else about.after + 1
        self._writer: Any = SummaryWriter(str(folder), purge_step=purged)
        self._writer.add_text("config", f"```json\n{json.dumps(about.settings, indent=2)}\n```", about.after)
        return Shown(str(folder), f"tensorboard --logdir {folder}")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes scalars."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def completions(self, step: int, table: Table) -> None:
        """Writes the table as Markdown, in which TensorBoard shows text."""
        lines = [table.columns, ["---"] * len(table.columns), *table.rows]
        text = "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)
        self._writer.add_text("completions", text, step)

    def end(self, *, failed: bool) -> None:
        """Closes the file."""
        self._writer.close()


def _cell(value: Any) -> str:
    shown = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return "<br>".join(shown.replace("\\", "\\\\").replace("|", "\\|").splitlines())
