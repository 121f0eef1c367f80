"""Whether GroupRL is right on a GPU, and how fast: one call of at most nine minutes on a bare machine.

    python benchmarks/gpu.py OUT                         every part, on an NVIDIA GPU
    python benchmarks/gpu.py OUT --only speed graphs     these; OUT keeps the results of the others
    python benchmarks/gpu.py OUT --rehearse              tiny sizes, on the CPU and on a pretended device
    python benchmarks/gpu.py OUT --write                 runs nothing; puts the page of OUT into docs/performance.md

It needs the repository and a Python with torch; `make gpu-files` elsewhere puts what such a Python may lack into
build/gpu, TRL and SmolLM2 too, in files of at most 14 MB. Nothing is downloaded or installed beside it.

Each part is a process with a budget of seconds. A part that fails, or is broken off, leaves the others. OUT gets
gpu.json after every part, gpu.md with at most 60 lines, and the output of each part. The exit status is 1 if a part
failed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_files import FOLDER, unpack

if TYPE_CHECKING:  # the modules of the parts, whose processes alone import them
    import gpu_correctness  # noqa: F401
    import gpu_peers  # noqa: F401
    import gpu_smollm2  # noqa: F401
    import gpu_speed  # noqa: F401

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
TITLE = "## On a GPU"
SECONDS, REHEARSED, LINES = 540.0, 3600.0, 60
# A part begins as a copy of a process that has imported everything and computed nothing.
CONTEXT = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Part:
    """A function of a module here, and the most seconds that it may take."""

    module: str
    seconds: float


# In the order of the course, the most wanted first.
PARTS = {
    "device": Part("gpu_speed", 30),
    "rows": Part("gpu_correctness", 140),
    "checks": Part("gpu_correctness", 60),
    "speed": Part("gpu_speed", 90),
    "peers": Part("gpu_peers", 60),
    "memory": Part("gpu_speed", 45),
    "gap": Part("gpu_speed", 25),
    "graphs": Part("gpu_correctness", 40),
    "gsm8k": Part("gpu_speed", 40),
    "smollm2": Part("gpu_smollm2", 200),
}


@dataclass(frozen=True)
class Goal:
    """A number that a measure should reach: at least `least` and at most `most`."""

    words: str
    part: str
    measure: str
    name: str
    least: float = 0.0
    most: float = float("inf")


GOALS = (
    Goal("share of the memory bandwidth in decoding", "speed", "sampling, G=8", "floor_share", least=0.60),
    Goal("share of the matrix rate in learning", "speed", "update, G=8", "rate_share", least=0.45),
    Goal("seconds of a step as of GSM8K (41.9 on a GB10)", "gsm8k", "step", "seconds", most=10.0),
    Goal("planned over measured memory", "memory", "all weights", "planned_over_measured", 0.9, 1.1),
)

Results = dict[str, Any]


def run_part(out: Path, name: str, part: Part, device: str, tiny: bool, seconds: float) -> Results:
    """Runs a part in a process group of its own, and ends all of it after these seconds."""
    measures, log, began = out / f"{name}.json", out / f"{name}.log", time.monotonic()
    measures.unlink(missing_ok=True)
    print(f"{name} on {device}, at most {seconds:.0f} s", flush=True)
    process = CONTEXT.Process(target=compute, args=(out, name, part, device, tiny))
    process.start()
    try:
        process.join(seconds)
        code = process.exitcode
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)  # also what it started and left
        process.kill()
        process.join()
    ended = "ok"
    if code is None:
        ended = f"broken off after {seconds:.0f} s"
    elif code:
        said = log.read_text()[-400:] if log.exists() else ""
        ended = f"failed with code {code}: {' '.join(said.split())}"
    found: dict[str, Any] = json.loads(measures.read_text()) if measures.exists() else {}
    failed = [measure for measure, values in found.items() if "failed" in values]
    if ended == "ok" and failed:
        ended = f"failed: {', '.join(failed)}"
    elif ended == "ok" and found and all("skipped" in values for values in found.values()):
        ended = f"skipped: {next(iter(found.values()))['skipped']}"
    return {"ended": ended, "seconds": time.monotonic() - began, "measures": found}


def compute(out: Path, name: str, part: Part, device: str, tiny: bool) -> None:
    """The process of a part, whose output goes to a file."""
    os.setsid()
    log = os.open(out / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    module = importlib.import_module(part.module)
    work, machine = importlib.import_module("gpu_work"), importlib.import_module("grouprl.tools.planner.machine")
    file = out / "gpu.json"
    results: Results = json.loads(file.read_text()) if file.exists() else {}
    limits = results.get("device", {}).get("measures", {}).get("limits", {})
    rates = machine.Rates(*(float(limits.get(name, "nan")) for name in ("flops_s", "bytes_s")))
    # The tests of the rows open the device themselves, and a process of its own runs SmolLM2.
    with work.device_here(device, opened=name not in ("rows", "smollm2")) as here:
        getattr(module, name)(work.Bench(here, tiny, out / f"{name}.json", out, rates))


def course(out: Path, parts: dict[str, Part], device: str, until: float, *, tiny: bool) -> Results:
    """Runs these parts; writes the results after each of them."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "gpu.json"
    results: Results = json.loads(file.read_text()) if file.exists() else {}
    for name, part in parts.items():
        left = until - time.monotonic()
        if left < 5:
            results[name] = {"ended": "skipped: no time was left", "seconds": 0.0, "measures": {}}
        else:
            results[name] = run_part(out, name, part, device, tiny, min(REHEARSED if tiny else part.seconds, left))
        file.write_text(json.dumps(results, indent=1))
        (out / "gpu.md").write_text("\n".join(page(results)) + "\n")
        print(f"  {results[name]['ended']}, {results[name]['seconds']:.0f} s", flush=True)
    return results


