"""Programs that try to get out of the sandbox, to outlive it or to starve the machine; each on every backend here."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from grouprl.rewards.sandbox import BACKENDS, Failed, Limits, Returned, run_in_sandbox, why_unavailable
from grouprl.rewards.sandbox.interpreter import text_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes need Linux")
ROOT = Path(__file__).parent.parent
HELPER = """
import os, sys
def tried(act, *arguments):
    try:
        result = act(*arguments)
    except (OSError, RuntimeError, ImportError) as error:
        return "blocked"
    return f"{result!r:.80}"
def call(number, *arguments):
    import ctypes
    return tried(failing, ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))
def failing(result):
    if result < 0:
        raise OSError
    return result
"""

# Each `attack()` gives a list with an item for every way that was tried; all have to be "blocked".
BLOCKED = {
    "read files": """
    def attack():
        paths = [{secret!r}, {home!r} + "/.bashrc", {home!r} + "/.ssh/id_rsa", {repository!r} + "/pyproject.toml",
                 "/etc/passwd", "/etc/shadow", "/etc/hostname", "/proc/1/environ", f"/proc/{{os.getppid()}}/environ",
                 "/proc/self/environ", "/proc/self/maps", "/proc/self/mem", "/proc/cpuinfo", "/sys/kernel/vmcoreinfo"]
        folders = [{home!r}, {repository!r}, "/proc", "/sys", "/root", "/home", "/var", "/run", "/bin", "/usr/bin",
                   os.path.dirname({secret!r})]
        def up(descriptor, path):
            return os.open("../" * 12 + path, os.O_RDONLY, dir_fd=descriptor)
        climbing = [tried(up, descriptor, path) for descriptor in range(64) for path in ("etc/passwd", {secret!r}[1:])]
        return climbing + [tried(open, path) for path in paths] + [tried(os.listdir, folder) for folder in folders]
    """,
    "write files": """
    def attack():
        folders = ["/", "/dev", "/dev/shm", "/etc", "/usr/lib", "/lib", "/python", "/python/lib", "/var/tmp",
                   os.path.dirname(os.__file__), {repository!r}, {home!r}]
        return ([tried(open, folder + "/planted", "w") for folder in folders]
                + [tried(open, os.__file__, "a"), tried(open, {secret!r}, "r+"), tried(os.truncate, {secret!r}, 0),
                   tried(os.chmod, {secret!r}, 0o777), tried(os.utime, {secret!r}),
                   tried(os.open, os.__file__, os.O_RDONLY | os.O_TRUNC)])
    """,
    "links, pipes and devices": """
    def attack():
        return [tried(os.symlink, "/etc/passwd", "/tmp/link"), tried(os.link, os.__file__, "/tmp/link"),
                tried(os.mkfifo, "/tmp/pipe"), tried(os.mknod, "/tmp/node"), tried(os.memfd_create, "memory")]
    """,
    "sockets": """
    def attack():
        import _socket as s
        families = [s.AF_INET, s.AF_INET6, s.AF_UNIX, s.AF_NETLINK, s.AF_PACKET, 40]
        kinds = [s.SOCK_STREAM, s.SOCK_DGRAM, s.SOCK_RAW, s.SOCK_SEQPACKET]
        return ([tried(s.socket, family, kind) for family in families for kind in kinds]
                + [tried(s.socketpair), tried(s.getaddrinfo, "localhost", 80), tried(s.getaddrinfo, "example.com", 80)])
    """,
    "connections": """
    def attack():
        import socket
        return ([tried(socket.create_connection, (host, {port}), 1) for host in ("127.0.0.1", "::1", "1.1.1.1")]
                + [tried(socket.create_server, ("127.0.0.1", 0))])
    """,
    "processes": """
    def attack():
        import subprocess
        return [tried(os.fork), tried(os.forkpty), tried(os.system and subprocess.run, ["/bin/true"]),
                tried(subprocess.run, [sys.executable, "-c", ""]), tried(os.execv, "/bin/sh", ["sh"]),
                tried(os.posix_spawn, "/bin/true", ["true"], {{}}), tried(os.popen, "true")]
    """,
    "others' processes": """
    def attack():
        import fcntl, resource, signal
        parent, (reading, writing) = os.getppid(), os.pipe()
        return [tried(os.kill, parent, 9), tried(os.kill, parent, 0), tried(os.kill, -1, 9), tried(os.kill, 1, 9),
                tried(os.killpg, 0, 9), tried(os.pidfd_open, 1), tried(os.setpriority, os.PRIO_USER, 0, 19),
                tried(resource.prlimit, parent or 1, resource.RLIMIT_CPU, (0, 0)),
                tried(fcntl.fcntl, reading, fcntl.F_SETOWN, parent or 1), tried(os.sched_setaffinity, 0, [0]),
                tried(signal.pthread_kill, __import__("threading").get_ident(), 9)]
    """,
    "privileges": """
    def attack():
        import resource
        larger = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        limits = [resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC]
        def raised(limit):
            try:
                resource.setrlimit(limit, larger)
            except ValueError:
                raise OSError from None
        return ([tried(os.setuid, 0), tried(os.setgid, 0), tried(os.setgroups, [0]), tried(os.chroot, "/tmp")]
                + [tried(raised, limit) for limit in limits])
    """,
}
# Numbers of x86_64 (asm/unistd_64.h), called past the standard library.
_CALLS = """
socket: 41,2,1,0 | socketpair: 53,1,1,0,0 | connect: 42,0,0,0 | sendmsg: 46,0,0,0 | ptrace: 101,16,1,0,0
traceme: 101,0,0,0,0 | process_vm_readv: 310,1,0,0,0,0,0 | pidfd_open: 434,1,0 | pidfd_getfd: 438,0,0,0
kcmp: 312,1,1,0,0,0 | tkill: 200,1,9 | unshare: 272,0x10000000 | setns: 308,0,0 | clone: 56,0x11,0,0,0,0
fork: 57 | vfork: 58 | clone newuser: 56,0x10000011,0,0,0,0 | clone3: 435,0,88 | execveat: 322,-1,0,0,0,0
mount: 165,0,0,0,0,0 | umount2: 166,0,0 | pivot_root: 155,0,0 | fsopen: 430,0,0 | open_tree: 428,-100,0,0
move_mount: 429,0,0,0,0,0 | open_by_handle_at: 304,0,0,0 | bpf: 321,0,0,0 | perf_event_open: 298,0,0,-1,-1,0
userfaultfd: 323,0 | io_uring_setup: 425,1,0 | io_uring_enter: 426,0,0,0,0,0,0 | memfd_create: 319,0,0
keyctl: 250,0,-3,0 | add_key: 248,0,0,0,0,-3 | request_key: 249,0,0,0,-3 | shmget: 29,0,4096,0o1600
msgget: 68,0,0o1600 | semget: 64,0,1,0o1600 | mq_open: 240,0,0 | personality: 135,0x40000
prctl pdeathsig: 157,1,0,0,0,0 | prctl dumpable: 157,4,1,0,0,0 | seccomp: 317,1,0,0 | sysctl: 156,0
reboot: 169,0,0,0 | kexec_load: 246,0,0,0,0 | init_module: 175,0,0,0 | iopl: 172,3 | quotactl: 179,0,0,0,0
acct: 163,0 | x32 getpid: 0x40000027
"""
CALLS = {
    name: tuple(int(number, 0) for number in numbers.split(","))
    for name, _, numbers in (item.partition(": ") for item in _CALLS.strip().replace("\n", " | ").split(" | "))
}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    reason = why_unavailable(request.param)
    if reason:
        pytest.skip(f"{request.param}: {reason}")
    return str(request.param)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("a secret")
    path.chmod(0o666)
    return path


def source(body: str, secret: Path | str = "/secret", port: int = 9) -> str:
    filled = textwrap.dedent(body).format(secret=str(secret), home=str(Path.home()), repository=str(ROOT), port=port)
    return HELPER + filled


def running() -> set[int]:
    """Processes on this machine that run what a sandbox runs, or wait for it."""
    mark = text_of("inside.py")[:80].encode()
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
        except OSError:  # it ended meanwhile
            continue
    return found


def ends(processes: set[int], seconds: float = 3.0) -> bool:
    """Whether all of them end in time."""
    deadline = time.monotonic() + seconds
    while processes & running() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not processes & running()


@pytest.mark.parametrize("name", BLOCKED)
def test_a_way_out_is_blocked(backend: str, name: str, secret: Path):
    result = run_in_sandbox(source(BLOCKED[name], secret), ["attack()"], backend=backend)
    [outcome] = result.outcomes
    assert isinstance(outcome, Returned), result
    assert set(outcome.value) == {"blocked"}, outcome.value
    assert secret.read_text() == "a secret"


def test_the_same_programs_succeed_outside(secret: Path):
    """So that "blocked" means the sandbox, not a mistake in the attack."""
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
    assert outcome == Returned(dict.fromkeys(refused, "blocked"))
    [outcome] = run_in_sandbox(HELPER, [f"call({CALLS['x32 getpid'][0]})"], backend=backend).outcomes
    assert isinstance(outcome, Failed)


def test_no_connection_is_made_to_a_server_that_listens(backend: str):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        program = source(BLOCKED["connections"], port=server.getsockname()[1])
        run_in_sandbox(program, ["attack()"], backend=backend)
        with pytest.raises(TimeoutError):
            server.accept()


def test_the_environment_is_empty_and_the_user_nobody_in_particular(backend: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("API_TOKEN", "a secret")
    program = "import os, sys\ndef attack():\n    return dict(os.environ), os.getuid() != 0, os.getgroups(), sys.path"
    [outcome] = run_in_sandbox(program, ["attack()"], backend=backend).outcomes
    assert isinstance(outcome, Returned)
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
    return [kinds.pop(0) == stat.S_IFCHR, sorted(kinds.values()).count(stat.S_IFIFO), set(kinds.values())]
"""
    [outcome] = run_in_sandbox(program, ["attack()"], backend=backend).outcomes
    assert isinstance(outcome, Returned)
    null, pipes, kinds = outcome.value
    assert null
    assert pipes == 3  # standard output and error, and results
    # Landlock's rules hold for the folder of the interpreter as well, a new root would not.
    assert kinds == {"bubblewrap": {stat.S_IFIFO}, "landlock": {stat.S_IFIFO, stat.S_IFDIR}}[backend]


