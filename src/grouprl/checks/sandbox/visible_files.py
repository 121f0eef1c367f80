"""The files of this machine that a sandbox shows: the standard library without installed packages, and its libraries.

This is an allow list. Other people's packages lie beside a standard library, and so do this project's own tests and
solutions where it is installed.
"""

from __future__ import annotations

import platform
import re
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path

from grouprl.checks.sandbox.values import SandboxError

PREFIX = Path(sys.base_prefix).resolve()
EXECUTABLE = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
STDLIB = Path(sysconfig.get_path("stdlib")).resolve()
PACKAGES = ("site-packages", "dist-packages")
"""Folders of a standard library that hold installed packages."""

# Debian keeps only libraries there, so the folder is shown as a whole: a mount for each file would take 0.3 ms.
_MULTIARCH = f"{platform.machine()}-linux-gnu"
_NAMED = re.compile(rb"lib[\w.+-]+\.so(?:\.\d+)*(?=\0)")
_LOADER = re.compile(rb"/[\w./-]+/ld-[\w.-]+\.so\.\d+(?=\0)")


def place(path: Path, prefix: str) -> str:
    """The path of `path` inside a sandbox that shows the interpreter's prefix at `prefix`."""
    return f"{prefix}/{path.relative_to(PREFIX)}" if path.is_relative_to(PREFIX) else str(path)


@lru_cache(maxsize=1)
def readable() -> tuple[list[Path], list[Path]]:
    """The files and the folders to show where the standard library is shown part by part, with the shared libraries.

    It has neither package folders nor links that lead elsewhere. Cached, because checking each path takes a tenth of a
    program's time.
    """
    parts = (part for part in STDLIB.iterdir() if part.name not in PACKAGES and part.resolve().is_relative_to(STDLIB))
    paths = (*sorted(parts), *libraries())
    return [path for path in paths if not path.is_dir()], [path for path in paths if path.is_dir()]


@lru_cache(maxsize=1)
def libraries() -> tuple[Path, ...]:
    """The shared libraries that the interpreter and its extension modules name, directly and through each other.

    A folder that holds only libraries stands for them. The first call reads some 20 MB, which takes up to 0.1 s.
    """
    waiting = [EXECUTABLE, *(module for module in STDLIB.glob("lib-dynload/*.so") if "_tkinter" not in module.name)]
    shown: dict[Path, None] = {}
    while waiting:
        for name in set(_NAMED.findall(waiting.pop().read_bytes())):
            files = (folder / name.decode() for folder in _folders())
            path = next((file for file in files if file.is_file()), None)
            # A folder that holds only libraries stands for them.
            path = path.parent if path is not None and path.parent.name == _MULTIARCH else path
            if path is not None and path not in shown:
                shown[path] = None
                waiting += [path] if path.is_file() else []
    return tuple(sorted(shown))


def library_path(prefix: str) -> str:
    """The folders of the shared libraries in the loader's form, in search order."""
    holding = {path if path.is_dir() else path.parent for path in libraries()}
    return ":".join(place(folder, prefix) for folder in _folders() if folder in holding)


@lru_cache(maxsize=1)
def loader() -> str:
    """The path of the dynamic loader that the interpreter names. Raises SandboxError when it names none."""
    match = _LOADER.search(EXECUTABLE.read_bytes())
    if match is None:
        raise SandboxError(f"{EXECUTABLE} names no dynamic loader")
    return match[0].decode()


@lru_cache(maxsize=1)
def _folders() -> tuple[Path, ...]:
    """The search path of a loader: the interpreter's own folders, then those of the system in Debian's order."""
    prefix_folders = (PREFIX / "lib", PREFIX / sys.platlibdir)
    multiarch = (f"/lib/{_MULTIARCH}", f"/usr/lib/{_MULTIARCH}")
    names = (*prefix_folders, "/usr/local/lib", *multiarch, "/lib64", "/usr/lib64", "/lib", "/usr/lib")
    return tuple(dict.fromkeys(path for path in (Path(name).resolve() for name in names) if path.is_dir()))
