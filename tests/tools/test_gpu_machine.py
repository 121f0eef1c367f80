"""What the planner, the doctor and a run's record say of a GPU, with a GPU that the CPU pretends to be."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from grouprl.forward.precision import resolve_device
from grouprl.run.machine import machine_facts
from grouprl.tools.planner import doctor, machine
from grouprl.types import UserError
from pretend_gpu import GPU, pretend_gpu

GIB = 1 << 30


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Two GPUs of 80 GiB, of which 60 are free; the list grows with every wait for the device."""
    called: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    found = SimpleNamespace(name="a GPU", total_memory=80 * GIB)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (60 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: called.append("wait"))
    monkeypatch.setitem(machine._ROWS, "cuda", (8, 8, 8))
    monkeypatch.setitem(machine._BLOCKS, "cuda", (1 << 10, 1 << 12))
    monkeypatch.setattr(machine, "_SECONDS", 0.0)
    with pretend_gpu(monkeypatch):
        yield called


def test_memory_and_rates(waits: list[str]):
    assert (machine.total_memory("cuda"), machine.free_memory("cuda")) == (80 * GIB, 60 * GIB)
    assert machine.total_memory("cpu") != 80 * GIB
    assert machine.product_rate("cuda", "bfloat16") > 0
    assert machine.read_rate("cuda", 1 << 12) > 0
    # Two rates, of at least two measurements each, with a wait before the clock starts and one before it stops.
    assert len(waits) >= 8


def test_the_doctor_lists_every_gpu(waits: list[str]):
    found = {finding.name: finding for finding in (*doctor._devices(), *doctor._room())}
    assert [found[f"cuda:{index}"].found for index in (0, 1)] == ["a GPU, 80.0 GiB"] * 2
    assert "GFLOP/s" in found["cuda bfloat16"].found
    assert found["GPU memory"].found == "60.0 of 80.0 GiB free"
    assert "cuda" not in found


@pytest.mark.usefixtures("waits")
def test_auto_is_the_first_gpu_and_a_record_names_it():
    assert machine_facts(GPU)["device"] == "a GPU"
    found = [str(resolve_device(name)) for name in ("auto", "cuda", "cuda:1", "cpu")]
    assert found == ["cuda", "cuda", "cuda:1", "cpu"]
    with pytest.raises(UserError, match=r"model\.device: expected a GPU 'cuda:2', found 2"):
        resolve_device("cuda:2")


def test_without_a_gpu_auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert resolve_device("auto") == torch.device("cpu")
    for name in ("cuda", "cuda:0"):
        with pytest.raises(UserError, match=r"expected a GPU '.*', found 0: use model\.device=auto or cpu"):
            resolve_device(name)
