"""`grouprl doctor` shows what this machine can run, and what to install for the rest."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import torch
from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grouprl.config.run import PolicyConfig, RunConfig
from grouprl.forward.devices import GPU, accelerator, traits_of
from grouprl.forward.precision import is_emulated
from grouprl.forward.products import STRICTER, Sizes, equal_rows
from grouprl.forward.workers import one_thread
from grouprl.leaves import find_leaf
from grouprl.tools.planner.machine import DTYPES, free_memory, product_rate, total_memory
from grouprl.tools.planner.screen import plan_run
from grouprl.tools.planner.time import USUAL_PROMPT
from grouprl.types import counted

_PACKAGES = ("grouprl", "torch", "transformers", "tokenizers", "safetensors", "numpy", "pydantic")
_USUAL_PRODUCTS = frozenset({(256, 256), (256, 768), (576, 576), (576, 1536), (1536, 576)})  # of small models
_DEVELOPMENT = ("dev", "bench")  # extras for developing this project


@dataclass(frozen=True)
class DoctorLine:
    """One line of the screen."""

    topic: str  # the section of the screen
    name: str
    found: str
    works: bool = True  # False: something that a run could use is missing
    remedy: str = ""  # how to get it


def findings(model: str | None = None) -> list[DoctorLine]:
    """Collects all findings in the order of the screen; measuring speeds takes a few seconds."""
    parts: tuple[Callable[[], Iterator[DoctorLine]], ...] = (
        _devices,
        *([] if model is None else [partial(_model, model)]),
        _kernels,
        _sandbox,
        _extras,
        _cluster,
        _versions,
        _room,
    )
    return [finding for part in parts for finding in part()]


def show_doctor(model: str | None = None, *, as_json: bool, console: Console | None = None) -> None:
    """Prints the findings."""
    lines = findings(model)
    if as_json:
        print(json.dumps([asdict(finding) for finding in lines]))
        return
    table = Table(header_style="bold", show_edge=False, pad_edge=False)
    for heading in ("", "", "found"):
        table.add_column(heading, no_wrap=not heading)
    topic = ""
    for finding in lines:
        if topic and finding.topic != topic:
            table.add_section()
        mark = Text("ok", "green") if finding.works else Text("no", "yellow")
        # Text, not markup: rich would read grouprl[data] as a style.
        said = Text(finding.found)
        if finding.remedy:
            said.append(f"\n{finding.remedy}", "dim")
        table.add_row(
            Text(finding.topic if finding.topic != topic else "", "bold"), Text.assemble(mark, f" {finding.name}"), said
        )
        topic = finding.topic
    (console or Console(highlight=False)).print(table)


def _devices() -> Iterator[DoctorLine]:
    cores = f"{counted(os.cpu_count() or 1, 'core')}, {counted(torch.get_num_threads(), 'thread')}"
    processor = f"{platform.machine()}, {cores}, {torch.backends.cpu.get_cpu_capability()}"
    yield DoctorLine("devices", "cpu", processor)
    yield from _speeds("cpu")
    yield from _equal_rows("devices", _USUAL_PRODUCTS)
    kind = accelerator()
    if kind is None:
        yield DoctorLine("devices", GPU, "no GPU that torch can use", False, "runs use the CPU")
        return
    module = torch.get_device_module(kind)
    for index in range(module.device_count()):
        name = module.get_device_name(index) if hasattr(module, "get_device_name") else kind
        said = f"{name}, {_gib(total_memory(kind))} GiB" + ", shared with the CPU" * traits_of(kind).shares_memory
        untried = traits_of(kind).compares
        remedy = f"rehearsed, not run on one: model.device={kind} compares its log-probs with the CPU's first"
        yield DoctorLine("devices", f"{kind}:{index}", said, not untried, remedy if untried else "")
    yield from _speeds(kind)


def _speeds(device: str) -> Iterator[DoctorLine]:
    for dtype in DTYPES:
        rate = product_rate(device, dtype)
        slow = is_emulated(torch.device(device), dtype)
        yield DoctorLine(
            "devices",
            f"{device} {dtype}",
            f"{rate / 1e9:,.0f} GFLOP/s in matrix products" + (", emulated in software" if slow else ""),
            not slow,
            "keep model.dtype=float32" if slow else "",
        )


def _equal_rows(topic: str, sizes: Sizes) -> Iterator[DoctorLine]:
    """From how many rows on the CPU's products give a row the same bits."""
    for dtype, kind in DTYPES.items():
        with one_thread():
            rule = equal_rows(sizes, kind)
        even = f", in multiples of {rule.multiple}" if rule.multiple > 1 else ""
        said = f"equal bits from {rule.fewest} rows on{even}; products of fewer rows are padded"
        if not rule.holds:
            said = "no equal bits: runs whose tools or agents answer at other times differ in the last bits of numbers"
        yield DoctorLine(topic, dtype, said, rule.holds, "" if rule.holds else STRICTER[kind])


