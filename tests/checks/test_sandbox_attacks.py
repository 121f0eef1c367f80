"""Programs that try to get out of the sandbox, or starve the machine; unusual surroundings; the files it shows."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from escapes import BLOCKED, CALLS, HELPER, ORDINARY, REACHABLE, ROOT, ends, open_to_everyone, running, source, told_by
from grouprl.checks.sandbox import (
    BACKENDS,
    CallFailure,
    Limits,
    ReturnValue,
    SandboxError,
    backends,
    run_in_sandbox,
    visible_files,
    why_unavailable,
)
from grouprl.checks.sandbox.visible_files import EXECUTABLE, PREFIX

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


def test_memory_is_bounded(backend: str):
    program = "import mmap\ndef attack():\n    held = []\n    while True:\n        held.append(bytearray(1 << 24))"
    [once, again, mapped, after] = run_in_sandbox(
        program,
        ["attack()", "bytearray(1 << 40)", "[mmap.mmap(-1, 1 << 24) for _ in range(99)]", "len(bytearray(1 << 20))"],
        limits=Limits(memory_mib=192),  # of the default 512 the first touch of each page can take 2 s of CPU
        backend=backend,
    ).outcomes
    assert once == again == CallFailure("MemoryError: ")
    assert isinstance(mapped, CallFailure)
    assert after == ReturnValue(1 << 20)


def test_files_are_bounded(backend: str):
    program = """
def attack():
    written = 0
    try:
        for number in range(40):
            with open(f"/tmp/{number}", "wb", buffering=0) as file:
                for _ in range(5):
                    written += file.write(bytes(1 << 20))
    except OSError:
        pass
    return written
"""
    [outcome] = run_in_sandbox(program, ["attack()"], limits=Limits(files_mib=8), backend=backend).outcomes
    assert isinstance(outcome, ReturnValue)
    assert outcome.value <= 8 << 20
    assert (outcome.value > 0) == (backend == "bubblewrap")


def test_threads_are_bounded(backend: str):
    program = """
import threading, time
def attack():
    started = 0
    try:
        for _ in range(100):
            threading.Thread(target=time.sleep, args=(2,), daemon=True).start()
            started += 1
    except RuntimeError:
        pass
    return started
