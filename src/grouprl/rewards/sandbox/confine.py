"""How an interpreter locks itself in, in place of bubblewrap: Landlock, seccomp and a parent's death, for good.

Nothing imports this file; its text is handed to a fresh interpreter in front of `inside.py`, and runs before a line of
the program does. Numbers and structures are those of linux/landlock.h, linux/prctl.h and linux/seccomp.h.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct

OLDEST_LANDLOCK = 3  # the first that also governs truncation (Linux 6.2)
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF, _SECCOMP = 444, 445, 446, 317 if os.uname().machine == "x86_64" else 277
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_READ_FILE, _READ_DIR, _WRITE_FILE = 1 << 2, 1 << 3, 1 << 1
_FILE_RIGHTS = {3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}  # by Landlock version
_TCP_RIGHTS, _SCOPES = 0b11, 0b11  # bind and connect; abstract sockets and signals
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


def confine(parent: int, filter_program: bytes, readable: list[str]) -> None:
    """Only `readable` folders, no network, no new processes, and death with the process `parent`. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> int:
        done: int = getattr(libc, name)(*arguments)
        if done < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")
        return done

    call("prctl", _PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it died before it could take this process along
    call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    version = call("syscall", _CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < OLDEST_LANDLOCK:
        raise OSError(f"Landlock {OLDEST_LANDLOCK} (Linux 6.2) or newer is needed, this kernel has {version}")
    handled = _FILE_RIGHTS[min(version, max(_FILE_RIGHTS))]
    attributes = struct.pack("<QQQ", handled, _TCP_RIGHTS, _SCOPES)[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = call("syscall", _CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    allowed = [(path, _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0)) for path in readable]
    for path, rights in [*allowed, *((device, _READ_FILE | _WRITE_FILE) for device in _DEVICES)]:
        if os.path.exists(path):
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            call("syscall", _ADD_RULE, rules, 1, struct.pack("<Qi", rights, place), 0)
            os.close(place)
    call("syscall", _RESTRICT_SELF, rules, 0)
    os.close(rules)
    instructions = ctypes.create_string_buffer(filter_program, len(filter_program))
    program = struct.pack("HP", len(filter_program) // 8, ctypes.addressof(instructions))
    call("syscall", _SECCOMP, 1, 0, program)
