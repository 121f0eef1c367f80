"""Decode steps of fixed shapes: they give the modules' completions, read nothing on the host, and replay correctly."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine_setting import DRAWN, Setting, all_of, assert_same, setting_of
from grouprl.lean.recorders import HostReads
from grouprl.rollout import NativeEngine
from grouprl.rollout.cache import CacheShape
from grouprl.rollout.decoding import Unit
from grouprl.rollout.forward import Forward, ModuleForward, Recorder, _padded_rows
from grouprl.rollout.rows import Rows
from grouprl.types import Group, Sampling, StopReason
from tape import TapeRecorder
from tiny import tiny_model_folder

CPU = torch.device("cpu")


class HostReadGuard(TorchDispatchMode):
    """Fails where the host would read the contents of a tensor."""

    NAMES = ("_local_scalar_dense", "nonzero", "item", "is_nonzero", "masked_select", "equal", "_unique2")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in self.NAMES, func
        if func.overloadpacket.__name__ in ("index", "index_put", "index_put_"):
            assert all(index is None or index.dtype == torch.long for index in args[1]), func
        return func(*args, **(kwargs or {}))


class GuardedRecorder:
    """A recorder that records nothing and runs every step under `HostReadGuard`."""

    def __init__(self) -> None:
        self.steps = 0

    def warm_up(self, function: Callable[[], None]) -> None:
        self.steps += 1
        with HostReadGuard():
            function()

    def record(self, function: Callable[[], None]) -> Callable[[], None]:
        return lambda: self.warm_up(function)


class StaticEngine(NativeEngine):
    """The native engine on a `ModuleForward` with a recorder."""

    def __init__(self, setting: Setting, max_rows: int, recorder: Recorder, dtype: str = "float32") -> None:
        super().__init__(setting.model, setting.tokenizer, seed=0, max_rows=max_rows, dtype=dtype)
        self._recorder, self._precise = recorder, torch.bfloat16 if dtype == "bfloat16" else torch.float32

    def _forwards(self, units: Sequence[Unit], sampling: Sampling, rows: int, count: int, shared: int) -> list[Forward]:
        shape = super()._forwards(units, sampling, rows, count, shared)[0].shape
        return [ModuleForward(self._model, shape, self._precise, self._recorder)]


def with_a_hook(folder: Path) -> Setting:
    """A model with an empty hook, which makes the engine run its own modules (`ModuleForward`)."""
    setting = setting_of(folder)
    setting.model.get_decoder().register_forward_hook(lambda *_: None)
    return setting


@pytest.fixture(scope="module", params=[("llama", 4), ("qwen3", 1)], ids=lambda one: f"{one[0]}-{one[1]}")
def setting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Setting:
    kind, kv_heads = request.param
    return with_a_hook(tiny_model_folder(tmp_path_factory.mktemp("model"), kind=kind, kv_heads=kv_heads))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return with_a_hook(tiny_model_folder(tmp_path_factory.mktemp("one")))


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Own tokens in steps of 8, so that short completions pass through several sizes."""
    monkeypatch.setattr("grouprl.rollout.forward._OWN", 8)


@pytest.fixture(scope="module")
def drawn(setting: Setting) -> list[Group]:
    return setting.engine().generate(setting.requests(), DRAWN)


# The same completions


@pytest.mark.parametrize(("recorder", "max_rows"), [(TapeRecorder, 3), (TapeRecorder, 64), (GuardedRecorder, 9)])
def test_completions_are_those_of_the_modules(
    setting: Setting, drawn: list[Group], recorder: type[Recorder], max_rows: int
):
    assert_same(StaticEngine(setting, max_rows, recorder()).generate(setting.requests(), DRAWN), drawn)


def test_most_steps_are_played_from_few_recordings(one: Setting):
    """There are more requests than rows, so that groups enter and leave all the time."""
    requests = [*one.requests(), *(one.request(number, 4, "more") for number in range(5))] * 2
    recorder = TapeRecorder()
    got = StaticEngine(one, 16, recorder).generate(requests, DRAWN)
    assert_same(got, one.engine(16).generate(requests, DRAWN))
    assert recorder.tapes <= 6  # 8 or 16 rows, 8, 16 or 24 own tokens
    assert recorder.replays > 5 * recorder.tapes


def test_stop_strings(setting: Setting, drawn: list[Group]):
    words = [completion.text[3:5] for completion in all_of(drawn) if len(completion.text) > 8]
    sampling = Sampling(max_tokens=24, stop=tuple(word for word in words if word.isascii())[:3])
    expected = setting.engine(6).generate(setting.requests(), sampling)
    assert StopReason.STOP_STRING in {completion.stop_reason for completion in all_of(expected)}
    assert_same(StaticEngine(setting, 6, TapeRecorder()).generate(setting.requests(), sampling), expected)


