"""Tiny random checkpoints of many model families, by the real configuration classes of transformers: what works.

python benchmarks/families.py            # benchmarks/results/families.md
python benchmarks/families.py mamba2

Each family is loaded, compared with its own forward pass, given an adapter, and trained for two steps.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import cloudpickle
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

from grouprl import RunConfig, Trainer
from grouprl.config.run import EvaluationConfig, LearnerConfig, LoraConfig, PolicyConfig, RolloutConfig
from grouprl.forward.attention import is_packed
from grouprl.learner.batch import make_batch
from grouprl.learner.packs import make_packs, pack_forward, to_grid
from grouprl.models.adapters import add_adapter
from grouprl.models.load import load_model, load_tokenizer
from grouprl.models.save import save_model
from grouprl.rollout import NativeEngine, Request
from grouprl.types import Batch, Group, Problem, Sampling, UserError

CPU = torch.device("cpu")
# The reward travels to its worker as it is: a worker that imported this file would load torch, for seconds.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
WINDOW = 8
# Sizes under the names that most configurations share, or map to their own.
_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}
_MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_MLA = _MOE | {
    "num_key_value_heads": 4,
    "head_dim": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 6,
}
_SLIDING = {"sliding_window": WINDOW}
_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_ALTERNATING = ["sliding_attention", "full_attention"] * 2
_HYBRID = ["linear_attention", "full_attention"] * 2
_VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
_QWEN_VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32}
_MROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10_000.0}
_MAMBA = {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4}

FAMILIES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": {},
        "mistral": _SLIDING,
        "ministral": _SLIDING | {"layer_types": _ALTERNATING},
        "qwen2": {"use_sliding_window": True, "max_window_layers": 2, **_SLIDING},
        "qwen3": {},
        "qwen2_moe": _MOE | {"shared_expert_intermediate_size": 16},
        "qwen3_moe": _MOE,
        "mixtral": _MOE | _SLIDING,
        "olmo": {},
        "olmo2": {},
        "olmo3": _SLIDING | {"layer_types": _ALTERNATING},
        "olmoe": _MOE,
        "gemma": {},
        "gemma2": _SLIDING | {"layer_types": _ALTERNATING, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 1.0,
                              "final_logit_softcapping": 2.0},
        "gemma3_text": _SLIDING | {"layer_types": _ALTERNATING, "query_pre_attn_scalar": 8},
        "gemma3": {"text": _SLIDING | {"layer_types": _ALTERNATING, "query_pre_attn_scalar": 8}, "vision": _VISION},
        "gpt_oss": _MOE | _SLIDING | {"layer_types": _ALTERNATING},
        "phi": {"partial_rotary_factor": 0.5},
        "phi3": _SLIDING,
        "phimoe": _MOE | _SLIDING,
        "granite": {"logits_scaling": 3.0, "embedding_multiplier": 2.0, "residual_multiplier": 0.5},
        "granitemoe": _MOE | {"logits_scaling": 3.0},
        "cohere": {"logit_scale": 0.25},
        "cohere2": {"logit_scale": 0.25, **_SLIDING, "layer_types": _ALTERNATING},
        "stablelm": {},
        "starcoder2": _SLIDING,
        "gpt2": {"num_key_value_heads": None},
        "gpt_neo": {"num_layers": 4, "attention_types": [[["global", "local"], 2]], "window_size": WINDOW},
        "gpt_neox": {},
        "gptj": {"rotary_dim": 4},
        "gpt_bigcode": {"num_key_value_heads": None},
        "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
        "bloom": {},
        "falcon": {"head_dim": None, "new_decoder_architecture": True, "num_kv_heads": 2},
        "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 4, "max_seq_len": 128},
        "codegen": {"rotary_dim": 4, "n_embd": 32, "n_layer": 4, "n_head": 4},
        "glm": {},
        "glm4": {},
        "exaone4": _SLIDING | {"layer_types": _ALTERNATING},
        "smollm3": {},
        "ernie4_5": {},
        "hunyuan_v1_dense": {},
        "seed_oss": {},
        "arcee": {},
        "apertus": {},
        "nemotron": {"partial_rotary_factor": 0.5},
        "helium": {},
        "deepseek_v2": _MLA,
        "deepseek_v3": _MLA,
        "llama4_text": _MOE | {"attention_chunk_size": WINDOW, "intermediate_size_mlp": 48,
                               "layer_types": ["chunked_attention", "full_attention"] * 2},
        "qwen2_vl": {"text": {"rope_parameters": _MROPE},
                     "vision": {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2}},
        "qwen2_5_vl": {"text": {"rope_parameters": _MROPE}, "vision": _QWEN_VISION},
        "qwen3_vl": {"text": {"rope_parameters": _MROPE}, "vision": _QWEN_VISION | {"deepstack_visual_indexes": [0]}},
        "mistral3": {"text": {"model_type": "mistral", **_SLIDING}, "vision": _VISION | {"model_type": "pixtral"}},
        "qwen3_next": _MOE | _LINEAR | {"layer_types": _HYBRID, "shared_expert_intermediate_size": 16},
        "qwen3_5_text": _LINEAR | {"layer_types": _HYBRID},
        "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8,
                      "mamba_chunk_size": 4, "lm_head_multiplier": 0.5},
        "granitemoehybrid": _MOE | {"layer_types": ["mamba", "attention"] * 2, "mamba_n_heads": 8, "mamba_d_head": 8,
                                    "mamba_d_state": 8, "mamba_chunk_size": 4, "shared_intermediate_size": 16,
                                    "logits_scaling": 3.0, "position_embedding_type": "rope"},
        "bamba": {"attn_layer_indices": [1, 3], "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8,
                  "mamba_chunk_size": 4},
        "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "block_dim": 32, "conv_L_cache": 3},
        "jamba": _MOE | {"mamba_d_state": 8, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4,
                         "use_mamba_kernels": False},
        "zamba2": {"mamba_d_state": 8, "mamba_headdim": 8, "n_mamba_heads": 8, "mamba_ngroups": 1, "chunk_size": 4,
                   "layers_block_type": ["mamba", "hybrid"] * 2, "num_mem_blocks": 1},
        "nemotron_h": {"hybrid_override_pattern": "M*-M", "mamba_num_heads": 8, "mamba_head_dim": 8,
                       "ssm_state_size": 8, "n_groups": 2, "chunk_size": 4},
        "mamba": {"state_size": 8},
        "mamba2": _MAMBA,
        "falcon_mamba": {"state_size": 8},
        "recurrent_gemma": {"lru_width": 32, "attention_window_size": WINDOW,
                            "block_types": ["recurrent", "attention"]},
        "rwkv": {"attention_hidden_size": 32, "context_length": 128},
        "xlstm": {"num_heads": 4, "num_blocks": 4, "embedding_dim": 32},
    }
)  # fmt: skip


def family_folder(tmp: Path, name: str, **changes: Any) -> Path:
    """A checkpoint folder of a family under `tmp`, with random weights that make attention and norms matter."""
    folder, tokenizer = tmp / name, load_tokenizer("abacus")
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    shared = {**_SIZES, "vocab_size": len(tokenizer)}
    own = {**FAMILIES[name], **changes}
    with torch.random.fork_rng():
        torch.manual_seed(7)
        if "vision" in own:
            config = AutoConfig.for_model(
                name,
                text_config={**shared, **ends, **own["text"]},
                vision_config=own["vision"],
                tie_word_embeddings=False,
            )
            model = AutoModelForImageTextToText.from_config(config)
        else:
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **_given({**shared, **ends, **own})))
        _fill(model)
    save_model(model, tokenizer, folder)
    return folder


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None or name == "bos_token_id"}


@torch.no_grad()
def _fill(model: PreTrainedModel) -> None:
    """Widens the usual deviation of 0.02, with which attention has nearly no effect in a model this narrow."""
    for name, weight in sorted(model.named_parameters()):
        if weight.dim() >= 2 and "conv" not in name:
            weight.add_(0.15 * torch.randn(weight.shape))
        elif "sinks" in name:
            weight.copy_(torch.randn(weight.shape))
        elif "norm" in name and weight.dim() == 1:
            weight.add_(0.1 * torch.randn(weight.shape))


@dataclass(frozen=True)
class Found:
    """What works with a family."""

    name: str
    form: str  # packed, rows, or why it is refused
    window: str = ""
    learner_gap: float = 0.0  # largest difference to the model's own log-probs, as a part of their spread
    sampler_gap: float = 0.0
    lora: str = ""
    trains: str = ""


def examine(name: str, tmp: Path) -> Found:
    """Loads, compares and trains a family."""
    folder = family_folder(tmp, name)
    try:
        model = load_model(str(folder), device=CPU)
    except UserError as error:
        return Found(name, f"refused: {str(error).partition('got ')[2].partition(': GroupRL')[0]}")
    window = getattr(model.config.get_text_config(), "sliding_window", None)
    form = "packed" if is_packed(model) else "rows"
    learner_gap, sampler_gap = gaps(folder, model)
    return Found(
        name, form, str(window or ""), learner_gap, sampler_gap, lora=adapted(model), trains=trained(folder, tmp)
    )


@torch.no_grad()
def gaps(folder: Path, model: PreTrainedModel) -> tuple[float, float]:
    """Of learner and sampler, to transformers' own forward pass over sampled completions longer than the window."""
    tokenizer = load_tokenizer(str(folder))
    prompts = ("Ben has 3 pens and buys 4 more pens. How many?", "2")
    requests = [Request(Problem(prompt, prompt), tuple(tokenizer(prompt)["input_ids"]), 3) for prompt in prompts]
    sampling = Sampling(max_tokens=3 * WINDOW)
    groups = NativeEngine(model, tokenizer, seed=3, max_rows=4).generate(requests, sampling)
    batch = make_batch(groups, sampling)
    own_NT, spread = _own_logprobs(folder, groups, batch)
    learner_NT = torch.zeros_like(own_NT)
    for pack in make_packs(batch, range(len(own_NT)), 0, CPU):
        learner_NT[list(pack.rows), : pack.width] = to_grid(pack, pack_forward(model, pack, sampling).logprobs_C)
    worst = [(found - own_NT)[batch.mask_NT].abs().max() for found in (learner_NT, batch.old_logprobs_NT)]
    return float(worst[0]) / spread, float(worst[1]) / spread


