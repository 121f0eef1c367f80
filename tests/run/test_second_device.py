"""Runs the tests of second_device.py in a process of their own."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_runs_on_a_second_device_compute_what_the_cpu_computes(marked: str, tmp_path: Path) -> None:
    """A process that has computed gradients on another device than the CPU cannot fork, as other tests do."""
    file = Path(__file__).with_name("second_device.py")
    options = ("-n", "0", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'tests'}", "-m", marked)
    ended = subprocess.run([sys.executable, "-m", "pytest", *options, file], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