def test_completions_wider_than_one_size(one: Setting, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("grouprl.rollout.forward._OWN", 128)
    monkeypatch.setattr(one.model.generation_config, "eos_token_id", 1)
    requests, sampling, recorder = [one.request(0, 3), one.request(3, 2)], Sampling(max_tokens=140), TapeRecorder()
    got = StaticEngine(one, 8, recorder).generate(requests, sampling)
    engine = NativeEngine(one.model, one.tokenizer, seed=0, max_rows=8)
    assert_same(got, engine.generate(requests, sampling))
    assert max(len(completion) for completion in all_of(got)) == 140
    assert recorder.tapes == 2


# Sizes


@pytest.mark.parametrize(
    ("rows", "most"),
    [(1, 8), (8, 8), (9, 16), (64, 64), (65, 80), (128, 128), (129, 160), (257, 320), (449, 512), (512, 512)],
)
def test_rows_are_rounded_up_by_at_most_a_quarter_above_64(rows: int, most: int):
    assert _padded_rows(rows) == most


# What cannot be recorded


READS: dict[str, Callable[[Tensor], Any]] = {
    "number": lambda x: x.sum().item(), "truth": lambda x: bool((x > 0).any()), "mask": lambda x: x[x > 0].sum(),
    "places": lambda x: torch.nonzero(x > 0), "kinds": lambda x: torch.unique(x),
}  # fmt: skip


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reads_on_the_host_are_found(read: Callable[[Tensor], Any]):
    x = torch.linspace(-1, 1, 7)
    with HostReads() as reads:
        x.cos() @ x + x[torch.tensor([1, 2])].sum()
    assert not reads.found
    with HostReads() as reads:
        read(x)
    assert reads.found


def test_a_model_that_reads_on_the_host_is_not_recorded(tmp_path: Path):
    setting = with_a_hook(tiny_model_folder(tmp_path))
    expected = setting.engine().generate(setting.requests(), DRAWN)

    def read(_: Any, __: Any, output: Tensor) -> None:
        READS["truth"](output)

    setting.model.get_decoder().layers[1].mlp.register_forward_hook(read)
    recorder = TapeRecorder()
    assert_same(StaticEngine(setting, 9, recorder).generate(setting.requests(), DRAWN), expected)
    assert recorder.tapes == 0


# bfloat16


def started(setting: Setting, forward: Forward) -> Rows:
    """Two prompts with three rows and one row, all without a token."""
    prompts = [setting.request(number, 1).prompt_ids for number in (0, 2)]
    rows = Rows(4, Sampling(max_tokens=24), [1], CPU)
    rows.add([(0, place, len(prompts[place // 3]), 0) for place in range(4)])
    forward.prefill(prompts, 0)
    return rows


def write(rows: Rows, tokens: Sequence[int]) -> None:
    rows.newest[: rows.count] = torch.tensor(tokens)
    rows.length[: rows.count] += 1
    rows.written[:] = [count + 1 for count in rows.written]


SHAPE = CacheShape(layers=2, kv_heads=2, head_size=16, groups=2, rows=4, prompt_tokens=64, own_tokens=24)
WRITTEN = torch.randint(5, 320, (20, 4), generator=torch.Generator().manual_seed(3)).tolist()


def logits_of(setting: Setting, forward: Forward) -> Tensor:
    """Logits [steps, rows, V] after the same tokens, whatever the model prefers."""
    rows, made = started(setting, forward), []
    for tokens in WRITTEN:
        write(rows, tokens)
        lengths = [int(rows.prompt[0]), int(rows.prompt[3])]
        made.append(forward.decode_step(rows, 3, lengths).float().clone())
    return torch.stack(made)


@torch.no_grad()
def test_bfloat16_is_autocast_of_the_float32_weights(one: Setting):
    exact = logits_of(one, ModuleForward(one.model, SHAPE, torch.float32))
    with torch.autocast("cpu", torch.bfloat16):
        expected = logits_of(one, ModuleForward(one.model, SHAPE, torch.bfloat16))
        got = logits_of(one, ModuleForward(one.model, SHAPE, torch.bfloat16, TapeRecorder()))
    rounding = (expected - exact).std()
    assert rounding > 0.01
    assert (got - expected).std() < 0.5 * rounding  # many operations are the very same
    assert (got - exact).std() < 1.1 * rounding
    alone = logits_of(one, ModuleForward(one.model, SHAPE, torch.bfloat16, TapeRecorder()))
    assert torch.equal(alone, got)  # it brings its own autocast
    assert {weight.dtype for weight in one.model.parameters()} == {torch.float32}


# Another call


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_renewed_it_has_the_new_weights_and_its_old_recordings(tmp_path: Path, dtype: torch.dtype):
    setting, recorder = with_a_hook(tiny_model_folder(tmp_path)), TapeRecorder()
    forward = ModuleForward(setting.model, SHAPE, dtype, recorder)
    before = logits_of(setting, forward)
    tapes = recorder.tapes
    assert tapes == 3
    for weight in setting.model.parameters():
        weight.mul_(1.1)
    assert forward.renew(SHAPE)
    after = logits_of(setting, forward)
    assert recorder.tapes == tapes
    assert torch.equal(after, logits_of(setting, ModuleForward(setting.model, SHAPE, dtype, TapeRecorder())))
    assert (after - before).abs().max() > 0.1


@torch.no_grad()
def test_it_is_not_renewed_without_the_room_or_for_other_weights(tmp_path: Path):
    setting = setting_of(tiny_model_folder(tmp_path))
    forward = ModuleForward(setting.model, SHAPE, torch.float32, TapeRecorder())
    assert forward.shape == SHAPE
    smaller = CacheShape(2, 2, 16, groups=1, rows=1, prompt_tokens=1, own_tokens=1)
    assert forward.renew(smaller)
    assert forward.shape == smaller
    for larger in (
        CacheShape(2, 2, 16, groups=3, rows=4, prompt_tokens=64, own_tokens=24),
        CacheShape(2, 2, 16, groups=2, rows=9, prompt_tokens=64, own_tokens=24),
        CacheShape(2, 2, 16, groups=2, rows=4, prompt_tokens=65, own_tokens=24),
        CacheShape(2, 2, 16, groups=2, rows=4, prompt_tokens=64, own_tokens=25),
        CacheShape(3, 2, 16, groups=2, rows=4, prompt_tokens=64, own_tokens=24),
    ):
        assert not forward.renew(larger)
    head = setting.model.get_decoder().norm
    head.weight = torch.nn.Parameter(head.weight.clone())
    assert not forward.renew(SHAPE)
