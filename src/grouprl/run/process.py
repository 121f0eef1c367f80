"""Starts a run as a process of its own. A file, because `compare` and `lab` both do it and must do it alike."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from grouprl.record.files import json_text
from grouprl.record.layout import RunDirectory


def start_run(
    run: RunDirectory, settings: Sequence[str], log: Path, *, resume: bool = False
) -> subprocess.Popen[bytes]:
    """Starts `grouprl train` as a process that outlives this one.

    The process is in a session of its own: Ctrl-C in this terminal does not reach it. SIGINT or SIGTERM asks it to
    save and stop after its step.

    Args:
        run: where it writes; decides the name of the run and the folder of runs.
        settings: configuration files, names of recipes and changes such as steps=10.
        log: everything it prints is appended here; the folder exists.
        resume: continue from the newest checkpoint.
    """
    place = [f"name={json_text(run.path.name)}", f"runs_dir={json_text(str(run.path.parent))}"]
    # -P: without it, a file such as random.py in the current folder would be imported in place of a library.
    command = [sys.executable, "-P", "-m", "grouprl", "train", *(["--resume"] if resume else []), "--"]
    with log.open("ab") as printed:
        return subprocess.Popen(
            [*command, *settings, *place],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
