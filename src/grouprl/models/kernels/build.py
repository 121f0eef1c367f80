"""Compiles the C files beside this one for this very processor, once, and loads them; without a compiler, nothing."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_SOURCES = ("attention.c", "decode.c", "pointwise.c", "tokens.c")
_HEADERS = ("scores.h", "vector.h")
_FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fPIC", "-shared")
_WITHOUT = "GROUPRL_KERNELS"  # set to "off", everything is computed by torch alone

# Of each function its arguments, then its result: pointer, integer of 64 bits, float, int (a yes or no), nothing.
_TYPES: dict[str, Any] = {"p": ctypes.c_void_p, "n": ctypes.c_int64, "f": ctypes.c_float, "b": ctypes.c_int, "-": None}
_SIGNATURES = {
    "add_norm": ("pppppp" + "nn" + "fbb", "-"),
    "norm_backward": ("pppppppp" + "nn" + "b", "-"),
    "swiglu": ("ppp" + "nb", "-"),
    "swiglu_backward": ("ppppp" + "nb", "-"),
    "tree_attention": ("pppppppp" + "nnnnn" + "fb", "-"),
    "tree_attention_backward": ("ppppppppppp" + "nnnnn" + "fb", "-"),
    "decode_attention": ("pn", "-"),
    "keep_prompts": ("ppppp" + "n" + "ppp" + "nnnn" + "bb", "-"),
    "logprobs": ("ppppp" + "nn" + "fb", "-"),
    "logprobs_backward": ("pppp" + "nn" + "fb", "-"),
    "draw": ("pppppp" + "nn" + "fb", "-"),
    "append": ("pppppppp" + "nn" + "p" + "n" + "p", "n"),
}


@cache
def library() -> SimpleNamespace | None:
    """The compiled kernels; None where there is no C compiler or GROUPRL_KERNELS=off."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if os.environ.get(_WITHOUT) == "off" or compiler is None or platform.system() == "Windows":
        return None
    folder = Path(__file__).parent
    sources = [folder / name for name in _SOURCES]
    made = _cache_folder() / f"kernels-{_key(compiler, [folder / name for name in (*_SOURCES, *_HEADERS)])}.so"
    if not made.exists() and not _compile(compiler, sources, made):
        return None
    loaded = ctypes.CDLL(str(made))
    kernels = SimpleNamespace()
    for name, (arguments, result) in _SIGNATURES.items():
        function = loaded[f"grouprl_{name}"]
        function.argtypes, function.restype = [_TYPES[letter] for letter in arguments], _TYPES[result]
        setattr(kernels, name, function)
    return kernels


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "grouprl"


def _key(compiler: str, files: list[Path]) -> str:
    """Changes with the sources, the compiler and the processor that `-march=native` means."""
    digest = hashlib.blake2b(digest_size=12)
    for path in files:
        digest.update(path.read_bytes())
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    processor = sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    digest.update(repr((_FLAGS, version, platform.machine(), processor)).encode())
    return digest.hexdigest()


def _compile(compiler: str, sources: list[Path], target: Path) -> bool:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Built beside its place and moved there, so that a process that starts meanwhile never loads half a file.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        built = Path(scratch) / target.name
        for threads in (("-fopenmp",), ()):
            command = [compiler, *_FLAGS, *threads, "-Wno-psabi", "-o", str(built), *map(str, sources), "-lm"]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode == 0:
                built.replace(target)
                return True
    logging.getLogger(__name__).warning(
        "the kernels could not be compiled, torch computes alone, slower (%s): %s", compiler, result.stderr.strip()
    )
    return False
