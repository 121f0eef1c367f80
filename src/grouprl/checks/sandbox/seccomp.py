"""The system calls that a program may make, as a filter that the kernel runs (seccomp mode 2).

The filter allows the listed calls and refuses all others: sockets of every kind, new processes, signals to others,
debugging, namespaces, mounts, keys, io_uring, and whatever future kernels add. The numbers come from the Linux headers
(asm/unistd_64.h and asm-generic/unistd.h), the instructions from classic BPF (linux/filter.h, linux/seccomp.h).
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Sequence

from grouprl.checks.sandbox.values import SandboxError

# name x86_64/aarch64; "-" where the machine has no such call
_ALLOWED = """
read 0/63 write 1/64 readv 19/65 writev 20/66 pread64 17/67 pwrite64 18/68 preadv 295/69 pwritev 296/70 lseek 8/62
open 2/- openat 257/56 close 3/57 close_range 436/436 stat 4/- fstat 5/80 lstat 6/- newfstatat 262/79 statx 332/291
statfs 137/43 fstatfs 138/44 access 21/- faccessat 269/48 faccessat2 439/439 readlink 89/- readlinkat 267/78
getdents64 217/61 getcwd 79/17 chdir 80/49 fchdir 81/50 mkdir 83/- mkdirat 258/34 rmdir 84/- unlink 87/- unlinkat 263/35
rename 82/- renameat 264/38 renameat2 316/276 ftruncate 77/46 fsync 74/82 fdatasync 75/83 umask 95/166
dup 32/23 dup2 33/- dup3 292/24 pipe 22/- pipe2 293/59 poll 7/- ppoll 271/73 select 23/- pselect6 270/72
epoll_create1 291/20 epoll_ctl 233/21 epoll_wait 232/- epoll_pwait 281/22 eventfd2 290/19
mmap 9/222 munmap 11/215 mprotect 10/226 mremap 25/216 madvise 28/233 msync 26/227 brk 12/214
rt_sigaction 13/134 rt_sigprocmask 14/135 rt_sigreturn 15/139 rt_sigpending 127/136 rt_sigsuspend 130/133
rt_sigtimedwait 128/137 sigaltstack 131/132 pause 34/- alarm 37/- setitimer 38/103 getitimer 36/102
futex 202/98 set_robust_list 273/99 rseq 334/293 set_tid_address 218/96 membarrier 324/283 restart_syscall 219/128
exit 60/93 exit_group 231/94 execve 59/221 wait4 61/260 waitid 247/95 sched_yield 24/124 sched_getaffinity 204/123
getcpu 309/168 clock_gettime 228/113 clock_getres 229/114 clock_nanosleep 230/115 nanosleep 35/101 gettimeofday 96/169
time 201/- times 100/153 getrusage 98/165 getrlimit 97/163 setrlimit 160/164 getrandom 318/278 uname 63/160
sysinfo 99/179 arch_prctl 158/- getpid 39/172 getppid 110/173 gettid 186/178 getuid 102/174 geteuid 107/175
getgid 104/176 getegid 108/177 getresuid 118/148 getresgid 120/150 getgroups 115/158 getpgrp 111/- getpgid 121/155
getsid 124/156 getpriority 140/141
"""
# Calls allowed for some values of one argument: name, numbers, argument, values. The kernel reads 32 bits of each.
_ALLOWED_VALUES = (
    ("prctl", (157, 167), 0, (15, 16, 0x53564D41)),  # PR_SET_NAME, PR_GET_NAME, PR_SET_VMA
    ("prlimit64", (302, 261), 0, (0,)),  # its own limits only: it could starve another process of the same user
    # Without F_SETOWN, which sends signals to others, and without locks, which would block other users of the file.
    ("fcntl", (72, 25), 1, (0, 1, 2, 3, 4, 1030)),
    ("ioctl", (16, 29), 1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),  # TCGETS, TIOCGWINSZ, FIO*
)
_CLONE, _CLONE_THREAD = (56, 220), 0x10000
_CLONE_NEW = 0x7E020000  # all namespaces
_X32 = 0x40000000  # the same calls of x86_64 under other numbers
_FIRST_NEW = 424  # libc works without the calls from this number on, which are new (clone3 is 435)

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
MACHINES = tuple(_AUDIT)
"""The processors that have a filter."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000

Instruction = tuple[int, int, int, int]
"""Code, instructions to skip if true, instructions to skip if false, operand."""

_REFUSAL: Instruction = (_RETURN, 0, 0, _REFUSE | errno.EPERM)


def filter_program(machine: str | None = None) -> bytes:
    """The filter as an array of `struct sock_filter`, for this machine or another one of MACHINES.

    Raises SandboxError for a machine without a filter.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT:
        raise SandboxError(f"the list of system calls is known for {' and '.join(_AUDIT)}, not for {machine}")
    audit, column = _AUDIT[machine], MACHINES.index(machine)
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),
    ]
    numbers_of_calls = (pair.split("/")[column] for pair in _ALLOWED.split()[1::2])
    for number in numbers_of_calls:
        code += [] if number == "-" else [(_EQUAL, 0, 1, int(number)), (_RETURN, 0, 0, _ALLOW)]
    for _, numbers, argument, values in _ALLOWED_VALUES:
        allowed = [((_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)) for value in values]
        code += _where(numbers[column], argument, [instruction for pair in allowed for instruction in pair])
    thread = [(_ANY_BIT, 0, 1, _CLONE_NEW), _REFUSAL, (_ANY_BIT, 0, 1, _CLONE_THREAD), (_RETURN, 0, 0, _ALLOW)]
    code += _where(_CLONE[column], 0, thread)
    code += [(_AT_LEAST, 0, 1, _FIRST_NEW), (_RETURN, 0, 0, _REFUSE | errno.ENOSYS), _REFUSAL]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def _where(number: int, argument: int, tests: Sequence[Instruction]) -> list[Instruction]:
    """The tests of one call's argument, followed by a refusal where none of them decides."""
    load = (_LOAD, 0, 0, _ARGUMENTS + 8 * argument)  # the lower half: both machines are little-endian
    return [(_EQUAL, 0, len(tests) + 2, number), load, *tests, _REFUSAL]
