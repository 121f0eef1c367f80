"""The engine on a vLLM server: token ids, log-probs and stop reasons as the native engine has them, and every fault."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_setting import ENDS, Setting, all_of, setting_of
from grouprl.config.run import EngineConfig
from grouprl.engines import vllm_client
from grouprl.engines.vllm import VllmEngine
from grouprl.models.adapters import add_adapter
from grouprl.rollout import Request
from grouprl.types import Group, Sampling, StopReason, UserError
from lora_models import LORA
from oracles import own_logits, slow_policy
from tiny import tiny_model_folder
from vllm_server import Answer, Call, Fault, Reply, VllmServer

GENERATE = "/inference/v1/generate"
GREEDY = Sampling(max_tokens=12, temperature=0.0)
DRAWN = Sampling(max_tokens=8)


@pytest.fixture(scope="module")
def setting(tiny: Path) -> Setting:
    return setting_of(tiny)


@pytest.fixture(scope="module")
def adapted(tiny: Path) -> Setting:
    """With an adapter whose B is 0: the completions are those of the base."""
    own = setting_of(tiny)
    add_adapter(own.model, LORA, seed=0)
    return own


def engine_of(
    setting: Setting, server: VllmServer, folder: Path, *, seconds: float = 5.0, **changes: Any
) -> VllmEngine:
    token_env = changes.pop("token_env", None)
    settings = EngineConfig(name="vllm", address=server.address, seconds=seconds, token_env=token_env)
    given = {"seed": 0, "max_rows": 16, **changes}
    return VllmEngine(settings, setting.model, setting.tokenizer, folder=folder / "published", **given)


def faulty(path: str, change: Any, *, only: int | None = None) -> Fault:
    """A fault in the replies of one path: a `Reply`, or a function of the value; `only` names one call."""

    def fault(call: Call, answer: Answer) -> Reply:
        if call.path != path or (only is not None and call.number != only):
            return answer()
        if isinstance(change, Reply):
            return change
        reply = answer()
        return replace(reply, value=change(reply.value))

    return fault


def choice(change: Any) -> Any:
    """Changes the first choice of a reply."""

    def changed(value: Any) -> Any:
        change(value["choices"][0])
        return value

    return changed


# The same as the native engine


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        replace(GREEDY, max_tokens=3),
        replace(GREEDY, max_tokens=1),
        replace(GREEDY, max_tokens=20, stop=("e",)),
        replace(GREEDY, max_tokens=20, stop=("ar", "15")),
    ],
    ids=["ends", "length", "one token", "a stop text", "several stop texts"],
)
def test_greedy_completions_are_those_of_the_native_engine(setting: Setting, tmp_path: Path, sampling: Sampling):
    requests = [setting.request(number, 1) for number in range(4)]
    with VllmServer(Path(setting.model.name_or_path)) as server:
        got = engine_of(setting, server, tmp_path).generate(requests, sampling)
    expected = setting.engine().generate(requests, sampling)
    for ours, theirs in zip(all_of(got), all_of(expected), strict=True):
        assert (ours.token_ids, ours.text, ours.stop_reason) == (theirs.token_ids, theirs.text, theirs.stop_reason)
        assert ours.logprobs == theirs.logprobs
        assert ours.plain_logprobs == pytest.approx(theirs.plain_logprobs, abs=1e-4)


@pytest.mark.parametrize(
    "sampling",
    [
        DRAWN,
        replace(DRAWN, temperature=0.7, top_k=20),
        replace(DRAWN, top_p=0.8),
        replace(DRAWN, min_p=0.2, top_k=9),
        replace(DRAWN, repetition_penalty=1.4),
    ],
    ids=["plain", "top_k", "top_p", "min_p", "repetition_penalty"],
)
def test_logprobs_are_of_the_distribution_that_was_drawn_from(setting: Setting, tmp_path: Path, sampling: Sampling):
    request = setting.request(0, 2)
    with VllmServer(Path(setting.model.name_or_path)) as server:
        (group,) = engine_of(setting, server, tmp_path).generate([request], sampling)
    with torch.no_grad():
        for one in group.completions:
            logits = own_logits(setting.own, request.prompt_ids, one.token_ids)
            expected = [
                math.log(slow_policy(row.tolist(), sampling, token, (*request.prompt_ids, *one.token_ids[:n]))[token])
                for n, (row, token) in enumerate(zip(logits, one.token_ids, strict=True))
            ]
            assert one.logprobs == pytest.approx(expected, abs=1e-4)
            if sampling == DRAWN:
                assert one.plain_logprobs == one.logprobs
            else:  # the server does not know it
                assert all(map(math.isnan, one.plain_logprobs))


def groups_of(setting: Setting) -> list[Request]:
    return setting.requests()[:3]


def tokens(groups: Sequence[Group]) -> list[list[tuple[int, ...]]]:
    return [[one.token_ids for one in group.completions] for group in groups]


@pytest.fixture(scope="module")
def whole(setting: Setting, tmp_path_factory: pytest.TempPathFactory) -> list[list[tuple[int, ...]]]:
    """The tokens of groups of 7, 1 and 4, each sampled by one call."""
    with VllmServer(Path(setting.model.name_or_path)) as server:
        groups = engine_of(setting, server, tmp_path_factory.mktemp("whole")).generate(groups_of(setting), DRAWN)
        asked = sorted(call.body["sampling_params"]["n"] for call in server.asked(GENERATE))
        assert asked == [1, 4, 7]  # side by side, so in any order
    assert len({row for rows in tokens(groups) for row in rows}) > 8
    return tokens(groups)


@pytest.mark.parametrize(("max_rows", "rows"), [(3, 64), (16, 2)], ids=["few rows here", "few rows there"])
def test_a_group_in_several_calls_is_the_same(setting: Setting, tmp_path: Path, whole: Any, max_rows: int, rows: int):
    with VllmServer(Path(setting.model.name_or_path), rows=rows) as server:
        got = engine_of(setting, server, tmp_path, max_rows=max_rows).generate(groups_of(setting)[::-1], DRAWN)
    assert tokens(got)[::-1] == whole
    assert [one.index for one in got[2].completions] == list(range(7))


@pytest.mark.parametrize(
    "once",
    [Reply({"error": {"message": "worker died"}}, 500), Reply(lost=True), replace(Reply({"a": 1}), half=True)],
    ids=["status 500", "lost", "half a reply"],
)
def test_a_repeated_call_gives_the_same_group(setting: Setting, tmp_path: Path, whole: Any, once: Reply):
    with VllmServer(Path(setting.model.name_or_path), fault=faulty(GENERATE, once, only=2)) as server:
        got = engine_of(setting, server, tmp_path).generate(groups_of(setting), DRAWN)
        assert len(server.asked(GENERATE)) == 4
    assert tokens(got) == whole


@pytest.mark.parametrize("lora", [False, True], ids=["all weights", "adapter"])
@pytest.mark.parametrize("noticed", [True, False], ids=["in a call", "between two calls"])
def test_a_server_that_is_killed_on_the_way_gets_the_weights_again(
    setting: Setting, adapted: Setting, tmp_path: Path, whole: Any, lora: bool, noticed: bool
):
    own, killed = adapted if lora else setting, threading.Event()

    def kill_once(call: Call, answer: Answer) -> Reply:
        if call.path != GENERATE or killed.is_set():
            return answer()
        killed.set()
        if noticed:
            threading.Thread(target=call.server.kill).start()
            return Reply(seconds=5.0)
        call.server.forget()  # it answers, from its first weights, or that it has no such adapter
        return answer()

    with VllmServer(Path(setting.model.name_or_path), fault=kill_once, lora=lora) as server:
        engine = engine_of(own, server, tmp_path)
        engine.load_weights(4)
        got = engine.generate(groups_of(own), DRAWN)
        assert server.version.startswith("4-")
        assert server.worker.grouprl_describe()["label"] == server.version
    assert tokens(got) == whole
    assert {one.weights_version for one in all_of(got)} == {4}


def test_a_server_that_is_killed_while_its_weights_are_replaced_is_not_believed(setting: Setting, tmp_path: Path):
    def forget(call: Call, answer: Answer) -> Reply:
        if call.path == "/update_weight_version":
            call.server.forget()
        return answer()

    with VllmServer(Path(setting.model.name_or_path), fault=forget) as server:
        with pytest.raises(UserError, match=r"expected the weights 0-\w+, got ''"):
            engine_of(setting, server, tmp_path).generate(groups_of(setting), DRAWN)
        assert server.asked(GENERATE) == []


def test_the_same_callbacks_as_the_native_engine(setting: Setting, tmp_path: Path):
    finished: list[int] = []
    places: dict[int, Group] = {}
    threads: set[threading.Thread] = set()

    def on_group(place: int, group: Group) -> None:
        places[place] = group
        threads.add(threading.current_thread())

    with VllmServer(Path(setting.model.name_or_path)) as server:
        engine = engine_of(setting, server, tmp_path, max_rows=3)
        got = engine.generate(groups_of(setting), DRAWN, on_finished=finished.append, on_group=on_group)
        assert engine.generate([], DRAWN) == []
    assert sum(finished) == 12
    assert [places[place] for place in range(3)] == got
    assert threads == {threading.main_thread()}


def test_what_a_callback_raises_ends_the_call_at_once(setting: Setting, tmp_path: Path):
    def stop(count: int) -> None:
        raise KeyboardInterrupt

    def slow(call: Call, answer: Answer) -> Reply:
        return replace(answer(), seconds=5.0 if call.number and call.path == GENERATE else 0.0)

    with VllmServer(Path(setting.model.name_or_path), fault=slow) as server:
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            engine_of(setting, server, tmp_path).generate(groups_of(setting), DRAWN, on_finished=stop)
        assert time.monotonic() - started < 3


# New weights


@torch.no_grad()
def shift(model: Any, by: float) -> None:
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            weight.add_(by * torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name))))


@pytest.mark.parametrize("lora", [False, True], ids=["all weights", "adapter"])
def test_the_server_samples_from_the_newest_weights(tiny: Path, tmp_path: Path, lora: bool):
    own = setting_of(tiny)
    if lora:
        add_adapter(own.model, LORA, seed=0)
    with VllmServer(tiny, lora=lora) as server:
        with torch.no_grad():  # an earlier run left these
            server.worker.model.get_input_embeddings().weight.mul_(1.5)
        engine = engine_of(own, server, tmp_path)
        found = []
        for version in (0, 1, 2):
            engine.load_weights(version)
            groups = engine.generate([own.request(2, 4)], DRAWN)
            expected = own.engine().generate([own.request(2, 4)], replace(GREEDY, max_tokens=1))
            assert groups[0].completions[0].weights_version == version
            greedy = engine.generate([own.request(2, 4)], replace(GREEDY, max_tokens=1))
            assert all_of(greedy)[0].plain_logprobs == pytest.approx(all_of(expected)[0].plain_logprobs, abs=1e-4)
            found.append(all_of(greedy)[0].plain_logprobs)
            shift(own.model, 0.05)
        assert len(set(found)) == 3
        # One update a step, not a call; under an adapter, the base once before.
        assert server.resets == len(server.asked("/pause")) == len(server.asked("/resume")) == 3 + lora
        assert len(server.adapters) == lora
    assert sorted(path.name for path in (tmp_path / "published").glob("version-*")) == [
        "version-000001",
        "version-000002",
    ]
    assert (tmp_path / "published" / "version-000002" / "adapter_model.safetensors").exists() == lora
    assert (tmp_path / "published" / "version-000002" / "model.safetensors").exists() != lora


class Kept(dict[int, Any]):
    """The adapters of a worker that keeps the first one."""

    def __setitem__(self, number: int, model: Any) -> None:
        self.setdefault(1, model)

    def pop(self, *given: Any) -> Any:
        """Keeps it."""


def test_a_worker_that_keeps_the_adapter_of_the_step_before_ends_the_call(tiny: Path, adapted: Setting, tmp_path: Path):
    with VllmServer(tiny, lora=True, workers=2) as server:
        server.workers[1].loras = Kept()
        engine = engine_of(adapted, server, tmp_path, seconds=60.0)
        engine.generate([adapted.request(0, 1)], GREEDY)
        engine.load_weights(1)
        kept = r"the adapter 1-\w+ in every worker, got the adapters \[\[2\], \[1\]\] after \[\[1\], \[1\]\]: look"
        with pytest.raises(UserError, match=kept):
            engine.generate([adapted.request(0, 1)], GREEDY)


def test_weights_that_changed_on_the_way_are_not_loaded(tiny: Path, setting: Setting, tmp_path: Path):
    def flip_a_byte(call: Call, answer: Answer) -> Reply:
        if call.path == "/pause":
            (weights,) = tmp_path.glob("published/*/model.safetensors")
            content = bytearray(weights.read_bytes())
            content[-1] ^= 1
            weights.write_bytes(content)
        return answer()

    with VllmServer(tiny, fault=flip_a_byte) as server:
        engine = engine_of(setting, server, tmp_path)
        with pytest.raises(UserError, match=r"expected the published weights loaded, got .*model.safetensors of \d+"):
            engine.generate([setting.request(0, 1)], GREEDY)
        assert server.version == "default"


# Faults


def written(finish: str, *ids: int) -> Any:
    """A completion of these ids, sampled from the right weights."""

    def change(one: dict[str, Any]) -> None:
        version = one["weight_versions"][0]["version"]
        one["weight_versions"] = [{"version": version, "start": 0, "end": len(ids)}]
        one["logprobs"] = {"content": [{"token_id": token, "logprob": -1.0} for token in ids]}
        one.update(finish_reason=finish, token_ids=list(ids))

    return choice(change)


def logprob(value: float) -> Any:
    return choice(lambda one: one["logprobs"]["content"][0].update(logprob=value))


def versions(*labels: str) -> Any:
    """Versions of one token each, or of all tokens if there is one label."""
    return choice(
        lambda one: one.update(
            weight_versions=[
                {"version": label, "start": place, "end": place + 1 if labels[1:] else len(one["token_ids"])}
                for place, label in enumerate(labels)
            ]
        )
    )


FAULTS: dict[str, tuple[Any, str]] = {
    "always 500": (
        Reply({"error": {"message": "no memory"}}, 500),
        "expected 2 completions of problem 'problem-0' (POST /inference/v1/generate) within 5 s, got status 500, no "
        "memory, 6 times: start the server (docs/scale.md), or look at its output",
    ),
    "no JSON": (Reply(raw=b'{"choices": [{"ind'), 'got no object in JSON but {"choices": [{"ind: look at'),
    "another model": (
        lambda value: {**value, "model": "other"},
        "got completions of 'other': look at the server's output",
    ),
    "one completion less": (
        lambda value: {**value, "choices": value["choices"][:1]},
        "expected 2 completions of a group, numbered from 0, got the numbers [0]: look",
    ),
    "the same completion twice": (
        lambda value: {**value, "choices": value["choices"][:1] * 2},
        "expected 2 completions of a group, numbered from 0, got the numbers [0, 0]: look",
    ),
    "no ids": (choice(lambda one: one.update(token_ids=None)), "expected 1 to 8 token ids below 320, got None: look"),
    "unknown ids": (choice(lambda one: one.update(token_ids=[320])), "expected 1 to 8 token ids below 320, got [320]"),
    "too many ids": (choice(lambda one: one.update(token_ids=[5] * 9)), "expected 1 to 8 token ids below 320, got"),
    "no log-probs": (choice(lambda one: one.update(logprobs=None)), "got 0 or those of other ids: look"),
    "one log-prob less": (choice(lambda one: one["logprobs"]["content"].pop()), "or those of other ids: look"),
    "log-probs of other ids": (
        choice(lambda one: one["logprobs"]["content"][0].update(token_id=7)),
        "or those of other ids: look",
    ),
    "NaN": (logprob(math.nan), "expected a finite log-prob of each token, got nan for token 0: start the server with"),
    "NaN as vLLM writes it": (logprob(-9999.0), "expected a finite log-prob of each token, got -9999.0 for token 0"),
    "a probability above 1": (logprob(0.5), "expected a finite log-prob of each token, got 0.5 for token 0"),
    "another version": (
        versions("7-0"),
        "got some from 7-0: give every run a server of its own, of vLLM 0.32 or newer, and look at its output",
    ),
    "two versions": (versions("7-0", "8-0"), "got some from 7-0, then 8-0: give every run a server of its own"),
    "no version": (choice(lambda one: one.pop("weight_versions")), "got some from none: give every run"),
    "always fresh": (versions("default"), "got some from default: give every run"),
    "aborted": (choice(lambda one: one.update(finish_reason="abort")), "got some from abort: give every run"),
    "a completion that does not end": (
        written("stop", 9),
        "expected a completion that ends with its first end token, with a stop text, or after 8 tokens, got one of 1 "
        "tokens with finish_reason 'stop'",
    ),
    "a completion after its end": (written("length", 1, *[9] * 7), "ends with its first end token"),
    "an end that the server does not see": (written("length", 9, 1), "ends with its first end token"),
}


@pytest.fixture(scope="module")
def shared(setting: Setting, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VllmServer, VllmEngine]]:
    with VllmServer(Path(setting.model.name_or_path)) as server:
        yield server, engine_of(setting, server, tmp_path_factory.mktemp("shared"))


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_a_sentence(
    setting: Setting, shared: tuple[VllmServer, VllmEngine], name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(vllm_client, "FIRST_WAIT", 0.01)
    server, engine = shared
    change, sentence = FAULTS[name]
    server.fault = faulty(GENERATE, change)
    with pytest.raises(UserError) as caught:
        engine.generate([setting.request(0, 2)], DRAWN)
    assert str(caught.value).startswith(f"vLLM server {server.address}: expected ")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", [GENERATE, "/collective_rpc"])
def test_a_server_that_hangs_is_left_at_the_deadline(setting: Setting, tmp_path: Path, path: str):
    with VllmServer(Path(setting.model.name_or_path), fault=faulty(path, Reply(seconds=30.0))) as server:
        started = time.monotonic()
        with pytest.raises(UserError, match=r"within 0.3 s, got no reply after 0 s: look at the server's output"):
            engine_of(setting, server, tmp_path, seconds=0.3).generate([setting.request(0, 2)], DRAWN)
        assert 0.25 < time.monotonic() - started < 2.5


def test_a_server_that_does_not_come_back_ends_the_call_at_the_deadline(setting: Setting, tmp_path: Path):
    with VllmServer(Path(setting.model.name_or_path)) as server:
        engine = engine_of(setting, server, tmp_path, seconds=0.5)
        engine.check_server()
    with pytest.raises(UserError, match=r"within 0.5 s, got ConnectError .* after \d s: look at the server's output"):
        engine.generate([setting.request(0, 2)], DRAWN)


def test_a_server_that_still_loads_is_waited_for_and_said(
    setting: Setting, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """More requests than RETRIES fail before it listens."""
    monkeypatch.setattr(vllm_client, "FIRST_WAIT", 0.02)
    monkeypatch.setattr(vllm_client, "LONGEST_WAIT", 0.1)
    with VllmServer(Path(setting.model.name_or_path)) as server:
        loading = threading.Thread(target=server.kill, kwargs={"seconds": 1.2})
        loading.start()
        time.sleep(0.2)
        engine_of(setting, server, tmp_path, seconds=60.0).check_server()
        loading.join()
    said = capfd.readouterr().err
    assert f"vLLM server {server.address}: waits for its models, at most 60 s: ConnectError" in said


def test_a_proxy_before_a_loading_server_is_no_failure(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It replies more often than RETRIES, then lets the server through; 500 is the server's own failure."""
    monkeypatch.setattr(vllm_client, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(vllm_client, "LONGEST_WAIT", 0.01)
    statuses = [502, 503, 504] * vllm_client.RETRIES

    def proxy(call: Call, answer: Answer) -> Reply:
        busy = call.path == "/v1/models" and call.number < len(statuses)
        return Reply({"error": {"message": "no upstream"}}, statuses[call.number]) if busy else answer()

    with VllmServer(Path(setting.model.name_or_path), fault=proxy) as server:
        engine_of(setting, server, tmp_path, seconds=60.0).check_server()
        assert len(server.asked("/v1/models")) > len(statuses)
        server.fault = faulty("/v1/models", Reply(status=503))
        with pytest.raises(UserError, match=r"within 0.3 s, got status 503.* after 0 s: look at the server"):
            engine_of(setting, server, tmp_path, seconds=0.3).check_server()
        server.fault = faulty("/v1/models", Reply(status=500))
        with pytest.raises(UserError, match=r"got status 500, .* 6 times: start the server"):
            engine_of(setting, server, tmp_path, seconds=60.0).check_server()


# A server that does not fit


def fits(setting: Setting, tmp_path: Path, server: VllmServer) -> None:
    with server:
        engine_of(setting, server, tmp_path).check_server()


def test_a_server_that_does_not_fit_is_refused(tiny: Path, setting: Setting, adapted: Setting, tmp_path: Path):
    other = tiny_model_folder(tmp_path, kv_heads=4)
    with pytest.raises(UserError, match=r"expected the model .*, with num_key_value_heads=4 instead of 2: start it"):
        fits(setting, tmp_path, VllmServer(other))
    with pytest.raises(UserError, match=r"expected --logprobs-mode processed_logprobs, got raw_logprobs: start it"):
        fits(setting, tmp_path, VllmServer(tiny, logprobs_mode="raw_logprobs"))
    save_tokenizer(setting, tmp_path / "other")
    with pytest.raises(UserError, match=r"expected the tokenizer of .*, got another one: start it"):
        fits(setting, tmp_path, VllmServer(tiny, tokenizer=tmp_path / "other"))
    with pytest.raises(UserError, match=r"expected --enable-lora for a run with model.lora, got a server without it"):
        fits(adapted, tmp_path, VllmServer(tiny))
    replicated = VllmServer(tiny)
    replicated.worker.vllm_config.parallel_config.data_parallel_size = 2
    with pytest.raises(UserError, match=r"expected --data-parallel-size 1, .*, got 2: start a server for each"):
        fits(setting, tmp_path, replicated)


def save_tokenizer(setting: Setting, folder: Path) -> None:
    """A tokenizer with as many tokens, two of which changed places."""
    setting.tokenizer.save_pretrained(folder)
    path = folder / "tokenizer.json"
    text = json.loads(path.read_text())
    vocabulary = text["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(text))


def test_a_context_that_is_too_short_is_refused_before_it_samples(tiny: Path, setting: Setting, tmp_path: Path):
    request = setting.request(2, 1)
    with VllmServer(tiny) as server:
        engine = engine_of(setting, server, tmp_path)
        most = 256 - len(request.prompt_ids)
        with pytest.raises(UserError, match=f"context of {256 - most} prompt tokens and {most + 1} .*, got one of 256"):
            engine.generate([request], Sampling(max_tokens=most + 1))
        assert server.asked(GENERATE) == []


def test_a_token_is_sent_and_never_shown(tiny: Path, setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VLLM_API_KEY", "s3cret")
    with VllmServer(tiny, token="s3cret") as server:
        engine_of(setting, server, tmp_path, token_env="VLLM_API_KEY").generate([setting.request(0, 1)], GREEDY)
        with pytest.raises(UserError, match=r"got status 401, Unauthorized: export the token that"):
            engine_of(setting, server, tmp_path).check_server()
        server.fault = faulty(GENERATE, Reply({"error": {"message": "Bearer s3cret\x1b[31m"}}, 400))
        with pytest.raises(UserError) as caught:
            engine_of(setting, server, tmp_path, token_env="VLLM_API_KEY").generate([setting.request(0, 1)], GREEDY)
    assert "s3cret" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    monkeypatch.delenv("VLLM_API_KEY")
    with pytest.raises(UserError, match="expected a token in the environment variable VLLM_API_KEY, got none: export"):
        engine_of(setting, server, tmp_path, token_env="VLLM_API_KEY")


def test_every_stop_reason_was_compared(setting: Setting, tmp_path: Path):
    with VllmServer(Path(setting.model.name_or_path)) as server:
        engine = engine_of(setting, server, tmp_path)
        got = engine.generate(setting.requests()[:3], Sampling(max_tokens=12, stop=("e",)))
    reasons = {completion.stop_reason for completion in all_of(got)}
    assert reasons == set(StopReason)
    for completion in all_of(got):
        assert (completion.token_ids[-1] in ENDS) == (completion.stop_reason is StopReason.END)
        assert not set(completion.token_ids[:-1]) & set(ENDS)
