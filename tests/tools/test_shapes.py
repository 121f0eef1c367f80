"""Shapes of models without loading them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

import grouprl.models
from grouprl.tools.planner import SHAPES, shape_of
from grouprl.types import UserError

ABACUS = Path(grouprl.models.__file__).parent / "assets" / "abacus"


def test_a_folder_a_name_and_a_hub_id() -> None:
    assert shape_of(str(ABACUS)) == SHAPES["abacus"] == shape_of("abacus")
    assert shape_of("abacus_chains").parameters == shape_of("abacus").parameters
    assert shape_of("Qwen/Qwen2.5-7B-Instruct") == SHAPES["Qwen2.5-7B"]


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "num_key_value_heads": 2, "tie_word_embeddings": False},
        {"model_type": "llama", "attention_bias": True, "tie_word_embeddings": True, "head_dim": 24},
        {"model_type": "qwen2", "num_key_value_heads": 1, "tie_word_embeddings": False},
    ],
)
def test_a_config_has_the_parameters_that_transformers_makes_of_it(tmp_path: Path, config: dict[str, object]) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96}
    (tmp_path / "config.json").write_text(json.dumps(sizes | {"vocab_size": 50} | config))
    made: PretrainedConfig = AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(made)
    assert shape_of(str(tmp_path)).parameters == model.num_parameters()


@pytest.mark.parametrize(
    ("model", "config", "said"),
    [
        ("Qwen2.5-8B", None, "did you mean"),
        ("folder", {"hidden_size": 64}, "expected num_attention_heads"),
        ("folder", {"hidden_size": "64"}, "expected hidden_size, a whole number from 1, got '64'"),
        ("folder", {"num_experts": 8}, "expected a dense decoder, got num_experts=8"),
    ],
)
def test_what_has_no_shape_is_a_sentence(
    tmp_path: Path, model: str, config: dict[str, object] | None, said: str
) -> None:
    if config is not None:
        model = str(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=said):
        shape_of(model)
