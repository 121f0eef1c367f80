"""Weights that do not reach the samplers, or reach them stale, half or in part, end the run before its first update."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from grouprl import UserError
from grouprl.engines.publish import publish
from grouprl.models.load import load_model, load_tokenizer
from lora_models import CPU
from small_runs import small_config, small_run
from thread_ray import ThreadRay
from vllm_server import Answer, Call, Reply, VllmServer, Worker

LOAD, ADAPTER = "/collective_rpc", "/v1/load_lora_adapter"


@pytest.fixture(scope="module")
def other(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Published weights of version 0 of another run of the same model: its folder."""
    model = load_model(str(tiny), device=CPU)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.01)
    return publish(model, load_tokenizer(str(tiny)), tmp_path_factory.mktemp("other"), 0).folder


# What may happen on the way to a vLLM server, whose model is another one of the same shape


def seen(change: Callable[[Path, Path], Path]) -> Callable[..., Any]:
    """The workers see another folder than the run wrote: what `change` makes of it, or of that of another run."""

    def fault(call: Call, answer: Answer, other: Path) -> Reply:
        folder, *rest = call.body.get("args") or [""]
        if Path(folder).name == "version-000000":
            call.body["args"][:] = [str(change(Path(folder), other)), *rest]  # type: ignore[index]
        return answer()

    return fault


def halved(folder: Path, other: Path) -> Path:
    copy = Path(shutil.copytree(folder, f"{folder}-half"))
    (weights,) = copy.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    return copy


def unanswered(path: str) -> Callable[..., Any]:
    """Somebody between run and server says that it was done."""

    def fault(call: Call, answer: Answer, other: Path) -> Reply:
        if call.path == path and call.body.get("method") != "grouprl_describe":
            return Reply({"results": [{"label": "all is well"}]})
        return answer()

    return fault


def loads(share: Callable[[int], float]) -> partial[None]:
    """vLLM reports success, and loads this share of the tensors into its worker 0, 1, ..."""
    load = Worker.reload_weights

    def reload_weights(self: Worker, weights_iterator: Any, is_checkpoint_format: bool) -> None:
        tensors = list(weights_iterator)
        load(self, islice(tensors, int(len(tensors) * share(self.number))), is_checkpoint_format)

    return partial(pytest.MonkeyPatch.setattr, target=Worker, name="reload_weights", value=reload_weights)


def adds(workers: int) -> partial[None]:
    """vLLM reports success, and adds the adapter to so many of its workers."""
    add = Worker.add_lora

    def add_lora(self: Worker, number: int, path: Path) -> None:
        if self.number < workers:
            add(self, number, path)

    return partial(pytest.MonkeyPatch.setattr, target=Worker, name="add_lora", value=add_lora)


# What may happen on the way to the samplers of a Ray cluster


class Uneven:
    """Bytes that are good for the first reader, and others for the next."""

    def __init__(self, place: Path, good: bytes, bad: bytes) -> None:
        self.given = (str(place), good, bad)

    def __reduce__(self) -> Any:
        return first_come, self.given


def first_come(place: str, good: bytes, bad: bytes) -> bytes:
    try:
        Path(place).mkdir()
    except FileExistsError:
        return bad
    return good


def shipped(change: Callable[[bytes, bytes, Path], Any]) -> Callable[..., None]:
    """The store of the cluster gives samplers what `change` makes of the bytes, of those of another run, and a path."""

    def fault(ray: ThreadRay, other: Path, place: Path) -> None:
        put, stale = ray.put, (other / "model.safetensors").read_bytes()
        ray.put = lambda data: put(change(data, stale, place))  # type: ignore[method-assign]

    return fault


SERVER = r"vLLM server http://127\S+: expected "
NOT_LOADED = rf"{SERVER}the published weights loaded, got "
REMEDY = r": .*: start it with the model of this run, where it sees the run's folder"
NONE = rf"{NOT_LOADED}\S+: expected published weights 0-\w+, got none that can be read \(FileNotFoundError\){REMEDY}"
STALE = rf"{NOT_LOADED}\S+: expected published weights 0-\w+, got 0-\w+{REMEDY}"
HALF = rf"{NOT_LOADED}\S+: expected the files of grouprl_manifest.json, got \w+.safetensors of \d+ bytes.*{REMEDY}"
OTHER = rf"{NOT_LOADED}other values of \S+ after vLLM had loaded 0-\w+: start it with"
IGNORED = rf"{SERVER}the weights 0-\w+, got '': look at the server's output"
WITHOUT = rf"{SERVER}the adapter 0-\w+ in every worker, got the adapters "
BYTES = r"weights of version 0: expected the bytes with SHA-256 \w+, got \w+: check the cluster's memory and disks"

CASES: dict[str, tuple[Any, str]] = {
    "vllm: not there": (seen(lambda own, other: own / "nowhere"), NONE),
    "vllm: not delivered": (unanswered(LOAD), IGNORED),
    "vllm: not loaded": (loads(lambda worker: 0), OTHER),
    "vllm: stale": (seen(lambda own, other: other), STALE),
    "vllm: half a file": (seen(halved), HALF),
    "vllm: half loaded": (loads(lambda worker: 0.5), OTHER),
    "vllm: one of two": (loads(lambda worker: 1 - worker), OTHER),
    "adapter: not there": (seen(lambda own, other: own / "nowhere"), NONE),
    "adapter: not delivered": (unanswered(ADAPTER), rf"{WITHOUT}\[\[\], \[\]\]: look"),
    "adapter: not loaded": (adds(0), rf"{WITHOUT}\[\[\], \[\]\]: look"),
    "adapter: stale": (seen(lambda own, other: other), STALE),
    "adapter: half a file": (seen(halved), HALF),
    "adapter: one of two": (adds(1), rf"{WITHOUT}\[\[1\], \[\]\]: look"),
    "ray: not delivered": (shipped(lambda data, stale, place: b""), BYTES),
    "ray: stale": (shipped(lambda data, stale, place: stale), BYTES),
    "ray: half": (shipped(lambda data, stale, place: data[: len(data) // 2]), BYTES),
    "ray: one of two": (shipped(lambda data, stale, place: Uneven(place, data, stale)), BYTES),
}


@pytest.mark.parametrize("name", CASES)
def test_weights_that_do_not_arrive_end_the_run_in_its_first_step(
    tiny: Path, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thread_ray: ThreadRay, name: str
):
    fault, sentence = CASES[name]
    sampler, rollout = name.partition(":")[0], {"problems_per_step": 2, "group_size": 4, "max_tokens": 8}
    changes: dict[str, Any] = {"steps": 2, "evaluation": {"problems": 0}}
    with ExitStack() as stack:
        if sampler == "ray":
            fault(thread_ray, other, tmp_path / "first")
            changes["cluster"] = {"backend": "ray", "samplers": 2}
        else:
            if isinstance(fault, partial):
                fault(monkeypatch)
            lora = sampler == "adapter"
            given = {"fault": lambda *call: fault(*call, other)} if not isinstance(fault, partial) else {}
            server = stack.enter_context(VllmServer(other, lora=lora, workers=2, **given))
            rollout["engine"] = {"name": "vllm", "address": server.address, "seconds": 60.0}
            changes |= {"model": {"lora": {"rank": 4}}} if lora else {}
        with pytest.raises(UserError) as caught:
            small_run(tiny, small_config(tmp_path, rollout=rollout, **changes))
    assert re.match(sentence, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()  # nothing was learned
    if sampler != "ray":
        assert server.asked("/inference/v1/generate") == []
