"""Programs that try to get out of the sandbox; each on every backend here, as root and as an ordinary user."""

from __future__ import annotations

import os
import platform
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from escapes import BLOCKED, CALLS, HELPER, ORDINARY, REACHABLE, ROOT, source, told_by
from grouprl.checks.sandbox import BACKENDS, CallFailure, ReturnValue, run_in_sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes need Linux")


@pytest.mark.parametrize("name", BLOCKED)
def test_a_way_out_is_blocked(backend: str, name: str, secret: Path):
    result = run_in_sandbox(source(BLOCKED[name], secret), ["attack()"], backend=backend)
    [outcome] = result.outcomes
    assert isinstance(outcome, ReturnValue), result
    assert set(outcome.value) == {"blocked"}, outcome.value
    assert secret.read_text() == "a secret"


def test_the_same_programs_succeed_outside(secret: Path):
    """An attack that works outside shows that the sandbox blocks it, not a bug in the attack."""
    body = textwrap.indent(textwrap.dedent("return [tried(open, {secret!r}), tried(os.fork)]"), "    ")
    program = source(f"def attack():\n{body}\nprint(attack())", secret)
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "blocked" not in told.stdout
    assert "TextIOWrapper" in told.stdout


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86_64")
def test_a_system_call_is_refused_or_deadly(backend: str):
    refused = {name: call for name, call in CALLS.items() if not name.startswith("x32")}
    program = HELPER + f"def attack():\n    return {{name: call(*numbers) for name, numbers in {refused!r}.items()}}"
    [outcome] = run_in_sandbox(program, ["attack()"], backend=backend).outcomes
    assert outcome == ReturnValue(dict.fromkeys(refused, "blocked"))
    [outcome] = run_in_sandbox(HELPER, [f"call({CALLS['x32 getpid'][0]})"], backend=backend).outcomes
    assert isinstance(outcome, CallFailure)


def test_no_connection_is_made_to_a_server_that_listens(backend: str):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        program = source(BLOCKED["connections"], port=server.getsockname()[1])
        run_in_sandbox(program, ["attack()"], backend=backend)
        with pytest.raises(TimeoutError):
            server.accept()


def test_the_environment_is_empty_and_the_user_has_no_name(backend: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("API_TOKEN", "a secret")
    program = "import os, sys\ndef attack():\n    return dict(os.environ), os.getuid() != 0, os.getgroups(), sys.path"
    [outcome] = run_in_sandbox(program, ["attack()"], backend=backend).outcomes
    assert isinstance(outcome, ReturnValue)
    environment, unprivileged, groups, path = outcome.value
    assert environment == {}
    assert unprivileged
    assert 0 not in groups
    assert not any("site-packages" in folder or str(ROOT) in folder for folder in path)


def test_only_its_own_channels_are_open(backend: str):
    program = """
import os, stat
def attack():
    kinds = {}
    for number in range(64):
        try:
            kinds[number] = stat.S_IFMT(os.fstat(number).st_mode)
        except OSError:
            pass
    files = [number for number, kind in kinds.items() if kind == stat.S_IFREG]
    files = [os.readlink(f"/proc/self/fd/{number}") for number in files if kinds.pop(number)]
    return [kinds.pop(0) == stat.S_IFCHR, sorted(kinds.values()).count(stat.S_IFSOCK), set(kinds.values()), files]
"""
    [outcome] = run_in_sandbox(program, ["attack()"], backend=backend).outcomes
    assert isinstance(outcome, ReturnValue)
    null, sockets, kinds, files = outcome.value
    assert null
    assert sockets == 3  # standard output and error, and results
    assert [name for name in files if "/libffi.so" not in name] == []  # libffi 3.5 keeps its own file open
    # Landlock's rules hold for the folder of the interpreter as well, a new root would not.
    assert kinds == {"bubblewrap": {stat.S_IFSOCK}, "landlock": {stat.S_IFSOCK, stat.S_IFDIR}}[backend]


@pytest.mark.skipif(os.geteuid() != 0, reason="all other tests run without privileges already")
@pytest.mark.skipif(REACHABLE is None, reason="no interpreter of the system's own")
@pytest.mark.parametrize("backend_name", BACKENDS)
def test_ways_out_are_blocked_for_an_ordinary_user_as_well(backend_name: str, secret: Path):
    for folder in (secret.parent, secret.parent.parent, secret.parent.parent.parent):  # pytest's own
        folder.chmod(0o755)
    programs = {name: source(body, secret) for name, body in BLOCKED.items()}
    answers = told_by(str(REACHABLE), backend_name, programs, ROOT / "src", **ORDINARY)
    assert answers.pop("user") == 65534
    if reason := answers.pop("reason"):
        pytest.skip(reason)
    assert {name: set(tries) for name, tries in answers.items()} == {name: {"blocked"} for name in BLOCKED}
    assert secret.read_text() == "a secret"
