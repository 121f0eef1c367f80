"""Starts a run as a separate process. A file, because `compare` and `lab` must start runs in the same way."""

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
        run: the run directory; it determines `name` and `runs_dir`.
        settings: configuration files, names of recipes and changes such as steps=10.
        log: the file to which its output is appended; the folder exists.
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
