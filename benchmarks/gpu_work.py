"""Sizes, models, clocks and parts of `gpu.py`: shapes of Qwen2.5 with random weights, so that nothing is downloaded."""

from __future__ import annotations

import argparse
import gc
import json
import random
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from grouprl.algorithms.spec import Algorithm
from grouprl.config.run import LearnerConfig
from grouprl.forward.attention import NAME
from grouprl.learner import Learner, Optimizer, assign_credit, make_batch
from grouprl.rollout import Request
from grouprl.tools.planner import SHAPES, ModelShape
from grouprl.types import Group, Problem, RewardOutcome, Sampling

END = 1
SIZES = {name: SHAPES[f"Qwen2.5-{name}"] for name in ("0.5B", "1.5B", "7B")}
TINY = ModelShape("tiny", 2, 64, 4, 2, 16, 128, 512, tied=True, biases="qkv")


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


class TimeIsUp(BaseException):
    """No `except Exception` on the way keeps it from the course."""


class DeviceFault(Exception):
    """A kernel failed in a way that makes every later call of this process fail."""


@dataclass
class Bench:
    """The results so far, written after every part."""

    arguments: argparse.Namespace
    device: torch.device
    found: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.time)
    over: bool = False

    def part(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Runs a part and keeps its numbers and texts; None where it failed or there was no time left.

        Raises:
            DeviceFault: the part failed and took the device with it; the result is written.
        """
        if self.over or self.spent > self.arguments.seconds:
            return self._keep(name, {"skipped": f"after {self.spent:.0f} s"})
        result: Any = None
        error = None
        try:
            result = function(self, *arguments)
        except TimeIsUp:
            self.over = True
            return self._keep(name, {"skipped": f"broken off at {self.spent:.0f} s"})
        except Exception as caught:  # noqa: BLE001 - a part that fails must not take the others with it
            traceback.print_exc()
            error = f"{type(caught).__name__}: {' '.join(str(caught).split())[:600]}"
        if error is not None:
            self._keep(name, {"failed": error})
            if not self._answers():
                raise DeviceFault(name)
        else:
            self._keep(name, {key: one for key, one in result.items() if isinstance(one, float | int | str)})
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return result

    def alarm(self) -> None:
        """Ends the part that runs when the time is up; again and again, because callbacks of C swallow exceptions."""

        def ring(*_: Any) -> None:
            if not self.over:
                raise TimeIsUp

        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, max(1.0, self.arguments.seconds - self.spent), 5.0)

    @property
    def spent(self) -> float:
        return time.time() - self.began

    def seconds(self, function: Callable[[], Any]) -> float:
        wait(self.device)
        began = time.perf_counter()
        function()
        wait(self.device)
        return time.perf_counter() - began

    def _keep(self, name: str, kept: dict[str, Any]) -> None:
        self.found[name] = kept
        self.save()
        words = "".join(f"{key:>26} {shown(value)}\n" for key, value in kept.items())
        print(f"{name} (at {self.spent:.0f} s)\n{words}", end="", flush=True)

    def save(self) -> None:
        if self.arguments.json:
            self.arguments.json.write_text(json.dumps(self.found, indent=1))

    def _answers(self) -> bool:
        try:
            wait(self.device)
        except RuntimeError:
            return False
        return True


def shown(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak(device: torch.device) -> Callable[[], float]:
    """Gives a function that returns the most bytes of tensors since now; 0 on a CPU."""
    if device.type != "cuda":
        return lambda: 0.0
    torch.cuda.reset_peak_memory_stats(device)
    return lambda: float(torch.cuda.max_memory_allocated(device))


def forget_compilations() -> None:
    """Torch compiles a function at most 8 times, for all shapes of this process; a run has one model."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()


def compilations() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def build(shape: ModelShape, device: torch.device, *, spread: bool = False) -> PreTrainedModel:
    """Random weights, float32, on GroupRL's attention.

    With `spread` they are large enough that a wrong mask or position changes the distributions: transformers' own
    initial weights leave them nearly uniform.
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
    with torch.device(device):
        model = Qwen2ForCausalLM(config).float().eval()
        if spread:
            with torch.no_grad():
                for name, weight in model.named_parameters():
                    noise = torch.randn_like(weight)
                    weight.copy_(1 + 0.1 * noise if "norm" in name else 1.6 * shape.hidden**-0.5 * noise)
    model.set_attn_implementation(NAME)
    # A hook makes a CPU too run the model's own modules, as a GPU does.
    model.get_decoder().register_forward_hook(lambda *_: None)
    return model


def prompts(work: Work) -> list[tuple[int, ...]]:
    draws = random.Random(0)  # of the words that the tokenizer knows
    return [tuple(draws.randrange(2, 512) for _ in range(work.prompt_tokens)) for _ in range(work.problems)]


def requests(work: Work) -> list[Request]:
    return [Request(Problem(str(n), ""), ids, work.group_size) for n, ids in enumerate(prompts(work))]


def learner_of(bench: Bench, model: PreTrainedModel, dtype: str, rate: float = 1e-6) -> Learner:
    return Learner(
        policy=model,
        reference=None,
        optimizer=Optimizer(model, LearnerConfig(learning_rate=rate)),
        algorithm=Algorithm(kl=None),
        device=bench.device,
        dtype=dtype,
        micro_batch_tokens=bench.arguments.micro_batch_tokens,
    )


def learn(learner: Learner, groups: Sequence[Group]) -> dict[str, float]:
    """One update, without a reference; of every two completions one is rewarded."""
    batch = make_batch(groups, Sampling())
    outcomes = [RewardOutcome(float(one.index % 2), {"odd": 1.0}) for group in groups for one in group.completions]
    before = learner.evaluate(batch)
    credit = assign_credit(outcomes, {"odd": 1.0}, batch, before, learner.algorithm, kl_coef=0.0)
    return learner.learn(batch, credit, before, step=2).metrics
