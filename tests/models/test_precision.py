"""The dtype that model.dtype=auto means: a measurement on a CPU, a question on a GPU, kept by the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from grouprl import Trainer
from grouprl.config.command_line import config_of
from grouprl.config.run import RunConfig, load_config
from grouprl.forward import precision
from grouprl.forward.precision import faster_dtype
from grouprl.run.machine import with_dtype
from grouprl.supervised.settings import SftConfig
from grouprl.tools.compare.settings import CompareConfig
from grouprl.tools.compare.variants import planned_runs
from grouprl.tools.planner.screen import step_of
from grouprl.types import UserError
from small_runs import LETTERS, ROWS, grouprl, small_config

CPU, GPU = torch.device("cpu"), torch.device("cuda")
Measured = Callable[..., list[object]]


@pytest.fixture(autouse=True)
def unknown() -> Iterator[None]:
    """Nothing measured before, and nothing kept for other tests."""
    faster_dtype.cache_clear()
    yield
    faster_dtype.cache_clear()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    """Sets the processor, and how many times as fast each size is in bfloat16; the list has a row for each timing."""

    def install(*gains: float, capability: str = "AVX512") -> list[object]:
        calls: list[object] = []

        def shortest_times(forms: tuple[precision.Form, ...], end: float) -> tuple[float, float]:
            calls.append([torch.get_num_threads(), *(form().dtype for form in forms)])  # type: ignore[attr-defined]
            return gains[(len(calls) - 1) % len(gains)], 1.0

        faster_dtype.cache_clear()
        monkeypatch.setattr(precision, "shortest_times", shortest_times)
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
        return calls

    return install


@pytest.mark.parametrize(
    ("gains", "expected"),
    [((4.0,), "bfloat16"), ((1.2,), "bfloat16"), ((1.19,), "float32"), ((0.5,), "float32"), ((4.0, 1.0), "float32")],
)
def test_a_cpu_takes_bfloat16_where_it_is_faster(measured: Measured, gains: tuple[float, ...], expected: str) -> None:
    calls, threads = measured(*gains), torch.get_num_threads()
    assert [faster_dtype(CPU) for _ in range(3)] == [expected] * 3
    assert calls == [[1, torch.float32, torch.bfloat16]] * 2  # once a process, one thread, each size
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("capability", ["AVX2", "DEFAULT"])
def test_nothing_is_measured_where_bfloat16_is_emulated(measured: Measured, capability: str) -> None:
    calls = measured(9.0, capability=capability)
    assert faster_dtype(CPU) == "float32"
    assert calls == []


@pytest.mark.parametrize(("own", "expected"), [(True, "bfloat16"), (False, "float32")])
def test_a_gpu_takes_bfloat16_where_it_has_it(monkeypatch: pytest.MonkeyPatch, own: bool, expected: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: own or including_emulation)
    assert faster_dtype(GPU) == expected
    assert step_of(RunConfig(model={"dtype": "auto"}), 9).dtype == expected


def test_a_plan_for_a_gpu_that_is_not_here_needs_a_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ended = grouprl("plan", "demo", "model.device=cuda", "model.dtype=auto")
    assert ended.code == 2
    assert "model.dtype: expected float32 or bfloat16 for a GPU that is not here, got auto" in ended.text


def test_a_plan_for_this_cpu_shows_the_dtype(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(4.0)
    monkeypatch.setattr("grouprl.tools.planner.screen.measured_pace", lambda *_: None)
    ended = grouprl("plan", "demo", "model.device=cpu", "model.dtype=auto")
    assert ended.code == 0
    assert "bfloat16 on cpu" in ended.text


def test_only_auto_is_replaced(measured: Measured) -> None:
    measured(4.0)
    for kind in (RunConfig, SftConfig):
        for given, expected in (("auto", "bfloat16"), ("float32", "float32"), ("bfloat16", "bfloat16")):
            config = with_dtype(config_of(kind, [f"model.dtype={given}", "model.device=cpu", "model.threads=3"]))
            assert (config.model.dtype, config.model.threads) == (expected, 3)


def saved(runs: Path) -> str:
    return load_config(RunConfig, [runs / "run" / "config.yaml"], []).model.dtype


def test_a_run_records_its_dtype_and_a_resume_keeps_it(tiny: Path, tmp_path: Path, measured: Measured) -> None:
    model = {"path": str(tiny), "dtype": "auto", "device": "cpu"}
    measured(4.0)
    Trainer(None, ROWS, [LETTERS], config=small_config(tmp_path, steps=1, model=model)).train()
    assert saved(tmp_path) == "bfloat16"
    calls = measured(0.5)
    ended = Trainer(None, ROWS, [LETTERS], config=small_config(tmp_path, steps=2, model=model)).train(resume=True)
    assert (ended.finished, saved(tmp_path), calls) == (True, "bfloat16", [])


def test_a_comparison_measures_once_and_keeps_the_dtype_of_its_runs(tmp_path: Path, measured: Measured) -> None:
    config = CompareConfig(
        name="c",
        runs_dir=str(tmp_path),
        seeds=(0, 1),
        settings=("model.dtype=auto", "model.device=cpu"),
        variants={"a": (), "b": ("algorithm=dapo",)},
    )
    calls = measured(4.0)
    planned = planned_runs(config, lambda settings: config_of(RunConfig, settings))
    assert [run.config.model.dtype for run in planned] == ["bfloat16"] * 4
    assert len(calls) == 2
    planned[0].directory.mkdir(parents=True)
    (planned[0].directory / "config.yaml").write_text("model: {dtype: bfloat16}\n")
    measured(0.5)
    planned = planned_runs(config, lambda settings: config_of(RunConfig, settings))
    assert planned[0].config.model.dtype == "bfloat16"


def test_a_gpu_that_is_missing_is_named() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UserError, match=r"model\.device: expected a GPU"):
        with_dtype(RunConfig(model={"dtype": "auto", "device": "cuda"}))
