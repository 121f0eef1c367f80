"""Runs whose completions a vLLM server samples: the record of a native run, and a run that ends in a sentence."""

from __future__ import annotations

import math
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from grouprl import UserError
from grouprl.config.run import RunConfig, load_config
from grouprl.engines import vllm_client
from grouprl.engines.vllm import VllmEngine
from grouprl.models.load import load_model, load_tokenizer
from grouprl.received.trust import refuse_foreign_code
from grouprl.record.read import read_json_lines, read_rollouts
from ranked_runs import SECTIONS, Place, torchrun_all
from small_runs import (
    assert_almost_same_run,
    assert_same_run,
    checkpoint_names,
    grouprl,
    metrics,
    rollouts,
    small_config,
    small_run,
    tree,
)
from vllm_server import Answer, Call, Fault, Reply, VllmServer

TOKEN = "s3cret-token"
ROLLOUT = {"problems_per_step": 2, "group_size": 4, "max_tokens": 8, "temperature": 0.8}


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", TOKEN)
    monkeypatch.setattr(vllm_client, "FIRST_WAIT", 0.01)


def config_of(runs: Path, server: VllmServer, name: str = "run", engine: Any = (), **changes: Any) -> RunConfig:
    given = {"name": "vllm", "address": server.address, "token_env": "VLLM_API_KEY", "seconds": 5.0, **dict(engine)}
    return small_config(runs, name, **{"steps": 2, "rollout": {**ROLLOUT, "engine": given}, **changes})


def shape(rows: list[dict[str, Any]]) -> list[list[str]]:
    return [sorted(row) for row in rows]


