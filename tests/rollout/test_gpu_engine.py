"""The native engine on a GPU that the CPU pretends to be: the completions of the CPU, by graphs, with few reads."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from engine_setting import Setting, all_of, assert_same, setting_of
from grouprl.forward.devices import DEVICES
from grouprl.lean.recorders import CudaGraphs
from grouprl.models.shard import gathered, shard_model
from grouprl.rollout import NativeEngine
from grouprl.types import Sampling, StopReason
from oracles import own_logits
from pretend_gpu import GPU, GpuTensor, TapeGraph, on_gpu, pretend_gpu
from tiny import tiny_model_folder

SAMPLING = Sampling(max_tokens=16)


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return setting_of(tiny_model_folder(tmp_path_factory.mktemp("model")))


@pytest.fixture
def gpu(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> Iterator[Setting]:
    """The same checkpoint on the GPU, with its own tokens in steps of 8, so that one graph is not enough."""
    monkeypatch.setattr("grouprl.rollout.forward._OWN", 8)
    monkeypatch.setattr(TapeGraph, "captured", 0)
    monkeypatch.setattr(TapeGraph, "replayed", 0)
    moved = setting_of(Path(setting.model.name_or_path))
    with pretend_gpu(monkeypatch):
        yield Setting(on_gpu(moved.model), moved.tokenizer, moved.own)


def test_completions_are_those_of_the_cpu(setting: Setting, gpu: Setting):
    requests = [setting.request(number, count) for number, count in enumerate((4, 1, 5))]
    engine = gpu.engine(8)
    assert_same(engine.generate(requests, SAMPLING), setting.engine(8).generate(requests, SAMPLING))
    captured = TapeGraph.captured
    assert captured >= 2
    assert TapeGraph.replayed > captured
    # Another call takes the same graphs, and the new weights.
    other = setting_of(Path(setting.model.name_or_path))
    with torch.no_grad():
        for weight in (*other.model.parameters(), *gpu.model.parameters()):
            weight.mul_(1.02)
    engine.load_weights(1)
    assert_same(engine.generate(requests, SAMPLING), other.engine(8).generate(requests, SAMPLING))
    assert TapeGraph.captured <= captured + 1


@torch.no_grad()
def test_bfloat16_reads_copies_of_the_weights(setting: Setting, gpu: Setting):
    """Log-probs of graphs on bfloat16 weights against the float32 model: off by rounding and no more."""
    engine = NativeEngine(gpu.model, gpu.tokenizer, seed=0, max_rows=8, dtype="bfloat16")
    groups = engine.generate([setting.request(0, 4)], SAMPLING)
    rounded = NativeEngine(setting.model, setting.tokenizer, seed=0, max_rows=8, dtype="bfloat16")
    errors = []
    for made in (groups, rounded.generate([setting.request(0, 4)], SAMPLING)):
        gaps = []
        for group in made:
            for one in group.completions:
                logits = own_logits(setting.own, group.prompt_ids, one.token_ids)
                exact = logits.log_softmax(-1)[range(len(one)), one.token_ids]
                gaps.append((torch.tensor(one.logprobs) - exact).abs())
        errors.append(float(torch.cat(gaps).mean()))
    assert 0 < errors[0] < 2 * errors[1]
    assert TapeGraph.replayed > 0


def test_a_row_that_ended_may_wait_for_the_next_read(setting: Setting, gpu: Setting):
    """Rows are read every 8 draws; a model that reads on the host, and is not recorded, has no room beyond its cache.

    Groups that enter late are full in the middle of 8 draws.
    """

    def read(_: object, __: object, output: Tensor) -> None:
        output.sum().item()

    gpu.model.get_decoder().layers[1].mlp.register_forward_hook(read)
    requests = [setting.request(number, count) for number, count in ((0, 3), (1, 1), (2, 1), (3, 2))]
    found = gpu.engine(4).generate(requests, SAMPLING)
    assert TapeGraph.captured == 0
    assert_same(found, setting.engine(4).generate(requests, SAMPLING))
    assert StopReason.LENGTH in {one.stop_reason for one in all_of(found)}


@pytest.mark.parametrize(("stop", "fewest", "most"), [((), 2, 8), (("never",), 32, 64)])
def test_the_host_reads_rows_every_8_draws(gpu: Setting, stop: tuple[str, ...], fewest: int, most: int, monkeypatch):
    """One group without an end token: 16 draws. Stop strings are searched after each of them."""
    gpu.model.generation_config.eos_token_id = 1
    reads = []
    whether = GpuTensor.__torch_dispatch__.__func__

    def counted(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            reads.append(func)
        return whether(cls, func, types, args, kwargs)

    monkeypatch.setattr(GpuTensor, "__torch_dispatch__", classmethod(counted))
    listed = GpuTensor.tolist
    monkeypatch.setattr(GpuTensor, "tolist", lambda self: reads.append("tolist") or listed(self))
    groups = gpu.engine(8).generate([gpu.request(0, 3)], Sampling(max_tokens=16, stop=stop))
    assert [len(one) for one in all_of(groups)] == [16, 16, 16]
    assert fewest <= len(reads) <= most


def test_a_recorded_step_is_replayed_on_new_contents(monkeypatch: pytest.MonkeyPatch):
    with pretend_gpu(monkeypatch):
        x, y = torch.ones(2, 3, device=GPU)
        graphs = CudaGraphs(GPU)
        graphs.warm_up(lambda: y.copy_(x * 2))
        replay = graphs.record(lambda: y.copy_(x * 2))
        x.fill_(5.0)
        assert y.tolist() == [2.0, 2.0, 2.0]
        replay()
        assert y.tolist() == [10.0, 10.0, 10.0]


def test_steps_of_a_sharded_model_are_not_recorded(setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """FSDP2 makes streams wait for the current one in each forward pass, and a recording must not end before them."""
    requests = [setting.request(number, count) for number, count in enumerate((4, 1))]
    expected = setting.engine(8).generate(requests, SAMPLING)
    monkeypatch.setenv("GROUPRL_KERNELS", "off")
    monkeypatch.setitem(DEVICES, "cpu", replace(DEVICES["cpu"], has_graphs=True))
    sharded = setting_of(Path(setting.model.name_or_path))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        shard_model(sharded.model, init_device_mesh("cpu", (1,)), "float32")
        with gathered(sharded.model):
            assert_same(sharded.engine(8).generate(requests, SAMPLING), expected)
    finally:
        dist.destroy_process_group()
