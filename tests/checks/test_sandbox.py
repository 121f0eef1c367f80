from __future__ import annotations

import ast
import collections
import math
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from escapes import open_to_everyone
from grouprl.checks.sandbox import (
    BACKENDS,
    CallFailure,
    Limits,
    ReturnValue,
    SandboxError,
    choose_backend,
    guest,
    run_in_sandbox,
    runner,
    why_unavailable,
)
from grouprl.checks.sandbox.backends import Launch
from grouprl.checks.sandbox.runner import LAUNCHERS
from grouprl.checks.sandbox.seccomp import MACHINES, filter_program
from grouprl.checks.sandbox.values import outcome
from grouprl.types import UserError

linux = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes need Linux")


# Values


VALUES: list[Any] = [
    *(None, True, False, 0, -1, 2**200, -(2**64), 0.1, -0.0, math.inf, -math.inf, math.nan, 1e-320, 1j),
    complex(-0.0, 2),
    *("", "é\n\"\\'", "\x00", "\ud800", "𝔘", b"", b"\x00\xff", [], (), set(), {}, frozenset()),
    *([1, [2, (3, {4: {5}})]], {(1, "a"): [None], 2.5: frozenset({b"x"})}, (True, 1, 1.0)),
]


def same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and repr(a) == repr(b)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_plain_value_comes_back_with_its_type(value: Any):
    read = outcome(guest.encode(value).encode())
    assert isinstance(read, ReturnValue)
    assert same(read.value, value)


@pytest.mark.parametrize(
    "value", [collections.Counter("aab"), collections.defaultdict(int, a=1), collections.OrderedDict(a=1)]
)
def test_dictionaries_of_the_standard_library_come_back_as_plain_ones(value: dict[str, int]):
    assert outcome(guest.encode(value).encode()) == ReturnValue(dict(value))


class Anything(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


class Mapping(dict[str, int]): ...


@pytest.mark.parametrize("value", [Anything(), [Anything()], {1: Anything()}, object(), int, Mapping(), iter([])])
def test_an_object_with_own_behavior_is_not_returned(value: object):
    with pytest.raises(TypeError, match="expected plain data"):
        guest.encode(value)


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"{}", b"[]", b'["i"]', b'["i","x"]', b'["i",3]', b'["x",1]', b'["s","zz"]', b'["s","ff"]', b"3"),
        *(b'["list",3]', b'["set",[["list",[]]]]', b'["dict",[[true]]]', b'["dict",[[["list",[]],true]]]', b"\xff"),
        *(b'["f","0x1p99999"]', b'["error"]', b'["error",[1]]', b"[" * 50_000, b'["list",[' * 5000),
        *(b'["list",[' * 5000 + b"]]" * 5000, b"NaN", b'["i",' + b"1" * 5000 + b"]"),
    ],
)
def test_a_malformed_report_is_a_failed_call(line: bytes):
    assert isinstance(outcome(line), CallFailure)


@pytest.mark.parametrize(
    ("name", "value"),
    [("seconds", 0.0), ("seconds", math.nan), ("memory_mib", 1.5), ("threads", True), ("files_mib", "1")],
)
def test_a_limit_that_makes_no_sense_is_refused(name: str, value: Any):
    with pytest.raises(UserError, match=f"expected {name} to be a number above 0.*got"):
        Limits(**{name: value})


# Runs


@linux
def test_calls_are_answered_in_order_in_the_program_s_namespace(backend: str):
    program = "total = 0\ndef add(n):\n    global total\n    total += n\n    print('adding', n)\n    return total"
    result = run_in_sandbox(program, ["add(2)", "add(3)", "1 / 0", "add", "__name__"], backend=backend)
    assert result.outcomes == (
        ReturnValue(2),
        ReturnValue(5),
        CallFailure("ZeroDivisionError: division by zero"),
        CallFailure("TypeError: expected plain data, got function"),
        ReturnValue("program"),
    )
    assert (result.error, result.output) == ("", "adding 2\nadding 3\n")
    assert 0 < result.seconds < 4


@linux
@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("def f(:", "SyntaxError: invalid syntax"),
        ("raise ValueError('no')", "ValueError: no"),
        ("raise SystemExit", "SystemExit"),
        ("class E(Exception):\n    def __str__(self):\n        raise self\nraise E", ""),
        ("x = '\ud800'", "UnicodeEncodeError"),
    ],
)
def test_a_program_that_fails_is_a_result(backend: str, program: str, error: str):
    result = run_in_sandbox(program, ["1"], backend=backend)
    assert result.error.startswith(error)
    assert isinstance(result.outcomes[0], CallFailure)


