"""The libraries of trackers: tensorboard, wandb, trackio and mlflow, imported when a run begins to use one."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

_STEP = "train/global_step"  # as in transformers; wandb's own counter cannot go back to a checkpoint
_PARAMETER = 6000  # longest value in MLflow, in characters
_BATCH = 100  # most parameters in a request to MLflow


@dataclass(frozen=True)
class About:
    """The run that is shown."""

    name: str
    project: str
    settings: Mapping[str, Any]  # the configuration as JSON values
    folder: Path  # where a tracker may keep files of this run
    runs: Path  # the folder of all runs
    id: str | None  # of an earlier session of this run in the same tracker; None = a new run
    after: int  # the last step that was recorded before


@dataclass(frozen=True)
class Shown:
    """Where a tracker shows the run."""

    id: str
    link: str  # an address, or a command


@dataclass(frozen=True)
class Table:
    """Completions of one step."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]  # text, numbers and None


class Tracker(Protocol):
    """A tracker. Its methods are called one after the other by a single thread, and may raise anything."""

    def begin(self, about: About) -> Shown:
        """Starts the run, or continues it."""
        ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Sends finite numbers of a step, as train/NAME and eval/NAME."""
        ...

    def completions(self, step: int, table: Table) -> None:
        """Sends a table of a step's completions."""
        ...

    def end(self, *, failed: bool) -> None:
        """Sends what is left, and closes the run."""
        ...


class TensorBoard:
    """Event files in the run directory; a resumed run purges the steps that it makes again."""

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


class Wandb:
    """A run of Weights & Biases, online or in files with WANDB_MODE=offline, with the step on the horizontal axis."""

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


class Trackio:
    """A run of trackio: a local database, or a Space on Hugging Face (TRACKIO_SPACE_ID)."""

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


class Mlflow:
    """A run of MLflow: on the server of MLFLOW_TRACKING_URI, or in a folder beside the runs.

    Its names of metrics have no prefix train/, as with TRL.
    """

    def begin(self, about: About) -> Shown:
        """Starts the run, or continues it by its id; a parameter that was sent stays as it was."""
        from mlflow import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:  # mlflow-skinny has no database, and MLflow asks for consent to its older folders
            uri = (about.runs / "mlruns").resolve().as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client: Any = MlflowClient(uri)
        experiment = self._client.get_experiment_by_name(about.project)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(about.project)
        if about.id is None:
            self._id: str = self._client.create_run(experiment_id, run_name=about.name).info.run_id
        else:
            self._id = about.id
            self._client.update_run(self._id, status="RUNNING")
        from mlflow.entities import Param

        sent = self._client.get_run(self._id).data.params
        new = [Param(key, str(value)[:_PARAMETER]) for key, value in _flat(about.settings) if key not in sent]
        for start in range(0, len(new), _BATCH):
            self._client.log_batch(self._id, params=new[start : start + _BATCH])
        page = f"{uri}/#/experiments/{experiment_id}/runs/{self._id}"
        return Shown(self._id, page if uri.startswith("http") else f"mlflow ui --backend-store-uri {uri}")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Sends all numbers in one request."""
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        named = {re.sub(r"[^\w\-. /]", "_", name.removeprefix("train/")): value for name, value in metrics.items()}
        self._client.log_batch(self._id, [Metric(name, value, now, step) for name, value in named.items()])

    def completions(self, step: int, table: Table) -> None:
        """Writes the table as an artifact in the form of pandas' orient="split"."""
        text = json.dumps({"columns": list(table.columns), "data": [list(row) for row in table.rows]})
        self._client.log_text(self._id, text, f"completions/step-{step:06d}.json")

    def end(self, *, failed: bool) -> None:
        """Sets the status."""
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


def _flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


TRACKERS: Mapping[str, Callable[[], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
    "mlflow": Mlflow,
}
