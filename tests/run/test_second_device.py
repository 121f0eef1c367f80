"""Whole runs on a device other than the CPU, which `pretend_device` pretends: they compute what the CPU computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from grouprl.forward.devices import DEVICES, DeviceTraits
from pretend_device import NAME, StrayTensorError, pretended
from small_runs import checkpoint_names, grouprl, metrics, rollouts, small_config, small_run
from variants import variant

SMALL: dict[str, Any] = {
    "steps": 2,
    "rollout": {"problems_per_step": 2, "group_size": 4, "max_tokens": 8},
    "evaluation": {"problems": 0},
    "learner": {"learning_rate": 1e-3, "micro_batch_tokens": 48},
}
# Of each run, the further settings of `small_config`.
RUNS: dict[str, dict[str, Any]] = {
    "grpo": {"evaluation": {"problems": 2, "samples": 1}},
    "dapo": {"algorithm": variant("dapo", minibatches=2)},
}


@pytest.fixture(autouse=True)
def second_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like a GPU, but that attention is dense and no step is recorded."""
    monkeypatch.setenv("GROUPRL_KERNELS", "off")
    monkeypatch.setitem(DEVICES, NAME, DeviceTraits(has_float64=True, compares=False))


def on_both(act: Callable[[str, Path], Path], folder: Path) -> tuple[Path, Path]:
    """What an action leaves that gets the device and a folder, on the CPU and on the device."""
    on_cpu = act("cpu", folder / "cpu")
    try:
        with pretended():
            return on_cpu, act(NAME, folder / "device")
    except StrayTensorError:
        with pretended(noted=True):  # the error names the line that made the tensor
            return on_cpu, act(NAME, folder / "again")


def assert_equal_runs(on_cpu: Path, on_device: Path) -> None:
    """Tokens, texts and rewards to the bit; numbers but for rounding, which AdamW makes larger after the first step."""
    texts = "SELECT step, group_index, completion_index, token_ids, text, reward FROM completions ORDER BY 1, 2, 3"
    assert rollouts(on_cpu, texts) == rollouts(on_device, texts)
    for ours, theirs in zip(metrics(on_cpu), metrics(on_device), strict=True):
        noise = 1e-6 if ours["step"] == 1 else 1e-5
        assert theirs == pytest.approx(ours, rel=noise, abs=noise, nan_ok=True)
    assert checkpoint_names(on_cpu) == checkpoint_names(on_device)
    for name in checkpoint_names(on_cpu):
        folders = [run / "checkpoints" / name for run in (on_cpu, on_device)]
        ours, theirs = (load_file(next(folder.glob("*.safetensors"))) for folder in folders)
        assert ours.keys() == theirs.keys()
        assert max(float((ours[weight].float() - theirs[weight].float()).abs().max()) for weight in ours) < 2e-5


@pytest.mark.parametrize("name", RUNS)
def test_a_run_computes_what_the_cpu_computes(name: str, tiny: Path, tmp_path: Path) -> None:
    changes = {**SMALL, **RUNS[name]}
    model = changes.pop("model", {})

    def train(device: str, folder: Path) -> Path:
        return small_run(tiny, small_config(folder, model={"device": device, **model}, **changes)).directory

    assert_equal_runs(*on_both(train, tmp_path))


def test_the_demo_computes_what_the_cpu_computes(tmp_path: Path) -> None:
    small = ("steps=2", "rollout.problems_per_step=2", "rollout.group_size=4", "rollout.max_tokens=8")
    others = ("evaluation.problems=0", "learner.micro_batch_tokens=512", "model.threads=1")

    def train(device: str, folder: Path) -> Path:
        ended = grouprl("train", "demo", *small, *others, f"model.device={device}", f"runs_dir={folder}")
        assert ended.code == 0, ended.text
        return folder / "demo"

    assert_equal_runs(*on_both(train, tmp_path))
