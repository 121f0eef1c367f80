"""Parts for `benchmarks/gpu.py` that end in different ways."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any


def works(bench: Any) -> None:
    bench.measure("sum", lambda _: {"value": 1.5})


def fails(bench: Any) -> None:
    def missing(_: Any) -> dict[str, float]:
        raise RuntimeError("a kernel\n is missing")

    bench.measure("kernel", missing)
    bench.measure("sum", lambda _: {"value": 2.5})


def dies(bench: Any) -> None:
    bench.keep("sum", {"value": 3.5})
    print("the last words", flush=True)
    os._exit(7)


def hangs(bench: Any) -> None:
    """With a process that it started, whose number it keeps."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    bench.keep("child", {"pid": child.pid})
    time.sleep(600)


def lacks(bench: Any) -> None:
    bench.keep("library", {"skipped": "it is not here"})
