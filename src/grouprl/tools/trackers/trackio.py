"""trackio: a local database, or a Space on Hugging Face (TRACKIO_SPACE_ID)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grouprl.tools.trackers.tracker import About, Shown, Table


class Trackio:
    """A run of trackio."""

    def begin(self, about: About) -> Shown:
        """Starts the run, or continues it by its name."""
        import trackio

        self._run: Any = trackio.init(
            about.project,
            name=about.id or about.name,
            config=dict(about.settings),
            resume="never" if about.id is None else "allow",
            embed=False,
        )
        url = getattr(self._run, "url", None)
        return Shown(self._run.name, url or f'trackio show --project "{about.project}"')

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Sends one row."""
        self._run.log(dict(metrics), step=step)

    def completions(self, step: int, table: Table) -> None:
        """Sends the table under TRL's name."""
        import trackio

        columns = list(table.columns)
        self._run.log({"completions": trackio.Table(columns=columns, data=[list(row) for row in table.rows])}, step)

    def end(self, *, failed: bool) -> None:
        """Writes what is left."""
        self._run.finish()