@pytest.fixture(scope="module")
def whole(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps on a server."""
    runs = tmp_path_factory.mktemp("whole")
    with VllmServer(tiny, token=TOKEN) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_API_KEY", TOKEN)
        patch.setattr("grouprl.trainer.terminal.report_of", lambda directory: directory / "report.html")
        directory = small_run(tiny, config_of(runs, server)).directory
        assert len(server.asked("/pause")) == 3  # before each step, and before the last evaluation
    return directory


def test_a_run_leaves_the_record_of_a_native_run(whole: Path, tiny: Path, tmp_path: Path):
    theirs = small_run(tiny, small_config(tmp_path, steps=2, rollout=ROLLOUT)).directory
    assert sorted(path.name for path in (whole / "published").iterdir()) == ["version-000001", "version-000002"]
    assert {path.name for path in whole.iterdir()} - {"published"} == {path.name for path in theirs.iterdir()}
    assert shape(metrics(whole)) == shape(metrics(theirs))
    assert max(row["sampler_learner_gap"] for row in metrics(whole)) < 1e-4
    count = "SELECT step, weights_version, COUNT(*) FROM completions GROUP BY 1, 2"
    assert rollouts(whole, count) == rollouts(theirs, count) == [(1, 0, 8), (2, 1, 8)]
    recorded = read_rollouts(whole, step=2)[0].group.completions
    assert all(math.isnan(value) for one in recorded for value in one.plain_logprobs)
    assert [path for path, content in tree(whole).items() if TOKEN.encode() in (content or b"")] == []


def test_a_server_that_dies_ends_the_run_in_a_sentence_and_a_resume_loses_nothing(
    whole: Path, tiny: Path, tmp_path: Path
):
    def die_in_step_two(call: Call, answer: Answer) -> Reply:
        groups = [one for one in call.server.asked(call.path) if one.body.get("sampling_params", {}).get("n") == 4]
        dead = call.path.startswith("/inference") and len(groups) > 2
        return Reply({"error": {"message": "EngineDeadError"}}, 500) if dead else answer()

    died = pytest.raises(UserError, match=r"vLLM server .*: expected [14] completions of problem .*EngineDeadError")
    with VllmServer(tiny, token=TOKEN, fault=die_in_step_two) as server, died:
        small_run(tiny, config_of(tmp_path, server, checkpoint={"every": 1}))
    directory = tmp_path / "run"
    assert checkpoint_names(directory) == ["step-000001"]
    assert [row["step"] for row in metrics(directory)] == [1]
    with VllmServer(tiny, token=TOKEN) as server:  # at another address
        small_run(tiny, config_of(tmp_path, server), resume=True)
    assert rollouts(directory) == rollouts(whole)
    assert metrics(directory) == metrics(whole)


def test_a_server_is_checked_before_the_run_directory_is_touched(tiny: Path, tmp_path: Path):
    with VllmServer(tiny, token=TOKEN) as server, pytest.raises(UserError, match="got status 401, Unauthorized: exp"):
        small_run(tiny, config_of(tmp_path, server, engine={"token_env": None}))
    assert tree(tmp_path) == {}


def test_there_are_not_more_servers_than_ranks(tiny: Path, tmp_path: Path):
    several = ["http://127.0.0.1:8000", "http://127.0.0.1:8001"]
    with VllmServer(tiny) as server:
        for address, said in ((None, "addresses: expected at most 1, one for each rank"), (server.address, "got both")):
            with pytest.raises(UserError, match=said):
                small_run(tiny, config_of(tmp_path, server, engine={"address": address, "addresses": several}))
        assert server.calls == []


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True], ids=["whole", "sharded"])
def test_ranks_sample_from_a_server_each_or_from_one(tiny: Path, tmp_path: Path, shard: bool):
    """The run is that of one process, and each server gets each version once."""
    place, exact = Place(tiny, tmp_path), {"exact": True}

    def settings(name: str, *, sharded: bool = False, **engine: Any) -> list[str]:
        given = {"name": "vllm", "token_env": "VLLM_API_KEY", "seconds": 30.0, **engine}
        rollout = {**SECTIONS["rollout"], "problems_per_step": 8, "engine": given}  # with `exact` for 8 shards
        return place.arguments(name, rollout=rollout, distributed={"shard": True} if sharded else exact)

    with VllmServer(tiny, token=TOKEN) as first, VllmServer(tiny, token=TOKEN) as second:
        alone = grouprl(*settings("alone", address=first.address))
        assert alone.code == 0, alone.text
        published = len(first.asked("/pause"))
        first.calls.clear()
        servers = [first.address, second.address]
        two = settings("two", sharded=shard, addresses=servers)
        many = torchrun_all(2, [two, settings("shared", sharded=shard, address=first.address)])
        assert many.code == 0, many.text
        assert (len(first.asked("/pause")), len(second.asked("/pause"))) == (2 * published, published)
        assert len(second.asked("/inference/v1/generate")) >= 3
    for name in ("two", "shared"):
        if shard:
            assert_almost_same_run(place.runs / "alone", place.runs / name)
        else:
            assert_same_run(place.runs / "alone", place.runs / name, step=3)


def off_by(nats: float) -> Fault:
    def off(call: Call, answer: Answer) -> Reply:
        reply = answer()
        for choice in (reply.value or {}).get("choices", []):
            for one in choice["logprobs"]["content"]:
                one["logprob"] -= nats
        return reply

    return off


@pytest.mark.parametrize(
    ("nats", "steps", "warned", "said"),
    [(0.01, 1, False, ""), (0.3, 3, True, "log-probs are 0.3 nats too low on average")],
)
def test_a_server_whose_log_probs_are_too_low_is_a_warning_and_then_the_end(
    tiny: Path, tmp_path: Path, nats: float, steps: int, warned: bool, said: str
):
    with VllmServer(tiny, token=TOKEN, fault=off_by(nats)) as server:
        # Weights that hardly move: the gap is the server's alone.
        config = config_of(tmp_path, server, steps=steps, learner={"learning_rate": 1e-9})
        with pytest.raises(UserError, match=said) if said else nullcontext():
            small_run(tiny, config)
    directory = tmp_path / "run"
    found = [row for row in read_json_lines(directory / "warnings.jsonl") if row["kind"] == "sampler_learner_gap"]
    assert [row["step"] for row in found[:1]] == [1] * warned
    assert all(f"differ by up to {nats:g} nats" in row["sentence"] for row in found[:1])
    assert metrics(directory)[0]["sampler_learner_gap_mean"] == pytest.approx(nats, abs=1e-4)
    assert len(metrics(directory)) == steps  # the step that ends a run is in its record


@pytest.mark.parametrize(("program", "said"), [
    ("0.31.1", r"expected vLLM 0\.32 or newer, got version '0\.31\.1'"),
    ("0.4.2", r"expected vLLM 0\.32 or newer"),
    ("main", r"expected vLLM 0\.32 or newer"),
    ("0.33.0", "runs vLLM 0.33.0"),
    ("", "of an unknown version"),
    ("0.32.1+cpu", ""),
])  # fmt: skip
def test_a_server_of_another_version_is_refused_or_named(tiny: Path, tmp_path: Path, program: str, said: str):
    with VllmServer(tiny, token=TOKEN) as server:
        server.program = program
        config = config_of(tmp_path, server, steps=1)
        model, tokenizer = load_model(str(tiny), device=torch.device("cpu")), load_tokenizer(str(tiny))
        engine = VllmEngine(config.rollout.engine, model, tokenizer, seed=0, max_rows=8, folder=tmp_path / "published")
        if "expected" in said:
            with pytest.raises(UserError, match=said):
                engine.check_server()
        else:
            engine.check_server()
            assert (said in engine.doubt) if said else engine.doubt == ""
            server.program = "0.32.9"  # started again with another program
            with pytest.raises(UserError, match="as before"):
                engine.check_server()


def test_a_server_that_keeps_old_weights_is_a_warning_or_the_end(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It loads the new version, and samples from a packed copy of the weights of the start."""
    sample = VllmServer._sample
    with VllmServer(tiny, token=TOKEN) as server:
        packed = deepcopy(server.worker.model)
        monkeypatch.setattr(VllmServer, "_sample", lambda self, model, *given: sample(self, packed, *given))
        directory = small_run(tiny, config_of(tmp_path, server, learner={"learning_rate": 5e-4})).directory
        stopped = pytest.raises(UserError, match="or a sampler with other weights, is the likely cause")
        with stopped:  # updates of 0.01 are a gap of 6 nats
            small_run(tiny, config_of(tmp_path, server, "far"))
    first, second = (row["sampler_learner_gap"] for row in metrics(directory))
    assert first < 1e-4 < 0.02 < second
    found = [row for row in read_json_lines(directory / "warnings.jsonl") if row["kind"] == "sampler_learner_gap"]
    assert [row["step"] for row in found] == [2]
    assert "in the first step" in found[0]["sentence"]


def test_a_server_that_only_a_received_run_names_gets_nothing(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    received = whole / "config.yaml"
    config = load_config(RunConfig, [received], [])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # of somebody who has not run it
    with pytest.raises(UserError, match=r"names the server http://127.* with the key in VLLM_API_KEY: it"):
        refuse_foreign_code(config, [received], [])
    refuse_foreign_code(config, [received], [str(config.rollout.engine.address)])
