"""Runs tests against copies of the package with one line changed; a process that imports torch once and then forks.

    python tests/support/mutants.py < mutants.json

Reads a list of [file, part of a line, its replacement, tests], writes a list of exit codes of pytest: 0 = nobody
noticed.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 60  # of one test run; a mutant that hangs is noticed
# What tests import and takes seconds; nothing of the package, which each fork imports from its own copy.
HEAVY = (
    *("torch", "hypothesis", "hypothesis.strategies", "numpy", "cloudpickle", "pydantic", "rich.progress", "typer"),
    *("transformers.models.qwen2.modeling_qwen2", "transformers.models.llama.modeling_llama", "safetensors.torch"),
    *("transformers.models.qwen3.modeling_qwen3", "torch._dynamo", "torch.nn.attention.flex_attention", "tokenizers"),
)


def mutated(copy: Path, file: str, old: str, new: str) -> None:
    """Replaces the one place of `old` in the copy's file."""
    path = copy / "grouprl" / file
    text = path.read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise SystemExit(f"{file}: expected {old!r} once, found it {text.count(old)} times")
    path.write_text(text.replace(old, new), encoding="utf-8")


def started(copy: Path, tests: str) -> int:
    """Forks a process that runs the tests on the copy; gives its id."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    output = os.open(copy / "output.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.path.insert(0, str(copy))
    sys.dont_write_bytecode = True
    marks = ["-m", "not slow", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={copy / 'tmp'}"]
    code = pytest.main([*marks, tests])
    import grouprl  # the copy: another one would notice nothing

    os._exit(int(code) if grouprl.__file__.startswith(str(copy)) else 99)


def ended(child: int) -> int:
    """Waits for a child; gives its exit code, 1 for one that took too long."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 1


def main() -> None:
    """Reads the mutants, two at a time."""
    mutants = json.load(sys.stdin)
    began = time.monotonic()
    os.chdir(ROOT)
    for name in HEAVY:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        codes: list[int] = []
        running: list[tuple[Path, int]] = []
        for number, (file, old, new, tests) in enumerate([*mutants, (None, None, None, None)]):
            while running and (len(running) == 2 or file is None):
                copy, child = running.pop(0)
                codes.append(ended(child))
                print(len(codes) - 1, codes[-1], round(time.monotonic() - began, 1), file=sys.stderr)
                if codes[-1] != 1:
                    sys.stderr.write((copy / "output.txt").read_text(errors="replace")[-2000:])
                shutil.rmtree(copy)
            if file is not None:
                copy = Path(folder) / str(number)
                shutil.copytree(
                    ROOT / "src" / "grouprl", copy / "grouprl", ignore=shutil.ignore_patterns("static", "assets")
                )
                mutated(copy, file, old, new)
                running.append((copy, started(copy, tests)))
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
