"""What one update of the demo runs: the functions of the package that it calls, by file, with their lines.

python benchmarks/traced_update.py
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import grouprl
from grouprl import step
from grouprl.cli import main as grouprl_command

PACKAGE = Path(grouprl.__file__).parent
TRAIN = ("train", "demo", "steps=2", "evaluation.problems=0", "name=traced")


def lines_of(function: CodeType) -> int:
    """The lines of a function, its docstring and comments included."""
    return max(line for _, _, line in function.co_lines() if line) - function.co_firstlineno + 1


def called_in_updates(*changes: str) -> set[CodeType]:
    """Trains the demo for two steps, and returns the functions of the package that its updates call, on any thread."""
    functions: set[CodeType] = set()
    update_policy, is_updating = step.update_policy, False

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if is_updating and event == "call" and code.co_filename.startswith(str(PACKAGE)) and code.co_name[0] != "<":
            functions.add(code)

    def traced(*values: Any, **named: Any) -> Any:
        nonlocal is_updating
        is_updating = True
        try:
            return update_policy(*values, **named)
        finally:
            is_updating = False

    step.update_policy = traced
    threading.setprofile(note)
    sys.setprofile(note)
    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["grouprl", *TRAIN, *changes, f"runs_dir={folder}"]
        with suppress(SystemExit):
            grouprl_command()
        sys.setprofile(None)
    return functions


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="an update of 2 groups: whether it runs")
    small = parser.parse_args().smoke
    by_file = defaultdict(list)
    for function in called_in_updates(*(["rollout.problems_per_step=2", "rollout.max_tokens=16"] if small else [])):
        by_file[Path(function.co_filename)].append(lines_of(function))
    whole = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in by_file)
    counts = [lines for found in by_file.values() for lines in found]
    print(f"{len(counts)} functions in {len(by_file)} files: {sum(counts):,} lines, of {whole:,} of these files")
    for path, found in sorted(by_file.items(), key=lambda item: -sum(item[1])):
        print(f"{sum(found):5d} lines in {len(found):3d} functions of {path.relative_to(PACKAGE)}")


if __name__ == "__main__":
    main()