@linux
def test_the_set_up_runs_first_and_its_failure_is_no_verdict(backend: str):
    assert run_in_sandbox("y = x + 1", ["y"], setup="x = 1", backend=backend).outcomes == (ReturnValue(2),)
    with pytest.raises(ValueError, match=r"expected a set-up that runs(.|\n)*NameError"):
        run_in_sandbox("y = 1", ["y"], setup="x = missing", backend=backend)


@linux
def test_the_standard_library_is_there_and_the_same_program_gives_the_same_result(backend: str):
    imports = "import bisect, collections, dataclasses, datetime, decimal, fractions, functools, heapq, itertools, json"
    program = f"{imports}, math, random, re, statistics, string, typing\n"
    program += "@dataclasses.dataclass\nclass P:\n    x: int = 3\n"
    calls = ["P().x", "sys.version_info[:2]", "list({'a', 'b', 'c', 'd', 'e', 'f'})"]
    first = run_in_sandbox(program, calls, setup="import sys", backend=backend).outcomes
    assert first[:2] == (ReturnValue(3), ReturnValue(sys.version_info[:2]))
    assert run_in_sandbox(program, calls, setup="import sys", backend=backend).outcomes == first


@linux
def test_there_is_nothing_to_read_from_standard_input(backend: str):
    outcomes = run_in_sandbox("import sys", ["input()", "sys.stdin.read()"], backend=backend).outcomes
    assert outcomes == (CallFailure("EOFError: EOF when reading a line"), ReturnValue(""))


# Backends


@linux
def test_the_choice_is_the_first_backend_that_works():
    working = [name for name in BACKENDS if why_unavailable(name) is None]
    if not working:
        pytest.skip("no backend works here")
    assert choose_backend() == working[0]


def test_without_linux_every_backend_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runner.sys, "platform", "darwin")
    monkeypatch.setattr(runner, "why_unavailable", why_unavailable.__wrapped__)
    with pytest.raises(UserError, match=r"bubblewrap: it needs Linux.*landlock: it needs Linux.*install bubblewrap"):
        choose_backend.__wrapped__()


@linux
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root, and setpriv")
@pytest.mark.parametrize(
    ("lost", "reasons"),
    [
        ("sys_admin", {"bubblewrap": "root may not mount"}),
        ("kill", {"bubblewrap": "root may not end processes", "landlock": "root may not end processes"}),
        ("setuid", {"bubblewrap": "setuid failed", "landlock": "Operation not permitted"}),
    ],
)
def test_the_reason_names_the_capability_that_root_lacks(lost: str, reasons: dict[str, str]):
    program = f"from grouprl.checks.sandbox import why_unavailable\nprint([why_unavailable(b) for b in {BACKENDS!r}])"
    command = ["setpriv", f"--bounding-set=-{lost}", f"--inh-caps=-{lost}", sys.executable, "-c", program]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(zip(BACKENDS, ast.literal_eval(told), strict=True))
    for name in BACKENDS:
        if why_unavailable(name) is None:
            assert (reasons[name] in found[name]) if name in reasons else (found[name] is None)


@linux
def test_a_missing_command_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_unavailable.__wrapped__("bubblewrap") == "bwrap is not installed (apt install bubblewrap)"
    with pytest.raises(SandboxError, match="bwrap is not installed"):
        run_in_sandbox("x = 1", ["x"], backend="bubblewrap")


@linux
def test_a_sandbox_that_does_not_come_up_says_nothing_of_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    open_to_everyone(broken)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert shutil.which("bwrap") == str(broken)
    with pytest.raises(SandboxError, match=r"bubblewrap: ended its process \(status 1\): .*uid map: Permission denied"):
        run_in_sandbox("x = 1", ["x"], backend="bubblewrap")


@linux
def test_a_backend_that_locks_nothing_in_is_not_used(monkeypatch: pytest.MonkeyPatch):
    def bare(channels: Any, limits: Limits) -> Launch:
        text = Path(guest.__file__).read_text()
        return Launch((sys.executable, "-S", "-c", f"{text}\nmain({channels.result})"), {}, (channels.result,), None)

    monkeypatch.setitem(LAUNCHERS, "bare", bare)
    reason = why_unavailable.__wrapped__("bare")
    assert reason is not None
    assert reason.startswith("a test program was not confined, it ")
    for loose in ("reads files", "lists folders", "opens sockets", "starts processes"):
        assert loose in reason


# The filter, run by an interpreter of classic BPF (linux/bpf_common.h) with the headers' own numbers

HEADERS = {
    "x86_64": (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), r"#define __NR_(\w+)\s+(\d+)"),
    "aarch64": (Path("/usr/include/asm-generic/unistd.h"), r"#define __NR(?:3264)?_(\w+)\s+(\d+)"),
}
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000