def _model(path: str) -> Iterator[DoctorLine]:
    config = RunConfig(model=PolicyConfig(path=path, device="cpu"))
    plan = plan_run(config, prompt_tokens=USUAL_PROMPT, available=None)
    step, pace = plan.step, plan.pace
    assert pace is not None
    said = (
        f"{plan.shape.parameters:,} parameters, {step.dtype} on cpu: samples about {pace.sampling:,.0f} tokens a "
        f"second, {step.rows} completions at once, and learns from {pace.learning:,.0f}"
    )
    yield DoctorLine("model", plan.shape.name, said)
    yield from _equal_rows("model", frozenset({*plan.shape.linears, (plan.shape.hidden, plan.shape.vocabulary)}))


def _kernels() -> Iterator[DoctorLine]:
    kernels: Any = find_leaf("kernels")
    why_not = "the folder grouprl/kernels is missing" if kernels is None else kernels.why_no_library()
    if why_not:
        yield DoctorLine("kernels", "compiled", why_not, False, "everything works without them, but slower on a CPU")
        return
    if kernels.setting() == "on":
        yield DoctorLine("kernels", "compiled", "C kernels for this processor, all used because of GROUPRL_KERNELS=on")
        return
    yield DoctorLine("kernels", "compiled", "C kernels for this processor; kernel/torch in ms, * = used")
    for contest in kernels.CONTESTS:
        timings = kernels.timings(contest)
        lines = [
            f"{contest.size} " + ", ".join([*(_times(timing) for timing in timings if timing.dtype == dtype), dtype])
            for dtype in dict.fromkeys(timing.dtype for timing in timings)
        ]
        yield DoctorLine("kernels", contest.name, "\n".join(lines))


def _times(timing: Any) -> str:
    used = ("*", "") if timing.kernel_wins else ("", "*")
    return f"{timing.width} {1000 * timing.kernel:.2f}{used[0]}/{1000 * timing.torch:.2f}{used[1]}"


def _sandbox() -> Iterator[DoctorLine]:
    sandbox = find_leaf("sandbox")
    reasons = {} if sandbox is None else {name: sandbox.why_unavailable(name) for name in sandbox.BACKENDS}
    usable = [name for name, why_not in reasons.items() if why_not is None]
    for name, why_not in reasons.items():
        if name in usable:
            level = "used for model-written code" if name == usable[0] else "works as well"
            yield DoctorLine("sandbox", name, level)
        else:
            remedy = "apt install bubblewrap, and allow user namespaces" if name == "bubblewrap" else ""
            yield DoctorLine("sandbox", name, why_not or "", False, remedy)
    if not usable:
        yield DoctorLine("sandbox", "none", "tasks with model-written code (unit_tests) are refused", False)


def _extras() -> Iterator[DoctorLine]:
    extras: dict[str, list[Requirement]] = {}
    for text in requires("grouprl") or ():
        needed = Requirement(text)
        marker = str(needed.marker) if needed.marker else ""
        name = marker.partition('extra == "')[2].partition('"')[0]
        if name and name not in _DEVELOPMENT:
            extras.setdefault(name, []).append(needed)
    for name, needs in sorted(extras.items()):
        missing = ", ".join(need.name for need in needs if _version(need.name) is None)
        if missing:
            yield DoctorLine("extras", name, f"not installed: {missing}", False, f"pip install 'grouprl[{name}]'")
        else:
            yield DoctorLine("extras", name, ", ".join(f"{need.name} {_version(need.name)}" for need in needs))


def _cluster() -> Iterator[DoctorLine]:
    if _version("ray") is not None:
        from ray.util import get_node_ip_address

        said = f"cluster.backend=ray listens on {get_node_ip_address()}, which other machines may reach, with a token"
        yield DoctorLine("cluster", "ray", said)


def _versions() -> Iterator[DoctorLine]:
    yield DoctorLine("versions", "python", platform.python_version())
    for name in _PACKAGES:
        yield DoctorLine("versions", name, _version(name) or "not installed", _version(name) is not None)


def _room() -> Iterator[DoctorLine]:
    for device in filter(None, ("cpu", accelerator())):
        name = "memory" if device == "cpu" else "GPU memory"
        yield DoctorLine("room", name, f"{_gib(free_memory(device))} of {_gib(total_memory(device))} GiB free")
    disk = shutil.disk_usage(Path.cwd())
    yield DoctorLine("room", "disk", f"{_gib(disk.free)} of {_gib(disk.total)} GiB free in {Path.cwd()}")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _gib(size: float) -> str:
    return f"{size / (1 << 30):,.1f}"
