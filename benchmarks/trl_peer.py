"""GRPO steps of TRL 1.16.0 from its released package, timed and weighed; `vs_trl.py` sets GroupRL beside them.

    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/trl_peer.py [--variant tuned] [--dtype float32] [--beta 0.04]

One step: 16 problems x 8 completions of up to 96 tokens, one pass, one update of AdamW (`shapes.py`). Prints a line of
JSON: seconds of a step, wall clock and CPU, as the median after one step to warm up; the same for its parts, which
`watch` names; the completion tokens; and the most memory that the process held beyond its imports.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from shapes import add_options, brief, prompts, save, shape_of, text

VERSION = "1.16.0"
COMPLETIONS = 128  # of a step
PARTS = ("generation", "reference", "learn", "optimizer")
Given = ParamSpec("Given")
Result = TypeVar("Result")
Instant = tuple[float, float]  # wall clock and CPU of this process, seconds


@dataclass(frozen=True)
class Settings:
    """Those choices that TRL leaves to its user and that change its speed; what is not said is TRL's default."""

    micro_batch: int = 8  # completions in a forward and backward pass
    checkpointing: bool = True
    weights: str = "float32"
    autocast: bool = False  # matrix products in bfloat16
    cache: str | None = None
    attention: str = "sdpa"
    continuous: bool = False  # transformers' continuous batching in the place of generate()
    compiled: bool = False


# `tuned` is the fastest of what was tried on one core of an AMD EPYC (Zen 5, AVX-512 with bfloat16), of those whose
# weights learn; `vs_trl.py --only tune` measures all of it again.
VARIANTS = {
    "float32": {
        "default": Settings(),
        "tuned": Settings(micro_batch=16, checkpointing=False),
        "micro_4": Settings(micro_batch=4, checkpointing=False),
        "micro_8": Settings(micro_batch=8, checkpointing=False),
        "micro_32": Settings(micro_batch=32, checkpointing=False),
        "micro_64": Settings(micro_batch=64, checkpointing=False),
        "micro_128": Settings(micro_batch=128, checkpointing=False),
        "static_cache": Settings(micro_batch=16, checkpointing=False, cache="static"),
        "eager": Settings(micro_batch=16, checkpointing=False, attention="eager"),
        "continuous": Settings(micro_batch=16, checkpointing=False, continuous=True),
        "compiled": Settings(micro_batch=16, checkpointing=False, compiled=True),
    },
    "bfloat16": {
        "default": Settings(autocast=True),
        "tuned": Settings(micro_batch=16, checkpointing=False, autocast=True),
        "micro_4": Settings(micro_batch=4, checkpointing=False, autocast=True),
        "micro_8": Settings(micro_batch=8, checkpointing=False, autocast=True),
        "micro_32": Settings(micro_batch=32, checkpointing=False, autocast=True),
        "micro_64": Settings(micro_batch=64, checkpointing=False, autocast=True),
        # The fastest, and no training: an update of 1e-6 rounds away in 98 % of weights in bfloat16.
        "weights": Settings(micro_batch=64, checkpointing=False, weights="bfloat16"),
        "weights_16": Settings(micro_batch=16, checkpointing=False, weights="bfloat16"),
        "both": Settings(micro_batch=16, checkpointing=False, weights="bfloat16", autocast=True),
    },
}


class Meter:
    """What the steps of a run took, and how much of it in which part."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.start()

    def start(self) -> None:
        """A step begins; what was measured since the last one ended is forgotten."""
        self._parts: dict[str, Instant] = {}
        self._tokens, self._began = 0, now()

    def add(self, part: str, since: Instant) -> None:
        """Counts the time since then as `part`."""
        before = self._parts.get(part, (0.0, 0.0))
        wall, cpu = (spent + end - begin for spent, end, begin in zip(before, now(), since, strict=True))
        self._parts[part] = (wall, cpu)

    def timed(self, part: str, function: Callable[Given, Result]) -> Callable[Given, Result]:
        """The function, with every call of it counted as `part`."""

        def call(*arguments: Given.args, **keywords: Given.kwargs) -> Result:
            began = now()
            result = function(*arguments, **keywords)
            self.add(part, began)
            return result

        return call

    def count(self, tokens: int) -> None:
        """Completion tokens of this step."""
        self._tokens += tokens

    def stop(self) -> None:
        """The step ends, and the next one begins."""
        wall, cpu = (end - begin for end, begin in zip(now(), self._began, strict=True))
        self.steps.append({"wall": wall, "cpu": cpu, "tokens": self._tokens, "parts": self._parts})
        self.start()


def now() -> Instant:
    return time.perf_counter(), time.process_time()


def memory_mib(field: str) -> float:
    """`VmRSS`, or its peak `VmHWM`, which unlike ru_maxrss does not begin with what the parent process held."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def summary(meter: Meter, imports_mib: float) -> dict[str, Any]:
    """Medians over all steps but the first; seconds and MiB."""
    steps = meter.steps[1:]
    parts = {
        part: [statistics.median(step["parts"].get(part, (0.0, 0.0))[clock] for step in steps) for clock in (0, 1)]
        for part in PARTS
    }
    middle = {name: statistics.median(step[name] for step in steps) for name in ("wall", "cpu", "tokens")}
    peak_mib = memory_mib("VmHWM")
    memory = {"imports_mib": imports_mib, "peak_mib": peak_mib, "above_imports_mib": peak_mib - imports_mib}
    return middle | {"parts": parts} | memory | {"steps": meter.steps}


