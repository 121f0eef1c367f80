"""The Landlock backend's confinement: an interpreter confines itself for good by Landlock, seccomp and a death signal.

No module imports this file. A fresh interpreter gets its text before that of `guest.py`, and runs it before the first
line of the program. Numbers and structures come from linux/landlock.h, linux/prctl.h and linux/seccomp.h.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys

OLDEST_LANDLOCK = 3  # the first version that also restricts truncation (Linux 6.2)
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF, _SECCOMP = 444, 445, 446, 317 if os.uname().machine == "x86_64" else 277
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_READ_FILE, _READ_DIR, _WRITE_FILE = 1 << 2, 1 << 3, 1 << 1
_FILE_RIGHTS = {3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}  # by Landlock version
_TCP_RIGHTS, _SCOPES = 0b11, 0b11  # bind and connect; abstract sockets and signals
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")


def confine(parent: int, filter_program: bytes, files: list[str], folders: list[str]) -> None:
    """Leaves this process only these files and folders to read: no network, no new processes, death with `parent`.

    Raises OSError when the kernel refuses one of the restrictions.
    """
    keep_listing(os.path.dirname(os.__file__))
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> int:
        status: int = getattr(libc, name)(*arguments)
        if status < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")
        return status

    call("prctl", _PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # the parent died before its death could be signaled
    call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    version = call("syscall", _CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < OLDEST_LANDLOCK:
        raise OSError(f"Landlock {OLDEST_LANDLOCK} (Linux 6.2) or newer is needed, this kernel has {version}")
    handled = _FILE_RIGHTS[min(version, max(_FILE_RIGHTS))]
    attributes = struct.pack("<QQQ", handled, _TCP_RIGHTS, _SCOPES)[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = call("syscall", _CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    allowed = {
        **dict.fromkeys(files, _READ_FILE),
        **dict.fromkeys(folders, _READ_FILE | _READ_DIR),
        **dict.fromkeys(filter(os.path.exists, _DEVICES), _READ_FILE | _WRITE_FILE),
    }
    for path, rights in allowed.items():
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        call("syscall", _ADD_RULE, rules, 1, struct.pack("<Qi", rights, descriptor), 0)
        os.close(descriptor)
    call("syscall", _RESTRICT_SELF, rules, 0)
    os.close(rules)
    instructions = ctypes.create_string_buffer(filter_program, len(filter_program))
    program = struct.pack("HP", len(filter_program) // 8, ctypes.addressof(instructions))
    call("syscall", _SECCOMP, 1, 0, program)


def keep_listing(library: str) -> None:
    """Makes the import system keep the list of the library's files that it has read.

    The list cannot be read again: a right to list a folder would also cover the installed packages below it.
    """
    finder = sys.path_importer_cache[library]
    setattr(finder, "invalidate_caches", lambda: None)  # noqa: B010  a method, of one object
