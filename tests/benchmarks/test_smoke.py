"""Every benchmark runs: each file as a process with `--smoke`, and none of them lies where nobody starts it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "benchmarks"
FILES = {path.stem: path for path in sorted(HERE.glob("*.py"))}
SCRIPTS = [name for name, path in FILES.items() if "__main__" in path.read_text(encoding="utf-8")]
# Of lab_cost, one round trains two small runs.
LONGEST = 280.0  # seconds, on a machine that does other work


def imported(name: str) -> set[str]:
    """The benchmark files that one imports, in functions and for types only as well."""
    nodes = list(ast.walk(ast.parse(FILES[name].read_text(encoding="utf-8"))))
    names = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name for name in FILES if name in names}


def test_no_circle_of_imports() -> None:
    left = {name: imported(name) for name in FILES}
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    assert not left, f"expected benchmarks that import one way, got a circle among {sorted(left)}"


def test_a_file_is_a_benchmark_or_is_imported_by_one() -> None:
    assert [name for name in FILES if name not in SCRIPTS and not any(name in imported(one) for one in FILES)] == []


def kept() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (HERE / "results").rglob("*.json")}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_runs(name: str, tmp_path: Path) -> None:
    results = kept()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(FILES[name]), "--smoke"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LONGEST)
    assert ended.returncode == 0, f"{name} --smoke: {ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
    assert ended.stdout.strip(), f"{name} --smoke printed nothing"
    # What it measured of tiny sizes is kept nowhere.
    assert list(tmp_path.iterdir()) == []
    assert kept() == results
