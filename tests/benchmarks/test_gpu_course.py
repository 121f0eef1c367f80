"""The course of `benchmarks/gpu.py` on a CPU: no part fails, a failing part is alone, and a wrong result is found."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

HERE = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(HERE))  # its files import each other by their names

import gpu  # noqa: E402
import gpu_correctness  # noqa: E402
import gpu_speed  # noqa: E402
import gpu_work  # noqa: E402

from grouprl.forward.attention import Rule  # noqa: E402
from grouprl.forward.layouts import TreeLayout  # noqa: E402
from grouprl.tools.planner import ModelShape, Networks  # noqa: E402
from grouprl.types import Completion, Group, Problem, StopReason  # noqa: E402

FORMS = ("float32", "bfloat16")
HEADS = ("float32, heads of 64", "bfloat16, heads of 64", "bfloat16, heads of 128")
CHECKS = [
    *(f"check tree mask, {kind}" for kind in HEADS),
    *(f"check {name}, {form}" for name in ("packed = padded", "sampler = learner", "graphs = eager") for form in FORMS),
]
STEP = ("first sampling", "first update", "sampling", "update", "step")


@pytest.mark.slow
def test_the_course_on_a_cpu(tmp_path: Path) -> None:
    results = tmp_path / "gpu.json"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, HERE / "gpu.py", "--smoke", "--device", "cpu", "--json", results]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, f"{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
    found = json.loads(results.read_text())
    assert list(found) == [
        *("machine", "wanted", "device"),
        *CHECKS,
        *("tiny work", "tiny model"),
        *(f"tiny G={size} {part}" for size in (2, 4) for part in STEP),
        "tiny eager decode steps",
        *(f"tiny G={size} peer's step" for size in (2, 4)),
    ]
    assert [name for name, part in found.items() if "failed" in part or "skipped" in part] == []
    assert found["tiny G=4 sampling"]["tokens"] == found["tiny G=4 update"]["tokens"] == 8 * 24
    assert found["tiny G=2 peer's step"]["times_as_long_as_ours"] > 0
    assert found["tiny model"]["learns"] == "all weights"


def bench_of(path: Path | None = None, seconds: float = 60.0) -> Any:
    arguments = argparse.Namespace(smoke=True, json=path, seconds=seconds, micro_batch_tokens=0, trl_micro_batch=8)
    return gpu_work.Bench(arguments, torch.device("cpu"))


def fails(_: Any) -> dict[str, float]:
    raise RuntimeError("a kernel\n is missing")


def works(_: Any) -> dict[str, Any]:
    return {"seconds": 1.5, "groups": [1, 2]}


def test_a_part_that_fails_leaves_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = bench_of(tmp_path / "found.json")
    assert bench.part("first", fails) is None
    assert json.loads((tmp_path / "found.json").read_text()) == {
        "first": {"failed": "RuntimeError: a kernel is missing"}
    }
    assert bench.part("second", works) == {"seconds": 1.5, "groups": [1, 2]}
    assert json.loads((tmp_path / "found.json").read_text())["second"] == {"seconds": 1.5}
    assert "in fails" in capsys.readouterr().err  # the traceback
    assert "a kernel is missing" in gpu.table(bench.found)


def test_a_part_is_broken_off_when_the_time_is_up() -> None:
    bench = bench_of(seconds=0.2)
    bench.alarm()

    def endless(_: Any) -> dict[str, float]:
        while True:
            with suppress(Exception):  # as libraries do
                time.sleep(0.01)

    try:
        bench.part("endless", endless)
        bench.part("next", works)
    finally:
        bench.over = True
        gpu_work.signal.setitimer(gpu_work.signal.ITIMER_REAL, 0)
    assert "broken off" in bench.found["endless"]["skipped"]
    assert "skipped" in bench.found["next"]  # no part begins after the time


def test_after_a_fault_of_the_gpu_another_process_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(tmp_path / "found.json")
    monkeypatch.setattr(gpu_work, "wait", fails)
    with pytest.raises(gpu_work.DeviceFault, match="first"):
        bench.part("first", fails)
    assert json.loads((tmp_path / "found.json").read_text())["first"]
    replaced: list[list[str]] = []
    bench.alarm()
    monkeypatch.setattr(os, "execv", lambda _, command: replaced.append(command))
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--smoke"])
    gpu.go_on(bench, 3)
    assert gpu.signal.getitimer(gpu.signal.ITIMER_REAL) == (0.0, 0.0)  # execv keeps timers, not their handlers
    (command,) = replaced
    assert command[1:5] == ["gpu.py", "--smoke", "--stage", "3"]
    monkeypatch.setattr(sys, "argv", command[1:])
    parsed = gpu.parsed()
    assert (parsed.stage, parsed.began, parsed.json) == (3, bench.began, tmp_path / "found.json")


def test_a_wrong_mask_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Completions that also attend to those before them."""

    def causal(self: TreeLayout, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        q, k, v = (tensor.transpose(0, 1) for tensor in (query, key, value))
        attended = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=rule.scaling, enable_gqa=True
        )
        return attended.transpose(0, 1)

    monkeypatch.setattr(TreeLayout, "attend", causal)
    with pytest.raises(AssertionError, match="relative error of attention"):
        gpu_correctness.tree_mask(bench_of(), "float32", 64)
    with pytest.raises(AssertionError, match="relative error of log-probs"):
        gpu_correctness.packed(bench_of(), "float32")
    with pytest.raises(AssertionError, match="sampled - padded, before"):
        gpu_correctness.sampler(bench_of(), "float32")


