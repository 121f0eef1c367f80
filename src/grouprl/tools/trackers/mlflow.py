"""MLflow: the server of MLFLOW_TRACKING_URI, or a folder beside the runs."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from grouprl.tools.trackers.tracker import About, Shown, Table

_PARAMETER = 6000  # longest value, in characters
_BATCH = 100  # most parameters in a request


class Mlflow:
    """A run of MLflow. Its names of metrics have no prefix train/, as with TRL."""

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
        self._parameters(about.settings)
        page = f"{uri}/#/experiments/{experiment_id}/runs/{self._id}"
        return Shown(self._id, page if uri.startswith("http") else f"mlflow ui --backend-store-uri {uri}")

    def _parameters(self, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        sent = self._client.get_run(self._id).data.params
        new = [Param(key, str(value)[:_PARAMETER]) for key, value in _flat(settings) if key not in sent]
        for start in range(0, len(new), _BATCH):
            self._client.log_batch(self._id, params=new[start : start + _BATCH])

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
