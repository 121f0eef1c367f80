"""Tiny models with an adapter, runs that train one, and merging by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from grouprl import Algorithm, Run, Trainer
from grouprl.config.run import LearnerConfig, LoraConfig
from grouprl.learner import Learner, Optimizer, make_batch
from grouprl.models.adapters import add_adapter
from grouprl.models.load import load_model, load_tokenizer
from grouprl.models.save import save_model
from grouprl.rewards.functions import WeightedReward
from grouprl.rollout import NativeEngine, Request
from grouprl.types import Batch, Problem, Sampling
from oracles import own_model
from small_runs import LETTERS, ROWS, checkpoint_names, metrics, rollouts, small_config
from variants import variant

CPU = torch.device("cpu")
LORA = LoraConfig(rank=4, alpha=6)
SCALE = 6 / 4
PROJECTIONS = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
PLAIN = Sampling(max_tokens=12)
GRPO, CORRECTED = Algorithm(), variant(correction="truncate")  # the second looks at the policy before the update


def adapted(folder: Path, lora: LoraConfig = LORA, seed: int = 0) -> PreTrainedModel:
    return add_adapter(load_model(str(folder), device=CPU), lora, seed=seed)


@torch.no_grad()
def shaken(model: PreTrainedModel) -> PreTrainedModel:
    """As after training: B is no longer 0."""
    generator = torch.Generator().manual_seed(5)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.copy_(0.02 * torch.randn(weight.shape, generator=generator))
    return model


def saved(model: PreTrainedModel, base: Path, to: Path) -> Path:
    save_model(model, load_tokenizer(str(base)), to)
    return to


def learning(model: PreTrainedModel) -> dict[str, Tensor]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def merged_by_hand(folder: Path, adapter: Path, scale: float = SCALE) -> PreTrainedModel:
    """The base in transformers' own hands, in float64, with W + scale * B A in place of W."""
    model, weights = own_model(folder).double(), load_file(adapter / "adapter_model.safetensors")
    with torch.no_grad():
        for name in [name for name in weights if "lora_A" in name]:
            layer = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            change = weights[name.replace("lora_A", "lora_B")].double() @ weights[name].double()
            model.get_submodule(layer).weight.add_(scale * change)
    return model


def sampled(model: PreTrainedModel, folder: Path, dtype: str = "float32") -> Batch:
    tokenizer = load_tokenizer(str(folder))
    requests = [
        Request(Problem(prompt, prompt), tuple(tokenizer(prompt)["input_ids"]), 3)
        for prompt in ("John has 15 apples.", "4", "There are 4 boxes with 6 pens each.")
    ]
    engine = NativeEngine(model, tokenizer, seed=3, max_rows=6, dtype=dtype)
    return make_batch(engine.generate(requests, PLAIN), PLAIN)


def learner_of(
    model: PreTrainedModel, reference: PreTrainedModel | None, algorithm: Algorithm = GRPO, dtype: str = "float32"
) -> Learner:
    optimizer = Optimizer(model, LearnerConfig(learning_rate=0.01))
    return Learner(model, reference, optimizer, algorithm, CPU, dtype, 60)


def run(
    start: Path | str,
    runs: Path,
    name: str = "run",
    *,
    reward: Any = LETTERS.function,
    resume: bool = False,
    **changes: Any,
) -> Run:
    given = {"model": {"lora": {"rank": 4}}, "learner": {"learning_rate": 0.02}, **changes}
    config = small_config(runs, name, **given)
    return Trainer(start, ROWS, [WeightedReward("letters", reward)], config=config).train(resume=resume)


def newest(directory: Path) -> Path:
    return directory / "checkpoints" / checkpoint_names(directory)[-1]


def assert_same_run(left: Path, right: Path) -> None:
    for file in ("adapter_model.safetensors", "trainer/optimizer.safetensors"):
        ours, theirs = load_file(newest(left) / file), load_file(newest(right) / file)
        assert ours.keys() == theirs.keys()
        assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    assert metrics(left) == metrics(right)
    assert rollouts(left) == rollouts(right)
