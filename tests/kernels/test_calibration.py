"""The choice between each kernel and torch by their times; the tests need a C compiler."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from counting import count_kernels
from forked import forked
from grouprl.forward.layouts import TreeLayout
from grouprl.forward.logprobs import token_logprobs
from grouprl.kernels import build, calibration
from grouprl.kernels.build import is_intact, library, library_file, why_no_library
from grouprl.kernels.calibration import Contest, Timing, timings, uses_kernel
from grouprl.kernels.functions import ADD_NORM, add_norm, swiglu
from grouprl.kernels.llama_form import AttentionInput, attend_rotated, has_llama_form
from grouprl.models.load import load_model, load_tokenizer
from grouprl.rollout.engine import Request
from grouprl.rollout.native import NativeEngine
from grouprl.types import Problem, Sampling, UserError

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler")
CPU = torch.device("cpu")
WIDTHS = (16, 64, 256)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing is timed yet; the file beside the library to which times are written."""
    compiled = tmp_path / "kernels-0.so"
    compiled.touch()
    monkeypatch.setenv("GROUPRL_KERNELS", "")
    monkeypatch.setattr(calibration, "library_file", lambda: compiled)
    monkeypatch.setattr(calibration, "_KNOWN", {})
    calibration._kernel_wins.cache_clear()
    yield compiled.with_suffix(".json")
    calibration._kernel_wins.cache_clear()


def contest(kernel: float, other: float, called: list[tuple[int, str]] | None = None, name: str = "sleep") -> Contest:
    """Between two forms that sleep for these seconds."""

    def forms(width: int, dtype: torch.dtype) -> Any:
        if called is not None:
            called.append((width, str(dtype)))
        return lambda: time.sleep(kernel), lambda: time.sleep(other)

    return Contest(name, "width", WIDTHS, forms)


def forget() -> None:
    """As in a new process."""
    calibration._KNOWN.clear()
    calibration._kernel_wins.cache_clear()


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize(("kernel", "other", "chosen"), [(0.005, 0.0, False), (0.0, 0.005, True), (0.01, 0.01, True)])
def test_the_form_that_sleeps_loses_and_the_kernel_stays_at_equal_times(kernel: float, other: float, chosen: bool):
    assert uses_kernel(contest(kernel, other), 64, torch.float32) == chosen


# Real kernels that sleep


