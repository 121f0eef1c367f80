"""Sandboxes in unusual surroundings: workers without standard channels or /proc, with a hostile environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from escapes import open_to_everyone
from grouprl.checks.sandbox import BACKENDS, SandboxError, run_in_sandbox, why_unavailable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes need Linux")

_RUN = """
import os, sys
from grouprl.checks.sandbox import run_in_sandbox
result = run_in_sandbox("print('out')", ["[2]"], backend=sys.argv[1])
with open(sys.argv[2], "w") as file:  # standard output may be closed
    file.write(f"{result.outcomes[0].value} {result.output!r}")
"""
_REASONS = """
import json
from grouprl.checks.sandbox import BACKENDS, why_unavailable
print(json.dumps([why_unavailable(name) for name in BACKENDS]))
"""


# Imported before: Python 3.13.0 cannot import its own socket in a folder that is gone.
_LEAVE = "import os, tempfile, grouprl.checks.sandbox\nos.chdir(tempfile.mkdtemp())\nos.rmdir(os.getcwd())\n"
HOSTILE = {"LD_PRELOAD": "/nowhere.so", "LC_ALL": "xx_XX.nothing", "PYTHONHOME": "/nowhere"}


@pytest.mark.parametrize(
    ("shell", "before", "environment"),
    [
        ('exec "$0" "$@" >&-', "", {}),
        ('exec "$0" "$@" <&- 2>&-', "", {}),
        ('exec "$0" "$@" <&- >&- 2>&-', "", {}),
        ('exec "$0" -E "$@" 2>/dev/null', "", HOSTILE),
        ('exec "$0" "$@"', _LEAVE, {}),
    ],
    ids=["no output", "no input and errors", "no channels", "a hostile environment", "a folder that is gone"],
)
def test_a_worker_in_odd_surroundings_can_run_programs(
    backend: str, tmp_path: Path, shell: str, before: str, environment: dict[str, str]
):
    command = ["sh", "-c", shell, sys.executable, "-c", before + _RUN, backend, str(tmp_path / "told")]
    subprocess.run(command, check=True, env=os.environ | environment)
    assert (tmp_path / "told").read_text() == "[2] 'out\\n'"


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root, and unshare")
def test_without_proc_there_is_a_reason_for_every_backend():
    hide = 'mount -t tmpfs none /proc && exec "$0" "$@"'
    if subprocess.run(["unshare", "--mount", "sh", "-c", hide, "true"], capture_output=True).returncode:
        pytest.skip("this root may not mount")
    command = ["unshare", "--mount", "sh", "-c", hide, sys.executable, "-c", _REASONS]
    told = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert len(told) == len(BACKENDS)
    assert all("/proc" in reason for reason in told)


@pytest.fixture
def impostor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `bwrap` that says it is ready on every channel, and leaves."""
    script = tmp_path / "bwrap"
    script.write_text("#!/bin/bash\nfor fd in {3..63}; do echo ready >&$fd; done 2>/dev/null\nexit 0\n")
    open_to_everyone(script)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.skipif(shutil.which("bash", path="/bin") is None, reason="needs bash")
@pytest.mark.usefixtures("impostor")
def test_a_backend_that_only_says_that_it_is_ready_is_refused_with_a_reason():
    assert "reported that it was ready, then ended" in str(why_unavailable.__wrapped__("bubblewrap"))
    with pytest.raises(SandboxError, match="reported that it was ready"):
        run_in_sandbox("x = 1", ["x"], backend="bubblewrap")
