"""With the kernels the learner's log-probs are the sampler's to the bit: in float32, and in bfloat16 with pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine_setting import ENDS, PROMPTS
from grouprl.config.run import LoraConfig
from grouprl.forward.layouts import Prefix, TreeLayout
from grouprl.forward.prefix import KeepingLayout
from grouprl.kernels import calibration
from grouprl.kernels.build import library
from grouprl.kernels.llama_form import AttentionInput, attend_rotated
from grouprl.learner import make_batch
from grouprl.models.adapters import add_adapter
from grouprl.models.load import load_model, load_tokenizer
from grouprl.rollout import NativeEngine, make_requests
from grouprl.types import Problem, Sampling
from learner_setting import EXAMPLES, learner_of
from tiny import Kind, tiny_model_folder
from variants import variant

CPUINFO = Path("/proc/cpuinfo")
FLAGS = CPUINFO.read_text(encoding="utf-8") if CPUINFO.exists() else ""
SAMPLING = Sampling(max_tokens=40)
CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler")
PAIRS = pytest.mark.skipif("avx512_bf16" not in FLAGS, reason="this processor multiplies no pairs")
CHANGES = ["none", "an adapter", "a shared prefix", "rounded weights"]


@pytest.fixture(autouse=True)
def every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_kernel_wins", lambda *_: True)


@pytest.mark.parametrize(
    ("change", "dtype"),
    [
        *((change, "float32") for change in CHANGES[:3]),
        *(pytest.param(change, "bfloat16", marks=PAIRS) for change in CHANGES),
    ],
)
@pytest.mark.parametrize(("kind", "kv_heads"), [("qwen2", 2), ("llama", 4), ("qwen3", 1)])
def test_log_probs_are_the_samplers_to_the_bit(
    tmp_path: Path, kind: Kind, kv_heads: int, change: str, dtype: str
) -> None:
    """Rows of decode steps and packs have every size, and a score is computed in tiles of every shape."""
    folder = str(tiny_model_folder(tmp_path, kind=kind, kv_heads=kv_heads))
    weights = "bfloat16" if change == "rounded weights" else "float32"
    model, tokenizer = load_model(folder, device=CPU, weights=weights), load_tokenizer(folder)
    model.generation_config.eos_token_id = ENDS
    if change == "an adapter":
        model = add_adapter(model, LoraConfig(rank=16), seed=0)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.data = 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    before = EXAMPLES if change == "a shared prefix" else ""
    visits = [(Problem(text, before + text), "") for text in PROMPTS]
    asked = make_requests(visits, tokenizer, completions=7, longest_prompt=200)
    assert (asked[0].before > 0) == bool(before)
    groups = NativeEngine(model, tokenizer, seed=3, max_rows=21, dtype=dtype).generate(asked, SAMPLING)
    batch = make_batch(groups, SAMPLING)
    assert batch.mask_NT.sum() > 250
    for budget in (150, 10**6):
        learner = learner_of(model, variant(kl_coef=0.0, passes=2), dtype=dtype, micro_batch_tokens=budget)
        policy_NT = learner.evaluate(replace(batch, sampling=replace(SAMPLING, sampled_in_process=False))).policy_NT
        assert policy_NT is not None
        assert float((policy_NT - batch.old_logprobs_NT)[batch.mask_NT].abs().max()) == 0


def test_attention_after_a_prefix_is_that_of_whole_prompts() -> None:
    """Of 100,000 numbers that torch rotates some would round to another bfloat16 if the kernels rotated otherwise."""
    before, own, completions = 800, 7, (9, 5)
    generator = torch.Generator().manual_seed(0)

    def numbers(heads: int) -> Tensor:
        return torch.randn(before + own + sum(completions), heads, 64, generator=generator)

    angles = numbers(1)[:, 0, :32].repeat(1, 2)
    whole = (*(numbers(heads).bfloat16() for heads in (4, 2, 2)), angles.cos(), angles.sin())
    expected = attend_rotated(TreeLayout((before + own,), (completions,), CPU), 0, AttentionInput(*whole, 0.125))
    layout = KeepingLayout([TreeLayout((before,), ((),), CPU)])
    attend_rotated(layout, 0, AttentionInput(*(one[:before] for one in whole), 0.125))
    key, value = (one.float() for one in layout.kept[0])
    tree = TreeLayout((own,), (completions,), CPU, before, Prefix([key], [value]))
    found = attend_rotated(tree, 0, AttentionInput(*(one[before:] for one in whole), 0.125))
    assert torch.equal(found, expected[before:])
