"""Programs that try to get out of the sandbox, and a check whether one is still running."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grouprl.checks.sandbox.backends import text_of
from grouprl.checks.sandbox.visible_files import STDLIB

ROOT = Path(__file__).parents[2]
REACHABLE = shutil.which("python3", path="/usr/bin:/bin")
"""An interpreter that every user can start."""
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
    "read installed packages": """
    def attack():
        library, version = os.path.dirname(os.__file__), "python%d.%d" % sys.version_info[:2]
        above = [library, library + "/../" + version, library + "/../python3", {stdlib!r}, "/usr/lib/python3",
                 "/usr/lib/" + version, "/usr/local/lib/" + version]
        def listed(folder):
            found = os.listdir(folder)
            if not found:
                raise OSError
            return found
        folders = [f"{{folder}}/{{name}}-packages" for folder in above for name in ("site", "dist")]
        files = [folder + "/README.txt" for folder in folders]
        return ([tried(listed, folder) for folder in folders] + [tried(open, path) for path in files]
                + [tried(os.listdir, place) for place in ("/usr/share", "/usr/local", "/usr/local/lib", "/opt")])
    """,
    "take reports back": """
    def attack():
        return [tried(os.open, f"/proc/self/fd/{{number}}", os.O_RDONLY | os.O_NONBLOCK) for number in range(1, 64)
                if tried(os.write, number, b"") == "0"]
    """,
    "lock files": """
    def attack():
        import fcntl
        with open(os.__file__) as file:
            return [tried(fcntl.flock, file, fcntl.LOCK_SH | fcntl.LOCK_NB),
                    tried(fcntl.flock, file, fcntl.LOCK_EX | fcntl.LOCK_NB),
                    tried(fcntl.lockf, file, fcntl.LOCK_SH | fcntl.LOCK_NB),
                    tried(fcntl.fcntl, file, 37, bytes(32))]
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


def source(body: str, secret: Path | str = "/secret", port: int = 9) -> str:
    places = {"secret": str(secret), "home": str(Path.home()), "repository": str(ROOT), "stdlib": str(STDLIB)}
    return HELPER + textwrap.dedent(body).format(**places, port=port)


_UNPRIVILEGED = """
import json, os, sys, types
os.chdir("/")
sys.path.insert(0, sys.argv[1])
import grouprl
rewards = types.ModuleType("grouprl.rewards")  # without what the package itself imports, which may not be installed
rewards.__path__ = [sys.argv[1] + "/grouprl/rewards"]
sys.modules["grouprl.rewards"] = rewards
from grouprl.checks.sandbox import ReturnValue, run_in_sandbox, why_unavailable
backend, programs = json.load(sys.stdin)
told = {"user": os.getuid(), "reason": why_unavailable(backend)}
if not told["reason"]:
    for name, program in programs.items():
        [outcome] = run_in_sandbox(program, ["attack()"], backend=backend).outcomes
        told[name] = outcome.value if isinstance(outcome, ReturnValue) else [outcome.reason]
print(json.dumps(told))
"""


def told_by(python: str, backend: str, programs: Mapping[str, str], package: Path, **options: Any) -> dict[str, Any]:
    """What `attack()` of each program gives when `python` runs it in a sandbox, its "user" and a "reason" not to."""
    told = subprocess.run(
        [python, "-c", _UNPRIVILEGED, str(package)],
        input=json.dumps([backend, programs]),
        capture_output=True,
        text=True,
        **options,
    )
    assert told.returncode == 0, told.stderr
    answers: dict[str, Any] = json.loads(told.stdout)
    return answers


ORDINARY: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": [], "env": {"PATH": os.environ["PATH"]}}
"""How root starts something as a user without privileges."""


def running() -> set[int]:
    """Processes on this machine that run what a sandbox runs, or wait for it."""
    mark = text_of("guest.py")[:80].encode()
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
        except OSError:  # it ended meanwhile
            continue
    return found


def ends(processes: set[int], seconds: float = 10.0) -> bool:
    """Whether all of them end in time, which is longer than the sandboxes of another pytest worker take."""
    deadline = time.monotonic() + seconds
    while processes & running() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not processes & running()


def open_to_everyone(path: Path) -> None:
    """The user of the sandbox can reach and start a file that lies in a temporary folder of this user."""
    for one in (path, *(folder for folder in path.parents if Path(tempfile.gettempdir()) in folder.parents)):
        one.chmod(one.stat().st_mode | stat.S_IXOTH | stat.S_IROTH | stat.S_IXUSR)
