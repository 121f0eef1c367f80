"""What the shell offers after TAB once `--install-completion` has turned it on: settings, runs, models, tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from grouprl.config.command_line import RECIPES
from grouprl.record.layout import RunDirectory

Offer = tuple[str, str]
"""A word, and what it means."""


def settings(incomplete: str) -> list[Offer]:
    """Recipes of a run, YAML files and keys; of a section, its keys."""
    from grouprl.cli.settings import setting_rows  # brings in torch, which other words do not need

    files = ((str(path), "") for path in sorted(Path().glob("*.yaml")))
    recipes = ((path.stem, "recipe") for path in sorted(RECIPES.glob("*.yaml")))
    keys = ((f"{key}=", meaning) for key, _, meaning in setting_rows())
    return _begin(incomplete, recipes, files, keys)


def keys(incomplete: str) -> list[Offer]:
    """Keys of a run, and their sections."""
    from grouprl.cli.settings import setting_rows

    rows = setting_rows()
    sections = ((key.partition(".")[0], "section") for key, _, _ in rows if "." in key)
    return _begin(incomplete, sections, ((key, meaning) for key, _, meaning in rows))


def runs(incomplete: str) -> list[Offer]:
    """Folders of runs, in the folder that is typed or in `runs`."""
    typed = Path(incomplete)
    parent = typed if incomplete.endswith("/") else typed.parent
    return _begin(incomplete, _runs_in(parent), _runs_in(Path("runs")))


def models(incomplete: str) -> list[Offer]:
    """Bundled models and folders of runs."""
    from grouprl.models.names import BUNDLED

    return _begin(incomplete, ((name, "bundled model") for name in BUNDLED)) + runs(incomplete)


def tasks(incomplete: str) -> list[Offer]:
    """Built-in tasks."""
    from grouprl.tasks.named import TASKS

    return _begin(incomplete, ((name, "") for name in TASKS))


def _runs_in(folder: Path) -> Iterator[Offer]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if RunDirectory(path).exists:
            yield str(path), "run"


def _begin(incomplete: str, *offers: Iterable[Offer]) -> list[Offer]:
    meanings = {word: meaning for some in offers for word, meaning in some if word.startswith(incomplete)}
    return list(meanings.items())