"""
    [outcome] = run_in_sandbox(
        program, ["attack()"], limits=Limits(threads=8, memory_mib=4096), backend=backend
    ).outcomes
    assert isinstance(outcome, ReturnValue)
    exact = os.geteuid() == 0 or backend == "bubblewrap"  # else other processes of the same user count as well
    assert 1 <= outcome.value <= (9 if exact else 9 + backends._tasks())


BUSY = """
import threading, time
def attack():
    threads = [threading.Thread(target=time.sleep, args=(0.01,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    return len(threads)
"""


@pytest.mark.skipif(REACHABLE is None, reason="no interpreter of the system's own")
@pytest.mark.parametrize("backend_name", BACKENDS)
def test_threads_start_for_an_ordinary_user_with_many_processes(backend_name: str):
    options = ORDINARY if os.geteuid() == 0 else {}
    others = [subprocess.Popen(["sleep", "60"], **options) for _ in range(24)]
    try:
        answers = told_by(str(REACHABLE), backend_name, {"threads": BUSY}, ROOT / "src", **options)
    finally:
        for other in others:
            other.kill()
            other.wait()
    if reason := answers["reason"]:
        pytest.skip(reason)
    assert answers["threads"] == 8


@pytest.mark.parametrize(
    "flood",
    [
        "print('x' * 5000)",
        "[tried(os.write, number, b'x' * 5000) for number in range(3, 512)]",
        "[tried(os.write, number, b'null\\n' * 5000) for number in range(3, 512)]",
    ],
)
def test_a_flood_ends_the_program(backend: str, flood: str):
    result = run_in_sandbox(
        f"{HELPER}\nwhile True:\n    {flood}", ["1"], limits=Limits(output_kib=32, cpu_seconds=9), backend=backend
    )
    assert result.error == "wrote more than 32 KiB"
    assert result.outcomes == (CallFailure("no result: wrote more than 32 KiB"),)
    assert len(result.output) <= 32 << 10
    assert result.seconds < 3


@pytest.mark.parametrize("result", ["'x' * 10**7", "[0] * 10**6", "nested(10**5)", "itself()"])
def test_a_huge_result_is_no_result(backend: str, result: str):
    program = """
def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value
def itself():
    value = []
    value.append(value)
    return value
"""
    [outcome] = run_in_sandbox(program, [result], backend=backend).outcomes
    assert isinstance(outcome, CallFailure)


def test_time_ends_a_program_that_ignores_every_signal(backend: str):
    program = """
import signal, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    time.sleep(1)
"""
    before = running()
    result = run_in_sandbox(program, ["1"], limits=Limits(seconds=0.5), backend=backend)
    assert result.error == "took longer than 0.5 s"
    assert 0.5 <= result.seconds < 2
    assert ends(running() - before)


def test_cpu_time_ends_a_program_with_threads(backend: str):
    program = "import hashlib, threading\ndef burn():\n    while True:\n        hashlib.sha256(bytes(1 << 20))\n"
    program += "for _ in range(4):\n    threading.Thread(target=burn).start()\nburn()"
    result = run_in_sandbox(program, ["1"], limits=Limits(seconds=20.0, cpu_seconds=1), backend=backend)
    assert result.error == "was killed: CPU time or memory"
    assert result.seconds < 10


def test_nothing_survives_a_session_of_its_own_a_daemon_or_closed_channels(backend: str):
    program = """
import os, threading, time
try:
    os.setsid()
except OSError:
    pass
try:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(60)
except OSError:
    pass
threading.Thread(target=time.sleep, args=(60,)).start()
os.closerange(0, 64)
time.sleep(60)
"""
    before = running()
    result = run_in_sandbox(program, ["1"], limits=Limits(seconds=1.5), backend=backend)
    # Bubblewrap holds the channels open until all is over.
    assert result.error == {"bubblewrap": "took longer than 1.5 s", "landlock": "closed its channels"}[backend]
    assert result.seconds < 3
    assert ends(running() - before)


def test_nothing_survives_the_process_that_started_it(backend: str, tmp_path: Path):
    before = running()
    program = "import time\nprint('up', flush=True)\ntime.sleep(60)"
    runner = f"""
from grouprl.checks.sandbox import Limits, run_in_sandbox
run_in_sandbox({program!r}, limits=Limits(seconds=60.0), backend={backend!r})
"""
    with subprocess.Popen([sys.executable, "-c", runner]) as process:
        deadline = time.monotonic() + 60
        while len(running() - before) < 1 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        started = running() - before
        os.kill(process.pid, signal.SIGKILL)
    assert started
    assert ends(started)


@pytest.mark.parametrize("crash", ["ctypes.string_at(1)", "dive(0)", "os._exit(0)", "sys.exit(0)"])
def test_a_crash_is_a_result_and_the_next_program_runs(backend: str, crash: str):
    program = "import ctypes, os, sys\nsys.setrecursionlimit(10**9)\ndef dive(n):\n    return [n, *map(dive, [n + 1])]"
    first = run_in_sandbox(f"{program}\n{crash}", ["1"], backend=backend)
    assert first.outcomes[0].reason.startswith("no result")
    assert first.error
    within = run_in_sandbox(program, ["7", crash, "8"], backend=backend)
    assert within.outcomes[0] == ReturnValue(7)
    assert isinstance(within.outcomes[1], CallFailure)
    assert run_in_sandbox("x = 1", ["x"], backend=backend).outcomes == (ReturnValue(1),)


def test_deep_recursion_is_an_error_of_the_call_alone(backend: str):
    outcomes = run_in_sandbox("def f(n):\n    return f(n + 1)", ["f(0)", "2"], backend=backend).outcomes
    assert isinstance(outcomes[0], CallFailure)
    assert "RecursionError" in outcomes[0].reason
    assert outcomes[1] == ReturnValue(2)


def test_a_sandbox_is_fresh(backend: str):
    run_in_sandbox(
        "import builtins, os\nbuiltins.x = 1\nopen('/tmp/fresh_x', 'w') if os.access('/tmp', 2) else 0", backend=backend
    )
    [name, file] = run_in_sandbox("import os", ["x", "os.path.exists('/tmp/fresh_x')"], backend=backend).outcomes
    assert name == CallFailure("NameError: name 'x' is not defined")
    assert file == ReturnValue(False)


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


_IMPORTS = """
import importlib
def attempts(names):
    failed = []
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            failed.append(name)
    return failed
"""


@pytest.fixture(scope="module")
def relocated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prefix of its own, as conda's or python.org's: libraries of its own, and this package in its site-packages."""
    prefix = tmp_path_factory.mktemp("prefix")
    prefix.chmod(0o755)
    library = prefix / visible_files.STDLIB.relative_to(PREFIX)
    left_out = shutil.ignore_patterns("*-packages", "test", "idlelib", "lib2to3", "tkinter", "ensurepip", "config-*")
    shutil.copytree(visible_files.STDLIB, library, ignore=left_out, symlinks=True, ignore_dangling_symlinks=True)
    (prefix / "bin").mkdir()
    shutil.copy(EXECUTABLE, prefix / "bin")
    for path in (PREFIX / "lib").glob("libpython*.so*"):
        shutil.copy(path, prefix / "lib")
    (prefix / "lib/libsecret.so.1").write_text("a secret")
    (prefix / "lib/other").mkdir()
    (prefix / "lib/other/secret").write_text("a secret")
    shutil.copytree(
        ROOT / "src/grouprl", library / "site-packages/grouprl", ignore=shutil.ignore_patterns("__pycache__")
    )
    return prefix


def test_the_tests_of_a_package_installed_beside_the_standard_library_cannot_be_read(backend: str, relocated: Path):
    library = relocated / visible_files.STDLIB.relative_to(PREFIX)
    packages = library / "site-packages"
    data = "grouprl/checks/data/code.jsonl"
    assert (packages / data).is_file()
    attack = f"""
def attack():
    library = os.path.dirname(os.__file__)
    beside = [library + "/site-packages/{data}", library + "/../libsecret.so.1", library + "/../other/secret",
              {str(packages / data)!r}, {str(relocated / "lib/other/secret")!r}]
    return [tried(open, path) for path in beside] + [tried(os.listdir, library + "/site-packages/grouprl")]
"""
    version = "import sys\ndef attack():\n    return sys.version"
    environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(relocated / "lib")}
    python = str(relocated / "bin" / EXECUTABLE.name)
    told = told_by(python, backend, {"read": HELPER + attack, "version": version}, packages, env=environment)
    assert told["reason"] is None
    assert told["version"] == sys.version
    assert set(told["read"]) == {"blocked"}


@pytest.mark.parametrize("name", BACKENDS)
def test_no_backend_is_refused_for_the_files_that_it_shows(name: str):
    """All other tests skip a backend that does not work; this one does not."""
    assert "not confined" not in str(why_unavailable(name))


def test_the_interpreter_inside_is_the_one_outside(backend: str):
    assert run_in_sandbox("import sys", ["sys.version"], backend=backend).outcomes == (ReturnValue(sys.version),)


def test_every_extension_module_that_works_outside_works_inside(backend: str):
    names = sorted(
        path.name.split(".")[0] for path in visible_files.STDLIB.glob("lib-dynload/*.so") if "test" not in path.name
    )
    names = [name for name in names if name != "_tkinter"]
    command = [str(EXECUTABLE), "-I", "-S", "-c", f"{_IMPORTS}\nimport json\nprint(json.dumps(attempts({names!r})))"]
    outside = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert len(outside) < len(names) / 2
    assert run_in_sandbox(_IMPORTS, [f"attempts({names!r})"], backend=backend).outcomes == (ReturnValue(outside),)


def test_modules_are_found_after_the_lists_of_files_were_thrown_away(backend: str):
    [outcome] = run_in_sandbox(
        _IMPORTS, ["importlib.invalidate_caches() or attempts(['bisect', 'json.tool', 'wave'])"], backend=backend
    ).outcomes
    assert outcome == ReturnValue([])


@pytest.mark.skipif(shutil.which("ldd") is None, reason="needs ldd")
def test_the_libraries_are_those_that_the_loader_takes_and_no_others(monkeypatch: pytest.MonkeyPatch):
    modules = [path for path in visible_files.STDLIB.glob("lib-dynload/*.so") if "_tkinter" not in path.name]
    told = subprocess.run(["ldd", EXECUTABLE, *modules], capture_output=True, text=True, check=False).stdout
    taken = set(re.findall(r"^\s+(lib\S+) => /", told, re.MULTILINE))
    assert len(taken) > 3
    folders = visible_files._folders()
    monkeypatch.setattr(visible_files, "_MULTIARCH", "no folder stands for its files")
    monkeypatch.setattr(visible_files, "_folders", lambda: folders)
    found = {path.name for path in visible_files.libraries.__wrapped__()}
    assert taken <= found
    assert len(found) < 60
    assert not any(name.startswith(("libX11", "libcuda", "libtk")) for name in found)


def test_the_loader_is_the_one_that_the_kernel_starts():
    told = subprocess.run(["ldd", EXECUTABLE], capture_output=True, text=True, check=True).stdout
    assert re.search(rf"^\s+{re.escape(visible_files.loader())} \(", told, re.MULTILINE)