def _own_logprobs(folder: Path, groups: Sequence[Group], batch: Batch) -> tuple[Tensor, float]:
    """[N, T] log-probs of a completion after the other in whole sequences, and the spread over the vocabulary."""
    sees = "vision_config" in (folder / "config.json").read_text(encoding="utf-8")
    auto = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    own_NT, spread = torch.zeros(batch.mask_NT.shape), 0.0
    texts = [(group.prompt_ids, completion.token_ids) for group in groups for completion in group.completions]
    for row, (prompt, completion) in enumerate(texts):
        ids_T = torch.tensor([*prompt, *completion])
        logprobs_TV = model(input_ids=ids_T[None], use_cache=False).logits[0].log_softmax(-1)
        chosen_T = logprobs_TV[len(prompt) - 1 : -1].gather(1, ids_T[len(prompt) :, None])[:, 0]
        own_NT[row, : len(completion)] = chosen_T
        spread = max(spread, float(logprobs_TV.max() - logprobs_TV.min()))
    return own_NT, spread


def adapted(model: PreTrainedModel) -> str:
    """Whether all linear layers can have an adapter."""
    try:
        add_adapter(model, LoraConfig(rank=2, alpha=4), seed=0)
    except UserError as error:
        return f"no: {error}"
    return "yes"


