"""The exercise for GRPO of the Hugging Face course in TRL 1.16.0, timed: what `grouprl train smollm2_course` does.

    python benchmarks/course_posts.py posts
    OMP_NUM_THREADS=1 python benchmarks/course_trl.py --model build/smollm2 [--steps 3]

The model with an adapter of rank 16, the reward, and as many problems, completions and tokens in a step as the recipe
has. Prints each step's mean reward, wall-clock and CPU seconds, and a line of JSON as `trl_peer.py` does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from course_posts import posts
from trl_peer import Meter, Settings, grpo_config, memory_mib, missing_trl, require_trl, summary, watch

IDEAL = 50  # characters
PROBLEMS, COMPLETIONS, TOKENS = 2, 8, 64  # of a step, of a problem, at most of a completion
SETTINGS = Settings(micro_batch=16, checkpointing=False)


def run(model: str, settings: Settings, *, steps: int, tokens: int) -> dict[str, Any]:
    """The first steps of the exercise, one of them to warm up."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import LlamaForCausalLM  # noqa: F401  counted as an import, because it is only found here
    from trl import GRPOTrainer

    imports_mib, rewards = memory_mib("VmRSS"), []
    torch.set_num_threads(1)

    def near_length(completions: list[str], **_: Any) -> list[float]:
        values = [-float(abs(len(completion) - IDEAL)) for completion in completions]
        rewards.append(statistics.fmean(values))
        return values

    trainer = GRPOTrainer(
        model=model,
        reward_funcs=near_length,
        args=grpo_config(
            settings,
            completions=PROBLEMS * COMPLETIONS,
            num_generations=COMPLETIONS,
            max_completion_length=tokens,
            max_steps=1 + steps,
            learning_rate=5e-4,
            beta=0.04,
        ),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in posts()["train"]]),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    meter = Meter()
    watch(trainer, meter, first=tokens)
    trainer.train()
    return summary(meter, imports_mib) | {"rewards": rewards}


def main() -> None:
    """Prints what the steps took."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--steps", type=int, default=3, help="after one to warm up")
    parser.add_argument("--smoke", action="store_true", help="a tiny model: whether it runs, not how fast")
    arguments = parser.parse_args()
    if arguments.smoke and (missing := missing_trl()):
        print(f"skipped, nothing here runs without it: {missing}")
        return
    require_trl()
    if arguments.smoke:
        from shapes import TINY, save

        with tempfile.TemporaryDirectory() as folder:
            found = run(str(save(TINY, Path(folder))), SETTINGS, steps=1, tokens=4)
    else:
        found = run(arguments.model, SETTINGS, steps=arguments.steps, tokens=TOKENS)
    for number, (step, reward) in enumerate(zip(found["steps"], found["rewards"], strict=True), 1):
        print(f"step {number}: reward {reward:.1f}, {step['wall']:.1f} s, CPU {step['cpu']:.1f} s")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