def test_a_graph_of_old_weights_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made = iter([gpu_correctness.build(gpu_work.TINY, torch.device("cpu"), spread=True) for _ in range(2)])

    def engine_of(bench: Any, dtype: str) -> tuple[Any, Any]:
        model = next(made)
        model.generation_config.eos_token_id = gpu_correctness.ENDS
        # The weights that change are not those of the engine.
        other = gpu_correctness.build(gpu_work.TINY, torch.device("cpu"), spread=True)
        return gpu_correctness.NativeEngine(model, gpu_correctness.tokenizer(), seed=0, max_rows=24), other

    monkeypatch.setattr(gpu_correctness, "engine_of", engine_of)
    with pytest.raises(AssertionError, match="expected other log-probs from other weights"):
        gpu_correctness.graphs(bench_of(), "float32")


def test_a_model_learns_as_the_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, work = bench_of(), gpu_work.Work(8, 2, 16, 24)

    def learns(memory: float) -> Any:
        monkeypatch.setattr(gpu_speed, "total_memory", lambda _: memory)
        return gpu_speed.set_up(bench, gpu_work.TINY, work)

    whole = learns(1e12)
    assert (whole["learns"], whole["refused"]) == ("all weights", "none")
    subject = whole["subject"]
    least = replace(subject, networks=Networks(reference=False), recompute=True).plan(bench, work).peak
    assert learns(1.001 * least / gpu_speed.ROOM)["learns"] == "all weights, recomputing"
    none = learns(1000)
    assert (none["learns"], none["subject"].learner) == ("nothing: it samples only", None)
    assert none["refused"].count("needs") == 4


def test_the_operations_of_an_update_by_hand() -> None:
    """One group: a prompt of 2 tokens and a completion of 3, on a layer of 160 weights and 40 of the vocabulary."""
    shape = ModelShape("", 1, 4, 1, 1, 4, 8, 10, tied=True)
    subject = gpu_speed.Subject(shape, Networks(), False, None, None, None)  # type: ignore[arg-type]
    one = Completion(0, (1, 2, 3), (0.0,) * 3, (0.0,) * 3, "", StopReason.LENGTH, 0)
    groups = [Group(Problem("0", ""), (5, 6), (one,))]
    pairs = 2 * 2 / 2 + (2 * 3 + 3 * 3 / 2)
    assert gpu_speed.flops(subject, groups) == 3 * (2 * 160 * 5 + 2 * 40 * 3 + 4 * 4 * pairs)