def trained(folder: Path, tmp: Path) -> str:
    """Whether two steps end with other, finite weights."""
    config = RunConfig(
        name=f"{folder.name}-run",
        runs_dir=str(tmp),
        steps=2,
        model=PolicyConfig(threads=1),
        rollout=RolloutConfig(problems_per_step=2, group_size=4, max_tokens=2 * WINDOW),
        learner=LearnerConfig(learning_rate=1e-3),
        evaluation=EvaluationConfig(problems=0),
    )
    rows = [{"prompt": f"Say {number}."} for number in range(8)]
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            run = Trainer(str(folder), rows, [variety], config=config).train()
    except UserError as error:
        return f"no: {error}"
    saved = run.directory / "checkpoints" / "step-000002"
    before, after = (load_file(one / "model.safetensors") for one in (folder, saved))
    moved = any(not torch.equal(before[name], weight) for name, weight in after.items())
    return "yes" if run.finished and moved else "no: the weights stayed"


def variety(completions: list[str], **_: Any) -> list[float]:
    """A reward that differs between completions of random models."""
    return [len(set(completion)) / 50 for completion in completions]


HEADER = "| family | form | window | learner | sampler | LoRA | trains |\n|---|---|---|---|---|---|---|"


def row(found: Found) -> str:
    """A row of benchmarks/results/families.md."""
    numbers = [f"{gap:.0e}" if found.lora else "" for gap in (found.learner_gap, found.sampler_gap)]
    return f"| {' | '.join((found.name, found.form, found.window, *numbers, found.lora, found.trains))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("families", nargs="*", help="names; all without any")
    parser.add_argument("--smoke", action="store_true", help="one family: whether it runs")
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as tmp:
        print(HEADER)
        for name in given.families or (["llama"] if given.smoke else FAMILIES):
            print(row(examine(name, Path(tmp))), flush=True)


if __name__ == "__main__":
    main()
