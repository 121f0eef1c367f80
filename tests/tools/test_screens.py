"""`grouprl plan`, `grouprl doctor`, `grouprl check-model` and `grouprl --version` as a user sees them."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from grouprl import __version__
from grouprl.config.command_line import config_of
from grouprl.config.run import RunConfig
from grouprl.kernels.build import library
from grouprl.kernels.calibration import Contest, Timing
from grouprl.tools.planner import doctor, machine
from grouprl.tools.planner.screen import parse_memory, plan_run, show_plan
from grouprl.types import UserError
from small_runs import Ended, grouprl, small_settings

GPU = ["model.device=cuda", "model.dtype=bfloat16", "model.path=Qwen/Qwen2.5-1.5B-Instruct"]


def screen(width: int) -> Console:
    return Console(file=StringIO(), width=width, highlight=False)


def written(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_a_plan_on_one_screen(width: int) -> None:
    config, console = config_of(RunConfig, ["demo", *GPU, "learner.recompute=false"]), screen(width)
    plan = plan_run(config, prompt_tokens=256, available=80 << 30)
    show_plan(plan, "grpo", as_json=False, console=console)
    text = written(console)
    assert "Qwen2.5-1.5B, 1,543,714,304 parameters, grpo" in text
    assert "fits in 80.0 GiB" in text
    assert f"Largest group that fits: {plan.largest_group} completions." in text
    for part in ("held for the whole run", "peak of an update", "peak of sampling"):
        assert part in text
    assert len(text.splitlines()) <= 45
    assert max(map(len, text.splitlines())) <= width


def test_a_plan_follows_the_settings_of_the_run() -> None:
    def planned(*settings: str) -> Any:
        return plan_run(config_of(RunConfig, ["demo", *GPU, *settings]), prompt_tokens=99, available=1)

    plan = planned("rollout.group_size=4", "rollout.max_tokens=77", "algorithm=ppo", "learner.recompute=true")
    assert (plan.step.group_size, plan.step.completion_tokens, plan.step.prompt_tokens) == (4, 77, 99)
    assert (plan.step.recompute, plan.step.dtype, plan.step.device) == (True, "bfloat16", "cuda")
    assert (plan.networks.critic, plan.networks.reference, plan.networks.lora_rank) == (True, True, None)
    assert not plan.fits
    assert planned("model.lora={rank: 4}").networks.lora_rank == 4
    assert not planned("algorithm=dapo").networks.reference
    learned = planned("rewards=[{name: model, path: runs/reward-model/model}, {name: mine, path: mine.py}]")
    assert learned.networks.reward_model
    assert not planned("rewards=[{name: mine, path: mine.py}]").networks.reward_model


def test_plans_as_json() -> None:
    ended = grouprl("plan", "model.device=cuda", "model.path=Qwen2.5-7B", "--memory", "80GiB", "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert found["peak"] == max(found["learning"], found["sampling"]) > found["held"] > 0
    assert (found["available"], found["fits"], found["largest_group"]) == (80 << 30, False, 0)
    assert found["pace"] is None  # seconds are only of a machine that is measured here


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--memory", "24"), "expected an amount with a unit"),
        (("--memory", "24 gigs"), "expected an amount with a unit"),
        (("--model", "gpt-5"), "--model"),
    ],
)
def test_a_mistake_is_a_sentence(words: tuple[str, ...], said: str) -> None:
    ended = grouprl("plan", *words)
    assert ended.code == 2
    assert said in ended.err


def test_amounts_of_memory() -> None:
    assert [parse_memory(text) for text in ("24GiB", "1.5 GiB", "80GB")] == [24 << 30, 3 << 29, 80 * 10**9]
    with pytest.raises(UserError):
        parse_memory("-1GiB")


@pytest.mark.usefixtures("quick")
def test_this_machine_has_memory_and_rates() -> None:
    assert 0 < machine.free_memory("cpu") <= machine.total_memory("cpu")
    assert 1e8 < machine.product_rate("cpu", "float32") < 1e15
    assert 1e8 < machine.read_rate("cpu", 1e7) < 1e13


@pytest.mark.usefixtures("quick")
def test_the_doctor_on_one_screen_and_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = doctor.findings()
    monkeypatch.setattr(doctor, "findings", lambda *_: rows)
    for width in (80, 120):
        console = screen(width)
        doctor.show_doctor(as_json=False, console=console)
        text = written(console)
        for said in ("cpu float32", "GFLOP/s", "compiled", "bubblewrap", "landlock", "extras", "torch", "disk"):
            assert said in text
        assert max(map(len, text.splitlines())) <= width
    ended = grouprl("doctor", "--json")
    assert ended.code == 0, ended.err
    found = {(row["topic"], row["name"]): row for row in json.loads(ended.out)}
    assert found["versions", "grouprl"]["found"] == __version__
    assert {"data", "gym", "json", "lora", "math"} <= {name for topic, name in found if topic == "extras"}
    assert "dev" not in {name for topic, name in found if topic == "extras"}
    if find_spec("ray") is not None:
        (cluster,) = (one.found for one in rows if one.topic == "cluster")
        with socket.socket() as one:
            one.bind((cluster.partition("listens on ")[2].partition(",")[0], 0))  # it is this machine's own
        assert "with a token" in cluster


def timed(contest: Contest) -> list[Timing]:
    """Torch is faster at the largest of three sizes in bfloat16."""
    return [
        Timing(width, dtype, 0.0012, 0.0006 if (dtype, width) == ("bfloat16", contest.widths[2]) else 0.0034)
        for dtype in ("float32", "bfloat16")
        for width in contest.widths
    ]


@pytest.mark.usefixtures("quick")
@pytest.mark.skipif(library() is None, reason="no C compiler")
def test_the_times_of_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUPRL_KERNELS", "")
    monkeypatch.setattr("grouprl.kernels.offers.timings", timed)
    console = screen(100)
    doctor.show_doctor(as_json=False, console=console)
    text = written(console)
    assert "kernel/torch in ms, * = used" in text
    assert "hidden size 256 1.20*/3.40, 1024 1.20*/3.40, 4096 1.20*/3.40, float32" in text
    assert "hidden size 256 1.20*/3.40, 1024 1.20*/3.40, 4096 1.20/0.60*, bfloat16" in text
    found = [one for one in doctor.findings() if one.topic == "kernels"]
    names = ["add_norm", "swiglu", "attention", "log-probs", "draw", "product", "decode step"]
    assert [one.name for one in found[1:]] == names
    assert all(one.found.count("*") == 6 for one in found[1:])
    monkeypatch.setenv("GROUPRL_KERNELS", "on")
    (found_on,) = (one for one in doctor.findings() if one.topic == "kernels")
    assert "GROUPRL_KERNELS=on" in found_on.found


@pytest.mark.usefixtures("quick")
def test_what_is_not_there_has_a_reason_and_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUPRL_KERNELS", "off")
    monkeypatch.setattr("grouprl.checks.sandbox.why_unavailable", lambda name: f"{name} is not here")
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "peft" else "1.0")
    found = {(one.topic, one.name): one for one in doctor.findings()}
    assert found["kernels", "compiled"].found == "switched off by GROUPRL_KERNELS=off"
    assert not found["kernels", "compiled"].works
    assert found["sandbox", "bubblewrap"].remedy.startswith("apt install bubblewrap")
    assert "refused" in found["sandbox", "none"].found
    assert found["extras", "lora"].found == "not installed: peft"
    assert found["extras", "lora"].remedy == "pip install 'grouprl[lora]'"


def test_the_version_and_the_module() -> None:
    assert grouprl("--version").out == f"grouprl {__version__}\n"
    ran = subprocess.run([sys.executable, "-m", "grouprl", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"grouprl {__version__}\n"


def test_paged_moments_are_planned_on_a_gpu_and_refused_on_a_cpu() -> None:
    """Moments of Qwen2.5-7B in float32: 7,615,616,512 weights at 8 bytes."""

    def planned(*settings: str) -> Any:
        config = config_of(RunConfig, [*settings, "model.path=Qwen2.5-7B"])
        return plan_run(config, prompt_tokens=99, available=1).memory

    usual, paged = planned(*GPU), planned(*GPU, "learner.paged=true")
    assert usual.peak - paged.peak == 8 * 7_615_616_512
    with pytest.raises(UserError, match=r"learner\.paged: expected false on a CPU"):
        planned("model.device=cpu", "learner.paged=true")


def checked(folder: Path, *settings: str) -> tuple[Ended, dict[str, str]]:
    """How it ended, and the lines by name."""
    ended = grouprl("check-model", folder, *settings)
    return ended, {line[:15].strip(): line[15:].strip() for line in ended.out.splitlines() if line[:15].strip()}


@pytest.fixture
def copied(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "model"))


def test_a_model_that_fits(tiny: Path) -> None:
    ended, lines = checked(tiny, "rollout.max_tokens=64")
    assert ended.code == 0, ended.text
    weights = 320 * 64 + 2 * (2 * 64 * 64 + 64 + 2 * (64 * 32 + 32) + 3 * 64 * 128 + 2 * 64) + 64  # by hand
    assert lines["model"] == f"fine  Qwen2ForCausalLM, {weights:,} weights"
    assert lines["form"].startswith("fine  packed")
    for name in ("learner gap", "sampler gap"):
        assert float(lines[name].split()[1]) < 1e-5
    assert lines["context"] == "fine  256 tokens, for a short prompt and rollout.max_tokens=64"
    assert lines["LoRA targets"].startswith("fine  down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj")


def test_a_context_that_is_too_short(tiny: Path) -> None:
    ended, lines = checked(tiny, "rollout.max_tokens=256")
    assert ended.code == 1
    assert lines["context"].startswith("FAIL  256 tokens: expected at least")


def test_a_template_that_drops_the_system_message_gets_it_in_the_users(copied: Path) -> None:
    (copied / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    ended, lines = checked(copied, "rollout.max_tokens=16")
    assert ended.code == 0, ended.text
    assert lines["system role"].startswith("fine  in the first user message, renders")
    assert lines["chat template"].startswith("fine  renders")


def test_a_tokenizer_with_more_tokens_than_embeddings(copied: Path) -> None:
    file = copied / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    tokenizer["added_tokens"] += [{"id": 320, "content": "<extra>", **flags}]
    file.write_text(json.dumps(tokenizer))
    ended, lines = checked(copied, "rollout.max_tokens=16")
    assert ended.code == 1
    assert lines["vocabulary"].startswith("FAIL  321 tokens, 320 embeddings: model")
    ended = grouprl("train", "--model", copied, *small_settings(copied / "runs"))
    assert ended.code == 2
    assert (
        "expected a tokenizer of at most 320 tokens, as many as the model has embeddings, got one of 321" in ended.text
    )
    assert not (copied / "runs").exists()


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({}, "none"),
        ({"use_sliding_window": False, "sliding_window": 128}, "none"),
        (
            {"use_sliding_window": True, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"]},
            "128 tokens",
        ),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 8,
                "layer_types": ["sliding_attention", "sliding_attention"],
            },
            "8 tokens, shorter than a sequence",
        ),
        ({"attention_chunk_size": 128}, "none; the model ignores the 128 of its configuration"),
    ],
)
def test_the_window_is_what_the_model_does(copied: Path, keys: dict[str, object], line: str) -> None:
    config = copied / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | keys))
    ended, lines = checked(copied, "rollout.max_tokens=16")
    assert ended.code == 0, ended.text
    assert lines["window"] == f"fine  {line}"


def test_no_model(tmp_path: Path) -> None:
    ended, _ = checked(tmp_path / "nothing")
    assert ended.code == 2
    assert "expected a folder in Hugging Face layout, got no such folder" in ended.text