def asleep(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    kernels = library()
    function = getattr(kernels, name)

    def slow(*arguments: Any) -> Any:
        time.sleep(0.06)
        return function(*arguments)

    monkeypatch.setattr(kernels, name, slow)


def leaf(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def normed(x: Tensor, delta: Tensor, weight: Tensor) -> Tensor:
    return add_norm(x, delta, weight, 1e-6, torch.float32)[1]


def attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    layout = TreeLayout((5, 3), ((4, 2), (6,)), CPU)
    angles = (layout.position_ids_S[:, None] / 10.0 ** (torch.arange(8) / 8)).repeat(1, 2)
    return attend_rotated(layout, 0, AttentionInput(query, key, value, angles.cos(), angles.sin(), 0.25))


def logprobs(hidden: Tensor, weight: Tensor) -> Tensor:
    head = nn.Linear(*weight.T.shape, bias=False)
    head.weight = nn.Parameter(weight.detach())
    return token_logprobs(head, hidden, torch.arange(len(hidden)), Sampling(max_tokens=1))[0]


FUNCTIONS = {
    "add_norm": (normed, [(9, 32), (9, 32), (32,)]),
    "norm_backward": (normed, [(9, 32), (9, 32), (32,)]),
    "swiglu_backward": (swiglu, [(9, 32), (9, 32)]),
    "tree_attention": (attended, [(20, 4, 16), (20, 2, 16), (20, 2, 16)]),
    "logprobs_backward": (logprobs, [(9, 16), (40, 16)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_kernel_that_sleeps_either_way_is_left_to_torch(name: str, file: Path, monkeypatch: pytest.MonkeyPatch):
    function, shapes = FUNCTIONS[name]
    ours, theirs = ([leaf(*shape, seed=seed) for seed, shape in enumerate(shapes)] for _ in range(2))
    monkeypatch.setenv("GROUPRL_KERNELS", "on")
    expected = function(*theirs)
    expected.sum().backward()
    forget()
    monkeypatch.setenv("GROUPRL_KERNELS", "")
    asleep(monkeypatch, name)
    function(*ours).sum()  # calibrates
    called = count_kernels(monkeypatch)
    got = function(*ours)
    got.sum().backward()
    assert not called
    assert all(line["torch"] < line["kernel"] for lines in times(file).values() for line in lines)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(ours, theirs, strict=True):
        if other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-5)


def times(file: Path) -> dict[str, Any]:
    return {name: lines for name, lines in json.loads(file.read_text()).items() if name != "torch"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["draw", "decode_step"])
def test_a_decoding_kernel_that_sleeps_is_left_to_torch(
    name: str, tiny: Path, file: Path, monkeypatch: pytest.MonkeyPatch
):
    model, tokenizer = load_model(str(tiny), device=CPU), load_tokenizer(str(tiny))
    requests = [Request(Problem(str(number), ""), (7, 8, 9 + number), 3) for number in range(2)]

    def completions() -> Any:
        engine = NativeEngine(model, tokenizer, seed=0, max_rows=8)
        groups = engine.generate(requests, Sampling(max_tokens=12))
        return [one.token_ids for group in groups for one in group.completions]

    monkeypatch.setenv("GROUPRL_KERNELS", "on")
    called = count_kernels(monkeypatch)
    expected = completions()
    assert called[name]
    forget()
    monkeypatch.setenv("GROUPRL_KERNELS", "")
    asleep(monkeypatch, name)
    assert completions() == expected  # calibrates
    called = count_kernels(monkeypatch)
    assert completions() == expected
    assert not called[name]
    assert {"draw", "decode step"} <= set(times(file))
    assert has_llama_form(model.get_decoder())


# Which times decide


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize(("width", "nearest"), [(1, 16), (31, 16), (33, 64), (127, 64), (129, 256), (10_000, 256)])
def test_the_nearest_timed_width_decides_by_ratio(width: int, nearest: int):
    def forms(made: int, _: torch.dtype) -> Any:
        return lambda: None, lambda: time.sleep(0.003 * (made == nearest))

    def losing(made: int, _: torch.dtype) -> Any:
        return lambda: time.sleep(0.003 * (made == nearest)), lambda: None

    # Equal to within noise elsewhere, so each contest shows one direction only.
    assert uses_kernel(Contest("wins", "", WIDTHS, forms), width, torch.float32)
    assert not uses_kernel(Contest("loses", "", WIDTHS, losing), width, torch.float32)


@pytest.mark.parametrize(
    ("dtype", "kernel", "wins"),
    [("float32", 1.0, True), ("float32", 1.09, True), ("float32", 1.11, False), ("bfloat16", 1.49, True)],
)
def test_torch_must_be_faster_by_a_margin(dtype: str, kernel: float, wins: bool):
    assert Timing(16, dtype, kernel, 1.0).kernel_wins == wins
    assert not Timing(16, dtype, 1.51, 1.0).kernel_wins


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
def test_bfloat16_is_timed_where_the_processor_has_it(capability: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    called: list[tuple[int, str]] = []
    one = contest(0.002, 0.0, called)
    assert not uses_kernel(one, 64, torch.bfloat16)
    dtypes = {dtype for _, dtype in called}
    assert dtypes == ({"torch.float32"} if capability == "AVX2" else {"torch.float32", "torch.bfloat16"})


@pytest.mark.usefixtures("file")
def test_the_callers_modes_and_threads_stay_out_of_the_times():
    seen = []

    def forms(width: int, dtype: torch.dtype) -> Any:
        torch.randn(3)
        seen.append((torch.get_num_threads(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
        return lambda: None, lambda: None

    threads, state = torch.get_num_threads(), torch.get_rng_state()
    try:
        torch.set_num_threads(2)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            uses_kernel(Contest("modes", "", WIDTHS, forms), 64, torch.float32)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert set(seen) == {(1, True, False)}
    assert torch.equal(torch.get_rng_state(), state)


# The budget


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize(("seconds", "rounds"), [(0.1, {3}), (0.01, set(range(3, 14)))])
def test_rounds_end_with_the_budget(seconds: float, rounds: set[int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(calibration, "_shapes", lambda _: [(64, "float32")])
    calls = []

    def forms(width: int, dtype: torch.dtype) -> Any:
        return lambda: calls.append(time.sleep(seconds)), lambda: time.sleep(seconds)

    timings(Contest("slow", "", WIDTHS, forms))
    assert len(calls) in rounds


# The file


def test_times_are_read_back_from_the_file(file: Path):
    called: list[tuple[int, str]] = []
    one, other = contest(0.004, 0.0, called), contest(0.0, 0.004, called, name="other")
    assert (uses_kernel(one, 64, torch.float32), uses_kernel(other, 64, torch.float32)) == (False, True)
    measured, count = timings(one), len(called)
    forget()
    assert (uses_kernel(one, 64, torch.float32), uses_kernel(other, 64, torch.float32)) == (False, True)
    assert len(called) == count
    assert timings(one) == measured
    assert set(times(file)) == {"sleep", "other"}
    assert [path.name for path in file.parent.iterdir() if path.suffix not in (".so", ".json")] == []


DAMAGED = [
    "",
    "[]",
    "{",
    '{"torch": "1.0"}',
    json.dumps({"torch": torch.__version__, "sleep": 3}),
    json.dumps({"torch": torch.__version__, "sleep": [{"width": 16}]}),
    json.dumps({"torch": torch.__version__, "sleep": [{"width": 16, "dtype": "float32", "kernel": 1, "torch": 2}]}),
    json.dumps(
        {
            "torch": torch.__version__,
            "sleep": [{"width": width, "dtype": "float32", "kernel": float("nan"), "torch": 1.0} for width in WIDTHS],
        }
    ),
]


@pytest.mark.parametrize("contents", DAMAGED)
def test_a_damaged_or_foreign_file_is_measured_again(contents: str, file: Path):
    file.write_text(contents)
    assert not uses_kernel(contest(0.004, 0.0), 64, torch.float32)
    assert [line["width"] for line in times(file)["sleep"][:3]] == list(WIDTHS)


def test_where_the_file_cannot_be_written_the_process_measures_once(file: Path):
    file.mkdir()  # in the file's place
    called: list[tuple[int, str]] = []
    one = contest(0.004, 0.0, called)
    for width in (16, 64, 256):
        assert not uses_kernel(one, width, torch.float32)
    assert len(called) == len(calibration._shapes(one))


@pytest.mark.usefixtures("file")
def test_threads_that_ask_at_once_measure_once():
    called: list[tuple[int, str]] = []
    one = contest(0.002, 0.0, called)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda width: uses_kernel(one, width, torch.float32), [16, 64, 64, 256])) == [False] * 4
    assert len(called) == len(calibration._shapes(one))


def test_two_processes_that_start_at_once_share_the_times(tmp_path: Path):
    compiled = library_file()
    assert compiled is not None
    (tmp_path / "grouprl").mkdir()
    for path in (compiled, compiled.with_suffix(".sha256")):  # without its digest each process compiles it again
        shutil.copy(path, tmp_path / "grouprl")

    def ask() -> None:
        os.environ |= {"XDG_CACHE_HOME": str(tmp_path), "GROUPRL_KERNELS": ""}
        for kept in (library, library_file):
            kept.cache_clear()
        calibration._KNOWN.clear()
        print(timings(ADD_NORM))

    with forked(ask) as one, forked(ask) as other:
        assert one.out.read() == other.out.read() != ""
        assert [one.wait(), other.wait()] == [0, 0]
    written = times((tmp_path / "grouprl" / compiled.name).with_suffix(".json"))
    assert [line["width"] for line in written[ADD_NORM.name][:3]] == list(ADD_NORM.widths)


# The environment variable


@pytest.mark.parametrize("value", ["on", "off"])
def test_the_environment_overrides_the_times(value: str, file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GROUPRL_KERNELS", value)
    library.cache_clear()
    try:
        assert uses_kernel(contest(0.004, 0.0), 64, torch.float32) == (value == "on")
        assert not file.exists()
    finally:
        monkeypatch.undo()
        library.cache_clear()


def test_another_value_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GROUPRL_KERNELS", "of")
    with pytest.raises(UserError, match="GROUPRL_KERNELS: expected on, off or no value, got 'of'"):
        build.why_no_library()


LOAD = "from grouprl.kernels.build import library; print(library().width())"


@pytest.mark.parametrize("damaged", [b"", b"the libra", b"the librarx"])
def test_only_a_file_with_its_digest_is_loaded(tmp_path: Path, damaged: bytes) -> None:
    file = tmp_path / "kernels-1.so"
    assert not is_intact(file)
    file.write_bytes(b"the library")
    assert not is_intact(file)  # older versions wrote no digest
    summed = subprocess.run(["sha256sum", file], capture_output=True, text=True, check=True).stdout
    (tmp_path / "kernels-1.sha256").write_text(summed.split()[0])
    assert is_intact(file)
    file.write_bytes(damaged)
    assert not is_intact(file)


@pytest.mark.slow
@pytest.mark.skipif(why_no_library() is not None, reason="no compiler")
def test_a_truncated_library_is_compiled_again(tmp_path: Path) -> None:
    # -O0: a compilation of a second.
    surroundings = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "CFLAGS": "-O0", "GROUPRL_KERNELS": "on"}

    def width() -> str:
        ended = subprocess.run([sys.executable, "-c", LOAD], env=surroundings, capture_output=True, text=True)
        assert ended.returncode == 0, (ended.returncode, ended.stderr)
        return ended.stdout

    first = width()
    (file,) = tmp_path.rglob("*.so")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])  # ended the process with SIGBUS
    assert width() == first
    assert len(file.read_bytes()) == len(whole)
    made = file.stat().st_mtime_ns
    assert width() == first
    assert file.stat().st_mtime_ns == made  # an intact one is not compiled again
