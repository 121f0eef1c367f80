"""Shapes, models, clocks and measures of `gpu.py`: Qwen2.5 with random weights, so that nothing is downloaded."""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from shapes import tokenizer
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from grouprl.algorithms.spec import Algorithm
from grouprl.config.run import LearnerConfig, LoraConfig
from grouprl.forward.attention import NAME
from grouprl.forward.recompute import recompute_activations
from grouprl.learner import Learner, Optimizer, assign_credit, make_batch
from grouprl.models.adapters import add_adapter
from grouprl.rollout import NativeEngine, Request
from grouprl.tools.planner import SHAPES, MemoryPlan, ModelShape, Networks, StepShape, plan_memory
from grouprl.tools.planner.machine import Rates
from grouprl.tools.planner.memory import Dtype, Moments
from grouprl.types import Group, Problem, RewardOutcome, Sampling

ROOT = Path(__file__).parents[1]
PRETENDED = "pretend"
END = 1
QWEN = SHAPES["Qwen2.5-0.5B"]
TINY = ModelShape("tiny", 2, 64, 4, 2, 16, 128, 512, tied=True, biases="qkv")

Measures = dict[str, float | str]


@dataclass(frozen=True)
class Work:
    """Completions of one step; G of them for each prompt."""

    rows: int = 256
    group_size: int = 8
    prompt_tokens: int = 512
    max_tokens: int = 1024

    @property
    def problems(self) -> int:
        return self.rows // self.group_size

    @property
    def tokens(self) -> int:
        return self.rows * self.max_tokens


TINY_WORK = Work(8, 4, 16, 12)


@dataclass
class Bench:
    """What a part gets: the device, the sizes, and the measures so far, in a file after each of them."""

    device: torch.device
    tiny: bool = False
    file: Path | None = None
    folder: Path = field(default_factory=Path)
    rates: Rates = field(default_factory=lambda: Rates(math.nan, math.nan))  # as an earlier part measured them
    measures: dict[str, Measures] = field(default_factory=dict)

    def keep(self, name: str, measures: Measures) -> None:
        """Writes measures; those of `failed` or `skipped` are the reason."""
        self.measures[name] = measures
        if self.file is not None:
            self.file.write_text(json.dumps(self.measures, indent=1))
        print(f"  {name}: " + ", ".join(f"{key} {shown(value)}" for key, value in measures.items()), flush=True)

    def measure(self, name: str, function: Callable[..., Measures], *arguments: Any) -> Measures:
        """Keeps what a function returns; one that fails leaves the others, unless the device failed with it.

        Raises:
            RuntimeError: the device does not answer any more.
        """
        measures: Measures
        try:
            measures = function(self, *arguments)
        except Exception as error:  # noqa: BLE001 - a measure that fails must not take the others with it
            traceback.print_exc()
            measures = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"}
        self.keep(name, measures)
        if "failed" in measures:
            wait(self.device)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return measures

    def shape(self) -> ModelShape:
        return TINY if self.tiny else QWEN

    def seconds(self, function: Callable[[], Any]) -> float:
        wait(self.device)
        began = time.perf_counter()
        function()
        wait(self.device)
        return time.perf_counter() - began


@contextmanager
def device_here(name: str, *, opened: bool = True) -> Iterator[torch.device]:
    """A device by its name, also the one that tests pretend; `opened`: it can be computed on."""
    pretended: Any = nullcontext
    if name == PRETENDED:
        sys.path.append(str(ROOT / "tests" / "support"))
        from grouprl.forward.devices import DEVICES, DeviceTraits
        from pretend_device import pretended  # type: ignore[import-not-found,no-redef]

        os.environ["GROUPRL_KERNELS"] = "off"
        DEVICES[name] = DeviceTraits(has_float64=True, compares=False)
    with pretended() if opened else nullcontext():
        yield torch.device(name)