def even_share(completion_ids: Sequence[Sequence[int]], numbers: Sequence[int], *, silent_half: bool) -> list[float]:
    """The reward: the share of even token ids; with `silent_half` a constant for every other problem."""
    return [
        0.5 if silent_half and number % 2 == 0 else sum(token % 2 == 0 for token in ids) / len(ids)
        for ids, number in zip(completion_ids, numbers, strict=True)
    ]


def missing_trl() -> str | None:
    """Why TRL cannot be measured here; None where it can."""
    try:
        found = metadata.version("trl")
    except metadata.PackageNotFoundError:
        found = "none"
    return None if found == VERSION else f"trl: expected version {VERSION}, got {found}: pip install trl=={VERSION}"


def require_trl() -> None:
    if missing := missing_trl():
        raise SystemExit(missing)


def grpo_config(settings: Settings, *, completions: int = COMPLETIONS, **others: Any) -> Any:
    """GRPO as DeepSeekMath has it, without anything that is written or shown."""
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        per_device_train_batch_size=settings.micro_batch,
        gradient_accumulation_steps=completions // settings.micro_batch,
        gradient_checkpointing=settings.checkpointing,
        bf16=settings.autocast,
        torch_compile=settings.compiled,
        cache_implementation=settings.cache,
        use_transformers_continuous_batching=settings.continuous,
        model_init_kwargs={"dtype": settings.weights, "attn_implementation": settings.attention},
        loss_type="grpo",
        use_bias_correction_kl=False,  # TRL's default takes the gradient of another KL than the paper's
        epsilon=0.2,
        lr_scheduler_type="constant",
        shuffle_dataset=False,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        **others,
    )


def watch(trainer: Any, meter: Meter, *, first: int) -> None:
    """Has the meter measure the trainer's steps, and the first one generate at most `first` tokens.

    generation: tokenizing the prompts, `generate`, decoding. reference: its log-probs. learn: forward and backward
    passes with the loss and its figures. optimizer: its step alone. What a step takes beyond them is rewards,
    advantages, padding, clipping of the gradient and the loop itself.
    """
    from transformers import TrainerCallback

    generate, logprobs = trainer._generate, trainer._get_per_token_logps_and_entropies

    def counted(*arguments: Any) -> Any:
        made = generate(*arguments)
        meter.count(sum(map(len, made[1])))
        return made

    def told_apart(model: Any, *arguments: Any, **keywords: Any) -> Any:
        function = meter.timed("reference", logprobs) if model is trainer.ref_model else logprobs
        return function(model, *arguments, **keywords)

    class Steps(TrainerCallback):  # type: ignore[misc]
        began = (0.0, 0.0)

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            meter.start()

        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            self.began = now()

        def on_optimizer_step(self, *_: Any, **__: Any) -> None:
            meter.add("optimizer", self.began)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            meter.stop()
            trainer.generation_config.max_new_tokens = trainer.max_completion_length

    trainer.generation_config.max_new_tokens = first
    trainer._generate = meter.timed("generation", counted)
    trainer._get_per_token_logps_and_entropies = told_apart
    trainer.compute_loss = meter.timed("learn", trainer.compute_loss)
    trainer.accelerator.backward = meter.timed("learn", trainer.accelerator.backward)
    trainer.add_callback(Steps())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", choices=tuple(VARIANTS), default="float32")
    parser.add_argument("--variant", default="tuned")
    parser.add_argument("--beta", type=float, default=0.04, help="weight of the KL; 0 = no reference")
    parser.add_argument("--silent-half", action="store_true", help="half of the groups carry no signal")
    parser.add_argument("--steps", type=int, default=3, help="after one to warm up")
    add_options(parser)
    arguments = parser.parse_args()
    if arguments.smoke and (missing := missing_trl()):
        print(f"skipped, nothing here runs without it: {missing}")
        return
    require_trl()

    import torch
    from datasets import Dataset
    from transformers import LlamaForCausalLM  # noqa: F401  counted as an import, because it is only found here
    from trl import GRPOTrainer

    imports_mib = memory_mib("VmRSS")
    torch.set_num_threads(1)
    shape = shape_of(arguments)
    first = brief(shape) if arguments.brief_warm_up else shape
    settings = VARIANTS[arguments.dtype][arguments.variant]
    if arguments.smoke:
        settings = replace(settings, micro_batch=shape.problems * shape.group_size)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=str(save(shape, Path(folder))),
            reward_funcs=lambda completion_ids, number, **_: even_share(
                completion_ids, number, silent_half=arguments.silent_half
            ),
            args=grpo_config(
                settings,
                completions=shape.problems * shape.group_size,
                num_generations=shape.group_size,
                max_completion_length=shape.max_tokens,
                max_steps=1 + arguments.steps,
                learning_rate=1e-6,
                beta=arguments.beta,
            ),
            train_dataset=Dataset.from_list(
                [
                    {"prompt": text(prompt), "number": number}
                    for of_step in (first, *[shape] * arguments.steps)
                    for number, prompt in enumerate(prompts(of_step))
                ]
            ),
        )
        meter = Meter()
        watch(trainer, meter, first=first.max_tokens)
        trainer.train()
    print(json.dumps(summary(meter, imports_mib)))


if __name__ == "__main__":
    main()
