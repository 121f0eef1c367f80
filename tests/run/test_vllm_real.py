"""The demo on a real vLLM server, weights updated each step; it is killed and started again on the way.

`make vllm-env` installs the server, `make test-vllm` runs this; without that environment everything here is skipped.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_setting import setting_of
from grouprl.config.run import EngineConfig
from grouprl.engines.vllm import VllmEngine
from grouprl.models.names import BUNDLED
from grouprl.types import Sampling
from real_vllm import PYTHON, TOKEN, RealVllm
from small_runs import grouprl, metrics, rollouts
from vllm_server import VllmServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PYTHON.exists(), reason="no vLLM: make vllm-env"),
]
STEPS, KILLED_AFTER = 12, 4
SETTINGS = (f"steps={STEPS}", "evaluation.problems=32", "evaluation.samples=2", "learner.warmup_steps=2")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealVllm]:
    with RealVllm(BUNDLED["abacus"], tmp_path_factory.mktemp("vllm")) as server:
        print(f"\nThe server started in {server.wait():.0f} s.")
        yield server


def train(server: RealVllm, runs: Path, name: str, monkeypatch: pytest.MonkeyPatch, *settings: str) -> Path:
    monkeypatch.setenv("VLLM_API_KEY", TOKEN)
    engine = {"name": "vllm", "address": server.address, "token_env": "VLLM_API_KEY"}
    place = (f"runs_dir={runs}", f"name={name}", f"rollout.engine={json.dumps(engine)}")
    ended = grouprl("train", "demo", *SETTINGS, *settings, *place)
    assert ended.code == 0, ended.text
    return runs / name


def show(rows: list[dict[str, Any]]) -> None:
    print("step  reward     gap  sample s")
    for row in rows:
        print(f"{row['step']:4d}  {row['reward']:.3f}  {row['sampler_learner_gap']:.1e}  {row['time/rollout']:6.1f}")


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_demo_learns_on_a_server_that_is_killed_on_the_way(
    server: RealVllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lines = tmp_path / "killed" / "metrics.jsonl"

    def kill_and_start() -> None:
        while not lines.exists() or len(lines.read_text().splitlines()) < KILLED_AFTER:
            time.sleep(0.05)
        server.kill()
        server.start()

    killer = threading.Thread(target=kill_and_start, daemon=True)
    killer.start()
    run = train(server, tmp_path, "killed", monkeypatch)
    killer.join(10)
    assert not killer.is_alive()
    show(rows_of(run))
    assert [row["step"] for row in metrics(run)] == list(range(1, STEPS + 1))
    assert max(row["sampler_learner_gap"] for row in metrics(run)) < 1e-4
    versions = rollouts(run, "SELECT step, weights_version, COUNT(*) FROM completions GROUP BY 1, 2")
    assert versions == [(step, step - 1, 128) for step in range(1, STEPS + 1)]
    assert max(row["time/rollout"] for row in rows_of(run)) > 10  # the step in which the server was started again
    rewards = [row["reward"] for row in metrics(run)]
    assert sum(rewards[-3:]) > sum(rewards[:3])


def test_an_adapter_learns_on_the_server(server: RealVllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    server.wait()
    settings = ("model.lora={rank: 8}", "steps=3", "learner.learning_rate=2e-3")
    run = train(server, tmp_path, "adapter", monkeypatch, *settings)
    show(rows_of(run))
    assert max(row["sampler_learner_gap"] for row in metrics(run)) < 1e-4
    assert metrics(run)[-1]["kl"] > 1e-5  # the adapter changed, and the gap did not


READS = """
import json, sys
from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest, GenerateTokensResponse
request, reply = json.load(sys.stdin)
taken = GenerateRequest.model_validate(request).sampling_params
assert {name: getattr(taken, name) for name in request["sampling_params"]} == request["sampling_params"], taken
known = GenerateTokensResponse.model_validate(reply).choices[0].model_dump()
unknown = {key for one in reply["choices"] for key in one} - {*known}
assert not unknown, unknown
"""


def test_the_contract_server_speaks_as_vllm_does(tiny: Path, tmp_path: Path):
    setting = setting_of(tiny)
    with VllmServer(tiny) as contract:
        settings = EngineConfig(name="vllm", address=contract.address)
        engine = VllmEngine(settings, setting.model, setting.tokenizer, seed=0, max_rows=8, folder=tmp_path)
        engine.generate([setting.request(0, 3)], Sampling(max_tokens=5, temperature=0.7, top_k=9, stop=("e",)))
        (call,) = contract.asked("/inference/v1/generate")
        reply = contract.answer("POST", call).value
    subprocess.run([PYTHON, "-c", READS], input=json.dumps([call.body, reply]).encode(), check=True, timeout=300)
