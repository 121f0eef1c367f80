"""Compiles the C files in this folder for this processor, once, and loads them where there is a compiler."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from grouprl.forward.products import cache_folder, processor
from grouprl.types import UserError

_HERE = Path(__file__).parent
_SOURCES = ("attention.c", "decode.c", "pointwise.c", "product.c", "step.c", "tokens.c")
_HEADERS = ("decode.h", "scores.h", "vector.h")
_FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fPIC", "-Wno-psabi")
# Flags that some compilers lack; the first variant that compiles is used.
_VARIANTS = (("-march=native", "-fopenmp"), ("-march=native",), ("-mcpu=native",), ())
_SWITCH = "GROUPRL_KERNELS"  # environment variable, see `setting`
_COMPILER_SECONDS = 300.0  # it takes seconds
_EXTRA = "CFLAGS"  # environment variable, as of make: -march=x86-64-v3 compiles for another processor than this one

# Letters of a signature: pointer, 64-bit integer, float, int (a flag), no result.
_TYPES: dict[str, Any] = {"p": ctypes.c_void_p, "n": ctypes.c_int64, "f": ctypes.c_float, "b": ctypes.c_int, "-": None}
_SIGNATURES = {
    "add_norm": ("pppppp" + "nn" + "fbb", "-"),
    "norm_backward": ("pppppppp" + "nn" + "b", "-"),
    "swiglu": ("ppp" + "nb", "-"),
    "swiglu_backward": ("ppppp" + "nb", "-"),
    "tree_attention": ("pppppppp" + "nnnnn" + "fbn" + "ppn", "-"),
    "tree_attention_backward": ("ppppppppppp" + "nnnnn" + "fbn" + "ppn" + "pp", "-"),
    "product": ("pppp" + "nnn", "-"),
    "decode_step": ("pn", "n"),
    "keep_prompts": ("ppppp" + "n" + "ppp" + "nnnn" + "bb", "-"),
    "logprobs": ("ppppp" + "nn" + "fb", "-"),
    "logprobs_backward": ("pppp" + "nn" + "fb", "-"),
    "draw": ("pppppp" + "nn" + "fb", "-"),
    "append": ("ppppppppp" + "nn" + "p" + "n" + "p", "n"),
    "width": ("", "n"),
    "cache_word": ("b", "n"),
}


def setting() -> str:
    """GROUPRL_KERNELS: "on" = every kernel, "off" = none, "" = each that is no slower than torch; else a UserError."""
    value = os.environ.get(_SWITCH, "")
    if value not in ("", "on", "off"):
        raise UserError(f"{_SWITCH}: expected on, off or no value, got {value!r}: correct it, or unset it")
    return value


def why_no_library() -> str | None:
    """The reason why `library` gives None; None = it gives the kernels, and has compiled them."""
    if setting() == "off":
        return f"switched off by {_SWITCH}=off"
    if platform.system() == "Windows":
        return "not supported on Windows"
    if _compiler() is None:
        return "no C compiler: install gcc or clang (apt install gcc)"
    return "the C compiler failed" if library() is None else None


def _compiler() -> str | None:
    return next(filter(None, map(shutil.which, (os.environ.get("CC", ""), "cc", "gcc", "clang"))), None)


@cache
def library() -> SimpleNamespace | None:
    """The compiled kernels by name; None without a C compiler or with GROUPRL_KERNELS=off."""
    file = None if setting() == "off" else library_file()
    if file is None:
        return None
    loaded = ctypes.CDLL(str(file))
    kernels = SimpleNamespace()
    for name, (arguments, result) in _SIGNATURES.items():
        function = loaded[f"grouprl_{name}"]
        function.argtypes, function.restype = [_TYPES[letter] for letter in arguments], _TYPES[result]
        setattr(kernels, name, function)
    return kernels


@cache
def library_file() -> Path | None:
    """The compiled library, whose name is a hash of all that it depends on; None where it cannot be compiled."""
    compiler = _compiler()
    if compiler is None or platform.system() == "Windows":
        return None
    try:
        digest = hashlib.blake2b(digest_size=12)  # with the processor, which "native" means
        for name in (*_SOURCES, *_HEADERS):
            digest.update((_HERE / name).read_bytes())
        command = [compiler, "--version"]
        version = subprocess.run(command, capture_output=True, check=False, timeout=_COMPILER_SECONDS).stdout
        digest.update(repr((_FLAGS, _VARIANTS, os.environ.get(_EXTRA), version, processor())).encode())
        file = cache_folder() / f"kernels-{digest.hexdigest()}.so"
        return file if is_intact(file) or _compile(compiler, file) else None
    except subprocess.TimeoutExpired:
        return None


def is_intact(file: Path) -> bool:
    """Whether the library is there as it was compiled: a truncated one would end the process with SIGBUS."""
    with suppress(OSError):
        return _digest_file(file).read_text(encoding="ascii") == hashlib.sha256(file.read_bytes()).hexdigest()
    return False


def _digest_file(file: Path) -> Path:
    return file.with_suffix(".sha256")


def _compile(compiler: str, target: Path) -> bool:
    # Compiled to a temporary folder and then renamed, so that another process never loads half a file.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        for variant in _VARIANTS:
            flags = (*_FLAGS, *variant, *shlex.split(os.environ.get(_EXTRA, "")))
            error = _try(compiler, flags, Path(scratch), target.name)
            if not error:
                compiled = Path(scratch) / target.name
                digest = _digest_file(compiled)
                digest.write_text(hashlib.sha256(compiled.read_bytes()).hexdigest(), encoding="ascii")
                compiled.replace(target)
                digest.replace(_digest_file(target))
                return True
    logging.getLogger(__name__).warning(
        "the kernels could not be compiled, so torch computes without them, which is slower: %s", error
    )
    return False


def _try(compiler: str, flags: Sequence[str], folder: Path, name: str) -> str:
    """Compiles the files in parallel and links them; gives the compiler's error text, empty on success."""
    commands = [[compiler, *flags, "-c", str(_HERE / file), "-o", str(folder / f"{file}.o")] for file in _SOURCES]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    try:
        results = [(process.communicate(timeout=_COMPILER_SECONDS)[1], process.returncode) for process in running]
    finally:
        for process in running:
            process.kill()
    failed = [text.strip() or "no reason given" for text, code in results if code]
    if failed:
        return failed[0]
    objects = [str(folder / f"{file}.o") for file in _SOURCES]
    link = [compiler, *flags, "-shared", "-o", str(folder / name), *objects, "-lm"]
    linked = subprocess.run(link, capture_output=True, text=True, check=False, timeout=_COMPILER_SECONDS)
    return (linked.stderr.strip() or "no reason given") if linked.returncode else ""
