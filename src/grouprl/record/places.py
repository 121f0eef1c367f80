"""One meaning, in every verb and setting, of the place that a user names: a run, a checkpoint, a model, a file."""

from __future__ import annotations

from pathlib import Path

from grouprl.record.layout import RunDirectory, refuse_links, run_of_checkpoint
from grouprl.types import UserError, nearest_name


def model_at(given: str) -> str:
    """The model that a user names: of a run its newest checkpoint or its trained model, any other name as it is.

    Raises:
        UserError: the run has saved no model.
    """
    place = Path(given).expanduser()
    run = RunDirectory(place)
    if not run.exists:
        return str(place) if given.startswith("~") else given
    refuse_links(run.path)
    saved = run.saved_models()
    if saved:
        return str(saved[-1].path)
    if run.model.is_dir():  # of sft, dpo and reward-model
        return str(run.model)
    raise UserError(f"{given}: expected a run with a checkpoint, got one without: continue it with --resume")


def run_at(given: str | Path) -> Path:
    """The run directory that a user names, by its folder or by one of its checkpoints.

    Raises:
        UserError: there is none; the error names the nearest run.
    """
    place = Path(given).expanduser()
    if RunDirectory(place).exists:
        return place
    run = run_of_checkpoint(place)
    if run is not None:
        return run.path
    raise UserError(
        f"{given}: expected a run directory (one with a config.yaml), found none: "
        f"{_near(place) or 'give the folder that a training run wrote, such as runs/NAME'}"
    )


def _near(place: Path) -> str:
    runs = {path.name: path for parent in (Path("runs"), place.parent) for path in _runs_in(parent)}
    name = nearest_name(place.name, runs)
    return f"did you mean {runs[name]}?" if name else ""


def _runs_in(parent: Path) -> list[Path]:
    try:
        return [path for path in sorted(parent.iterdir()) if RunDirectory(path).exists]
    except OSError:
        return []