def test_memory_is_bounded(backend: str):
    program = "def attack():\n    held = []\n    while True:\n        held.append(bytearray(1 << 24))"
    [once, again, after] = run_in_sandbox(
        program, ["attack()", "bytearray(1 << 40)", "len(bytearray(1 << 20))"], backend=backend
    ).outcomes
    assert once == again == Failed("MemoryError: ")
    assert after == Returned(1 << 20)


def test_mapped_memory_is_bounded(backend: str):
    program = "import mmap\ndef attack():\n    held = [mmap.mmap(-1, 1 << 24) for _ in range(99)]"
    [outcome] = run_in_sandbox(program, ["attack()"], backend=backend).outcomes
    assert isinstance(outcome, Failed)


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
    assert isinstance(outcome, Returned)
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
    assert isinstance(outcome, Returned)
    if os.geteuid() == 0 or backend == "bubblewrap":  # else other processes of the same user count as well
        assert 1 <= outcome.value <= 9
    assert outcome.value <= 9


@pytest.mark.parametrize(
    "flood",
    [
        "print('x' * 5000)",
        "sys.stderr.write('x' * 5000)",
        "os.write(1, b'x' * 5000)",
        "[tried(os.write, number, b'x' * 5000) for number in range(3, 512)]",
        "[tried(os.write, number, b'null\\n' * 5000) for number in range(3, 512)]",
    ],
)
def test_a_flood_ends_the_program(backend: str, flood: str):
    result = run_in_sandbox(
        f"{HELPER}\nwhile True:\n    {flood}", ["1"], limits=Limits(output_kib=32, cpu_seconds=9), backend=backend
    )
    assert result.error == "wrote more than 32 KiB"
    assert result.outcomes == (Failed("no result: wrote more than 32 KiB"),)
    assert len(result.output) <= 32 << 10
    assert result.seconds < 3


