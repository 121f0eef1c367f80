"""What users keep of their runs: tags, a note, whether a run is archived, its name, and whether it stays at all."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.routing import Route

from grouprl.files import read_needed
from grouprl.lab.processes import Body, Processes, changing, field_of
from grouprl.lab.report.notes import checked_notes
from grouprl.lab.runs import Runs
from grouprl.record.files import atomic_write_text, json_text
from grouprl.record.layout import RunDirectory, lock_directory
from grouprl.types import UserError

_NAME_LINE = re.compile(r"^name: .*$", re.MULTILINE)


def keeping_routes(runs: Runs, processes: Processes) -> list[Route]:
    """Write notes, rename, delete."""

    def write(run: str, body: Body) -> dict[str, Any]:
        notes = checked_notes(body.get("tags"), body.get("note"), body.get("archived"))
        atomic_write_text(RunDirectory(runs.folder(run)).notes, json_text(asdict(notes)) + "\n")
        return {"id": run}

    def rename(run: str, body: Body) -> dict[str, Any]:
        with processes.new_folder(field_of(body, "name", "a text")) as target, _ours(runs, processes, run) as folder:
            config = RunDirectory(folder).config
            # A resume goes by the folder; the line is for people.
            text = _NAME_LINE.sub(f"name: {json_text(target.name)}", read_needed(config, "expected settings"), count=1)
            atomic_write_text(config, text)
            folder.rename(target)
        return {"id": runs.identifier(target)}

    def delete(run: str, body: Body) -> dict[str, Any]:
        with _ours(runs, processes, run) as folder:
            if field_of(body, "name", "a text") != folder.name:
                raise UserError(f"expected the run's name, {folder.name}, to delete it, got {body['name'][:60]!r}")
            leaving = runs.root / ".lab" / f"deleted-{folder.name}-{os.getpid()}"
            leaving.parent.mkdir(exist_ok=True)
            # A run that is half gone must not be listed.
            folder.rename(leaving)
        shutil.rmtree(leaving)
        return {"id": run}

    return [
        Route(f"/api/runs/{{run}}/{name}", changing(act), methods=["POST"])
        for name, act in (("notes", write), ("rename", rename), ("delete", delete))
    ]


@contextmanager
def _ours(runs: Runs, processes: Processes, run: str) -> Iterator[Path]:
    """The folder of a run that no process writes, and none starts to, as long as the block lasts.

    Raises:
        UserError: it is running, being started, or part of a comparison.
    """
    folder = runs.folder(run)
    if folder.parent != runs.root:
        raise UserError(f"{run}: expected a single run, got a run of the comparison {folder.parent.name}")
    with processes.claimed(folder):
        handle = lock_directory(folder)
        try:
            yield folder
        finally:
            os.close(handle)