def numbers(machine: str) -> dict[str, int]:
    path, pattern = HEADERS[machine]
    if not path.is_file():
        pytest.skip(f"no {path}")
    found = {name: int(number) for name, number in re.findall(pattern, path.read_text())}
    return found | ({"newfstatat": found["fstatat"]} if "fstatat" in found else {})


def decide(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    data = struct.pack("<IIQ6Q", number, audit or AUDIT[machine], 0, *arguments, *[0] * (6 - len(arguments)))
    code = list(struct.iter_unpack("<HBBI", filter_program(machine)))
    place = accumulator = 0
    while True:
        operation, if_true, if_false, operand = code[place]
        place += 1
        if operation == 0x20:
            [accumulator] = struct.unpack_from("<I", data, operand)
        elif operation == 0x06:
            return int(operand)
        else:
            test = {0x15: accumulator == operand, 0x35: accumulator >= operand, 0x45: bool(accumulator & operand)}
            place += if_true if test[operation] else if_false


REFUSED = re.findall(
    r"\w+",
    """
socket socketpair connect bind listen accept accept4 sendto recvfrom sendmsg recvmsg ptrace process_vm_readv kcmp
process_vm_writev unshare setns mount umount2 pivot_root chroot bpf perf_event_open userfaultfd keyctl add_key
request_key init_module finit_module delete_module kexec_load reboot swapon swapoff open_by_handle_at name_to_handle_at
memfd_create shmget shmat msgget semget mq_open personality seccomp execveat kill tkill tgkill rt_sigqueueinfo setuid
setgid setresuid setgroups capset setpriority sched_setaffinity sched_setscheduler ioprio_set truncate fchmod fchmodat
fchownat utimensat setxattr linkat symlinkat mknodat quotactl acct settimeofday clock_settime sethostname syslog vhangup
lookup_dcookie flock fanotify_init inotify_init1 splice tee vmsplice migrate_pages move_pages mbind timer_create
""",
)
NEW = re.findall(
    r"\w+", "io_uring_setup io_uring_enter clone3 pidfd_open pidfd_getfd openat2 mount_setattr landlock_create_ruleset"
)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_refuses_forbidden_calls(machine: str):
    known = numbers(machine)
    assert {name: decide(machine, known[name]) for name in REFUSED} == dict.fromkeys(REFUSED, EPERM)
    assert {name: decide(machine, known[name]) for name in NEW if name in known} == {
        name: ENOSYS for name in NEW if name in known
    }
    assert decide(machine, 5000) == ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_allows_exactly_its_named_calls(machine: str):
    from grouprl.checks.sandbox import seccomp

    known = numbers(machine)
    words = seccomp._ALLOWED.split()
    named = {
        name
        for name, pair in zip(words[::2], words[1::2], strict=True)
        if pair.split("/")[MACHINES.index(machine)] != "-"
    }
    allowed = {name for name, number in known.items() if decide(machine, number, 1 << 31, 1 << 31) == ALLOW}
    assert allowed - {"fstatat"} == named


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_looks_at_arguments(machine: str):
    known = numbers(machine)

    def allows(name: str, *arguments: int) -> bool:
        return decide(machine, known[name], *arguments) == ALLOW

    assert allows("clone", 0x3D0F00)  # what pthread_create asks for
    assert not any(allows("clone", flags) for flags in (0, 17, 0x4111, 0x01200011, 0x10000011, 0x3D0F00 | 0x10000000))
    assert [option for option in range(80) if allows("prctl", option)] == [15, 16]
    assert [pid for pid in (0, 1, 2, 2**32 - 1) if allows("prlimit64", pid)] == [0]
    assert not any(allows("fcntl", 3, command) for command in (5, 6, 7, 8, 10, 15, 36, 37, 38, 1024, 1026))
    assert all(allows("fcntl", 3, command) for command in (0, 1, 2, 3, 4, 1030))
    assert not any(allows("ioctl", 0, request) for request in (0x5412, 0x541C, 0x8901, 0x5452))  # TIOCSTI, ...
    assert allows("ioctl", 0, 0x5401)


@pytest.mark.parametrize("machine", MACHINES)
def test_another_architecture_is_deadly(machine: str):
    assert decide(machine, 0, audit=0x40000003) == KILL  # i386
    assert decide("x86_64", 0x40000000 + 39) == KILL  # x32


def test_a_machine_without_a_filter_is_refused():
    with pytest.raises(SandboxError, match="known for x86_64 and aarch64, not for riscv64"):
        filter_program("riscv64")
