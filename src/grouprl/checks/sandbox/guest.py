"""The guest inside a sandbox: it reads the program, runs it, and reports the return values of the calls as data.

No module imports this file; a fresh interpreter gets its text. The guest shares that interpreter with the program,
which can take over everything below, so a report is only a claim. A claim is enough, because the expected values stay
outside.
"""

from __future__ import annotations

import os
import resource
import sys
from types import FunctionType, ModuleType

TYPE_CHECKING = False  # importing typing takes as long as starting the interpreter: 8 ms
if TYPE_CHECKING:
    from typing import Any


def main(result: int) -> None:
    """Reads a request from standard input, reports to the file descriptor `result`, and ends the process."""
    limits, setup, source, calls = request()
    limit(*limits)
    os.environ.clear()
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    report(result, "ready")
    module = ModuleType("program")
    sys.modules["program"] = module  # dataclasses and pickle look their module up
    sys.argv, sys.orig_argv = ["program"], ["program"]
    run(setup, module.__dict__)
    report(result, "prepared")
    try:
        run(source, module.__dict__)
    except BaseException as error:  # noqa: BLE001  SystemExit too: a program that exits has not reached its end
        report(result, failure(error))
        os._exit(1)
    report(result, "started")
    for call in calls:
        report(result, attempt(call, module.__dict__))
    flush()
    os._exit(0)  # without waiting for threads and exit handlers of the program


def request() -> tuple[list[int], str, str, list[str]]:
    """Reads a line of numbers (four limits, then the size of each text in bytes) and the texts."""
    parts = []
    while part := os.read(0, 1 << 20):
        parts.append(part)
    header, _, body = b"".join(parts).partition(b"\n")
    numbers = list(map(int, header.split()))
    texts, start = [], 0
    for size in numbers[4:]:
        texts.append(body[start : start + size].decode("utf-8", "surrogatepass"))
        start += size
    return numbers[:4], texts[0], texts[1], texts[2:]


def limit(cpu_seconds: int, memory: int, file_size: int, tasks: int) -> None:
    """Sets the soft and the hard limits of this process, which cannot be raised again."""
    for what, value in (
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_NPROC, tasks),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_STACK, 8 << 20),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


def run(source: str, namespace: dict[str, Any]) -> None:
    """Runs a module's text in a namespace."""
    FunctionType(compile(source, "program.py", "exec", dont_inherit=True), namespace)()


def attempt(call: str, namespace: dict[str, Any]) -> str:
    """Evaluates a call; gives its return value, or the error that it raises, as JSON."""
    try:
        return encode(FunctionType(compile(call, "call", "eval", dont_inherit=True), namespace)())
    except BaseException as error:  # noqa: BLE001  untrusted code can raise anything
        return failure(error)


def failure(error: BaseException) -> str:
    """An error as JSON; the text is empty when the error cannot be formatted."""
    try:
        text = f"{type(error).__name__}: {error}"
        return f'["error","{text[:300].encode("utf-8", "surrogatepass").hex()}"]'
    except BaseException:  # noqa: BLE001  an untrusted __str__ can raise anything
        return '["error",""]'


def encode(value: Any) -> str:
    """A value of exactly a builtin type, or a standard dictionary, as JSON. Raises TypeError for all others."""
    kind = type(value)
    if value is None or kind is bool:
        return {None: "null", True: "true", False: "false"}[value]
    if kind is int:
        return f'["i","{value:#x}"]'
    if kind is float:
        return f'["f","{value.hex()}"]'
    if kind is complex:
        return f'["c",["{value.real.hex()}","{value.imag.hex()}"]]'
    if kind is str:
        return f'["s","{value.encode("utf-8", "surrogatepass").hex()}"]'
    if kind is bytes:
        return f'["b","{value.hex()}"]'
    if kind in (list, tuple, set, frozenset):
        return f'["{kind.__name__}",[{",".join(map(encode, value))}]]'
    if kind is dict or is_standard_dict(kind):
        return f'["dict",[{",".join(f"[{encode(key)},{encode(item)}]" for key, item in dict.items(value))}]]'
    raise TypeError(f"expected plain data, got {kind.__name__}")


def is_standard_dict(kind: type) -> bool:
    """Whether a type is a dictionary of `collections`, which equals a plain dictionary with the same items."""
    collections = sys.modules.get("collections")
    names = ("Counter", "defaultdict", "OrderedDict")
    return collections is not None and any(kind is getattr(collections, name, None) for name in names)


def report(result: int, line: str) -> None:
    """Writes a whole line, in as many writes as it takes."""
    rest = line.encode() + b"\n"
    while rest:
        rest = rest[os.write(result, rest) :]


def flush() -> None:
    """Writes out what the program printed and Python still buffers."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001  the program may have put anything in their place
        os._exit(0)
