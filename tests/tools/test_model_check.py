"""`grouprl check-model`: what it says of checkpoints that fit, and of those that do not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from small_runs import Ended, grouprl, small_settings


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