@pytest.mark.parametrize(
    "result", ["'x' * 10**7", "[0] * 10**6", "1 << 10**7", "nested(10**5)", "itself()", "{1: bytes(10**6)}"]
)
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
    assert isinstance(outcome, Failed)


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


def test_nothing_survives_the_one_who_started_it(backend: str, tmp_path: Path):
    before = running()
    program = "import time\nprint('up', flush=True)\ntime.sleep(60)"
    runner = f"""
from grouprl.rewards.sandbox import Limits, run_in_sandbox
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


@pytest.mark.parametrize(
    "crash",
    [
        "ctypes.string_at(1)",
        "dive(0)",
        "os.abort()",
        "os._exit(0)",
        "sys.exit(0)",
    ],
)
def test_a_crash_is_a_result_and_the_next_program_runs(backend: str, crash: str):
    program = "import ctypes, os, sys\nsys.setrecursionlimit(10**9)\ndef dive(n):\n    return [n, *map(dive, [n + 1])]"
    first = run_in_sandbox(f"{program}\n{crash}", ["1"], backend=backend)
    assert first.outcomes[0].reason.startswith("no result")
    assert first.error
    within = run_in_sandbox(program, ["7", crash, "8"], backend=backend)
    assert within.outcomes[0] == Returned(7)
    assert isinstance(within.outcomes[1], Failed)
    assert run_in_sandbox("x = 1", ["x"], backend=backend).outcomes == (Returned(1),)


def test_deep_recursion_is_an_error_of_the_call_alone(backend: str):
    outcomes = run_in_sandbox("def f(n):\n    return f(n + 1)", ["f(0)", "2"], backend=backend).outcomes
    assert isinstance(outcomes[0], Failed)
    assert "RecursionError" in outcomes[0].reason
    assert outcomes[1] == Returned(2)


def test_a_sandbox_is_fresh(backend: str):
    run_in_sandbox(
        "import builtins, os\nbuiltins.x = 1\nopen('/tmp/x', 'w') if os.access('/tmp', 2) else 0", backend=backend
    )
    [name, file] = run_in_sandbox("import os", ["x", "os.path.exists('/tmp/x')"], backend=backend).outcomes
    assert name == Failed("NameError: name 'x' is not defined")
    assert file == Returned(False)


REACHABLE = shutil.which("python3", path="/usr/bin:/bin")
UNPRIVILEGED = """
import json, os, sys, types
os.chdir("/")
sys.path.insert(0, sys.argv[1])
import grouprl
rewards = types.ModuleType("grouprl.rewards")  # without what the package itself imports, which may not be installed
rewards.__path__ = [sys.argv[1] + "/grouprl/rewards"]
sys.modules["grouprl.rewards"] = rewards
from grouprl.rewards.sandbox import Returned, run_in_sandbox, why_unavailable
backend, programs = json.load(sys.stdin)
told = {"user": os.getuid(), "reason": why_unavailable(backend)}
if not told["reason"]:
    for name, program in programs.items():
        [outcome] = run_in_sandbox(program, ["attack()"], backend=backend).outcomes
        told[name] = outcome.value if isinstance(outcome, Returned) else [outcome.reason]
print(json.dumps(told))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="all other tests run without privileges already")
@pytest.mark.skipif(REACHABLE is None, reason="no interpreter of the system's own")
@pytest.mark.parametrize("backend_name", BACKENDS)
def test_ways_out_are_blocked_for_an_ordinary_user_as_well(backend_name: str, secret: Path):
    for folder in (secret.parent, secret.parent.parent, secret.parent.parent.parent):  # pytest's own
        folder.chmod(0o755)
    programs = {name: source(body, secret) for name, body in BLOCKED.items()}
    told = subprocess.run(
        [str(REACHABLE), "-c", UNPRIVILEGED, str(ROOT / "src")],
        input=json.dumps([backend_name, programs]),
        capture_output=True,
        text=True,
        user=65534,
        group=65534,
        extra_groups=[],
        env={"PATH": os.environ["PATH"]},
    )
    assert told.returncode == 0, told.stderr
    answers = json.loads(told.stdout)
    assert answers.pop("user") == 65534
    if reason := answers.pop("reason"):
        pytest.skip(reason)
    assert {name: set(tries) for name, tries in answers.items()} == {name: {"blocked"} for name in BLOCKED}
    assert secret.read_text() == "a secret"