def shown(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak(device: torch.device) -> Callable[[], float]:
    """Gives a function that returns the most bytes of tensors since now; 0 on a CPU."""
    if device.type != "cuda":
        return lambda: 0.0
    torch.cuda.reset_peak_memory_stats(device)
    return lambda: float(torch.cuda.max_memory_allocated(device))


def build(shape: ModelShape, device: torch.device, *, spread: bool = False, mean_tokens: int = 0) -> PreTrainedModel:
    """Random weights, float32, on GroupRL's attention.

    With `spread` they are large enough that a wrong mask or position changes the distributions: transformers' own
    initial weights leave them nearly uniform. With `mean_tokens` completions end after so many tokens in the mean.
    """
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=4096,
        tie_word_embeddings=shape.tied,
        eos_token_id=END,
        pad_token_id=0,
        bos_token_id=None,
    )
    with torch.device("cpu" if device.type == PRETENDED else device):  # which makes no random numbers of its own
        model = Qwen2ForCausalLM(config).float().eval().to(device)
    with torch.no_grad():
        if spread:
            for name, weight in model.named_parameters():
                noise = torch.randn_like(weight)
                weight.copy_(1 + 0.1 * noise if "norm" in name else 1.6 * shape.hidden**-0.5 * noise)
        if mean_tokens:
            _end_often(model, mean_tokens)
    model.set_attn_implementation(NAME)
    # A hook makes a CPU too run the model's own modules, as a GPU does.
    model.get_decoder().register_forward_hook(lambda *_: None)
    return model


def _end_often(model: Any, mean_tokens: int) -> None:
    """Gives all hidden states the same first component, which the end token's embedding alone weighs otherwise.

    The other logits of random weights are nearly equal. A list of many end tokens would be searched in another way.
    """
    embedding = model.get_input_embeddings().weight
    embedding[:, 0] = 1.0
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[0] = 0.0
        layer.mlp.down_proj.weight[0] = 0.0
    hidden = model.model(torch.arange(2, 66, device=embedding.device)[None]).last_hidden_state[0, -8:]
    logits = hidden @ embedding[2:].T
    embedding[END] = 0.0
    level = float(logits.logsumexp(-1).mean()) - math.log(mean_tokens)
    embedding[END, 0] = level / float(hidden[:, 0].mean())


@dataclass
class Subject:
    """A model with its engine and learner, as a run with these settings has them; and what the planner says of it."""

    bench: Bench
    shape: ModelShape
    dtype: Dtype = "bfloat16"
    lora_rank: int | None = None
    recompute: bool = True
    moments: Moments = "float32"
    spread: bool = False
    mean_tokens: int = 0
    rate: float = 1e-6

    def __post_init__(self) -> None:
        self.model = build(self.shape, self.bench.device, spread=self.spread, mean_tokens=self.mean_tokens)
        if self.lora_rank is not None:
            add_adapter(self.model, LoraConfig(rank=self.lora_rank, alpha=2 * self.lora_rank), seed=0)
        if self.recompute:
            recompute_activations(self.model)
        self.learner = Learner(
            policy=self.model,
            reference=None,
            optimizer=Optimizer(self.model, LearnerConfig(learning_rate=self.rate, moments=self.moments)),
            algorithm=Algorithm(kl=None),
            device=self.bench.device,
            dtype=self.dtype,
            micro_batch_tokens=0,
        )

    def engine(self, rows: int) -> NativeEngine:
        return NativeEngine(self.model, tokenizer(), seed=0, max_rows=rows, dtype=self.dtype)

    @property
    def networks(self) -> Networks:
        return Networks(reference=False, lora_rank=self.lora_rank, moments=self.moments)

    def step(self, work: Work) -> StepShape:
        return StepShape(
            work.problems,
            work.group_size,
            work.prompt_tokens,
            work.max_tokens,
            max_rows=work.rows,
            dtype=self.dtype,
            device=self.bench.device.type,
            recompute=self.recompute,
        )

    def plan(self, work: Work) -> MemoryPlan:
        return plan_memory(self.shape, self.networks, self.step(work))


def prompts(work: Work) -> list[tuple[int, ...]]:
    draws = random.Random(0)  # of the words that the tokenizer knows
    return [tuple(draws.randrange(2, 512) for _ in range(work.prompt_tokens)) for _ in range(work.problems)]


def requests(prompt_ids: Sequence[tuple[int, ...]], group_size: int) -> list[Request]:
    return [Request(Problem(str(n), ""), ids, group_size) for n, ids in enumerate(prompt_ids)]


def learn(learner: Learner, groups: Sequence[Group]) -> dict[str, float]:
    """One update, without a reference; of every two completions one is rewarded."""
    batch = make_batch(groups, Sampling())
    outcomes = [RewardOutcome(float(one.index % 2), {"odd": 1.0}) for group in groups for one in group.completions]
    before = learner.evaluate(batch)
    credit = assign_credit(outcomes, {"odd": 1.0}, batch, before, learner.algorithm, kl_coef=0.0)
    return learner.learn(batch, credit, before, step=2).metrics


def completion_tokens(groups: Sequence[Group]) -> int:
    return sum(len(one) for group in groups for one in group.completions)