# The page


def page(results: Results) -> list[str]:
    """At most 60 lines of Markdown: goals, parts, and every measure as far as there is room."""
    facts = results.get("device", {}).get("measures", {}).get("machine", {})
    place = f"{facts.get('device', 'an unknown device')}, torch {facts.get('torch', '?')}"
    lines = [TITLE, "", f"`make gpu` on {place} (`python benchmarks/gpu.py --help`):", "", "```text"]
    for goal in GOALS:
        value = results.get(goal.part, {}).get("measures", {}).get(goal.measure, {}).get(goal.name)
        wanted = " to ".join(f"{bound:g}" for bound in (goal.least, goal.most) if 0 < bound < float("inf"))
        words = "not measured" if value is None else f"{value:.3g}"
        verdict = "" if value is None else "reached" if goal.least <= value <= goal.most else "missed"
        side = "at most " if not goal.least else "at least " if goal.most == float("inf") else ""
        lines.append(f"{goal.words:<50}{words:>14}  goal {side}{wanted}  {verdict}".rstrip())
    lines.append("")
    for name, part in results.items():
        lines.append(f"{name:<10} {part['seconds']:4.0f} s  {part['ended']}"[:110])
    lines.append("")
    rest = []
    for name, part in results.items():
        measures = {measure: values for measure, values in part["measures"].items() if measure != "machine"}
        if name == "rows":
            passed = sum("seconds" in values for values in measures.values())
            failed = [measure for measure, values in measures.items() if "failed" in values]
            skipped = len(measures) - passed - len(failed)
            rest.append(f"rows: {passed} equal the CPU's, {len(failed)} do not, {skipped} skipped")
            rest += [f"  not equal: {measure}" for measure in failed]
            continue
        for measure, values in measures.items():
            texts = (
                f"{key} {value:.3g}" if isinstance(value, float | int) else f"{key}: {value}"
                for key, value in values.items()
            )
            rest.append(f"{name}: {measure}: {', '.join(texts)}"[:118])
    room = LINES - len(lines) - 1
    if len(rest) > room:
        rest = [*rest[: room - 1], f"... and {len(rest) - room + 1} more lines in gpu.json"]
    return [*lines, *rest, "```"]


def written(text: str, section: list[str]) -> str:
    """The text of a page with this section in the place of its section of the same title, or at its end."""
    before, title, after = text.partition(f"\n{TITLE}\n")
    following = after.partition("\n## ")[2] if title else ""
    return "\n".join([before.rstrip("\n"), "", *section, ""]) + (f"\n## {following}" if following else "")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=list(PARTS), metavar="PART")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on the CPU and on a pretended device")
    parser.add_argument("--write", action="store_true", help=f"puts the page of OUT into {PAGE.name}, runs nothing")
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    out: Path = arguments.out.absolute()
    if arguments.write:
        section = page(json.loads((out / "gpu.json").read_text()))
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), section), encoding="utf-8")
        return
    began, parts = time.monotonic(), {name: part for name, part in PARTS.items() if name in arguments.only}
    if arguments.rehearse:
        os.environ["OMP_NUM_THREADS"] = "1"
    else:
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # else no process that is copied from here could use the GPU
        if reason := no_gpu():
            raise SystemExit(
                f"expected an NVIDIA GPU that torch can use, got {reason}: run it on a machine with one, or add "
                '--rehearse (make gpu ARGS="--rehearse")'
            )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the part
    if not arguments.rehearse:
        unpack(FOLDER)
    # The repository's packages before those that were brought, and these before Python's own.
    folders = [ROOT / "benchmarks", ROOT / "src", ROOT / "tests" / "support", FOLDER / "site"]
    paths = [*map(str, folders[: 3 if arguments.rehearse else 4]), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    sys.path[:0] = paths  # which the processes of the parts take over
    CONTEXT.set_forkserver_preload(sorted({part.module for part in PARTS.values()}))
    if arguments.rehearse:
        until = began + REHEARSED
        rehearsed = [course(out / name, parts, name, until, tiny=True) for name in ("cpu", "pretend")]
    else:
        rehearsed = [course(out, parts, "cuda", began + SECONDS, tiny=False)]
    ended = [results[name]["ended"] for results in rehearsed for name in parts]
    sys.exit(any(words.startswith(("failed", "broken off")) for words in ended))


def no_gpu() -> str | None:
    """Why there is none; None = there is one."""
    try:
        import torch
    except ImportError as error:
        return f"{type(error).__name__} ({error})"
    return None if torch.cuda.is_available() else f"none (torch {torch.__version__})"


if __name__ == "__main__":
    main()
