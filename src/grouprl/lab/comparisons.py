"""The comparisons below the root: one for its page, and those of runs with a critic beside runs without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starlette.requests import Request

from grouprl.compare.read import COMPARISON_FILE, Variant, read_comparison
from grouprl.compare.report import comparison_answer
from grouprl.lab.runs import NoSuchRun
from grouprl.record.layout import RunDirectory
from grouprl.report.recorded import parse_config
from grouprl.types import UserError


def one_comparison(root: Path, request: Request) -> dict[str, Any]:
    """The comparison that a request names.

    Raises:
        NoSuchRun: there is none below the root.
        UserError: a file of it is damaged.
    """
    name = request.path_params["name"]
    if name not in {folder.name for folder in _folders(root)}:
        raise NoSuchRun(f"{name[:60]}: expected a comparison below {root}, found none")
    return comparison_answer(read_comparison(root / name))


def critic_comparisons(root: Path) -> list[dict[str, Any]]:
    """Comparisons of runs with a critic with runs without one, by name, as `comparison_answer`.

    One that cannot be read is left out: what is wrong with it is said where its runs are looked at.
    """
    found = []
    for folder in _folders(root):
        try:
            comparison = read_comparison(folder)
            if {_has_critic(variant) for variant in comparison.finished} == {True, False}:
                found.append(comparison_answer(comparison))
        except (UserError, OSError):
            continue
    return found


def _folders(root: Path) -> Iterator[Path]:
    """Folders of comparisons directly below the root; none with a link in it, which may lead out of the root."""
    for given in sorted(root.glob(f"*/{COMPARISON_FILE}")):
        folder = given.parent
        if not any(path.is_symlink() for path in (folder, *folder.glob("*"), *folder.glob("*/*"))):
            yield folder


def _has_critic(variant: Variant) -> bool:
    run = next(iter(variant.runs.values()))
    algorithm = parse_config(run.config, RunDirectory(run.directory).config).get("algorithm")
    return isinstance(algorithm, dict) and algorithm.get("critic") not in (None, "none")
