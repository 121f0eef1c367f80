"""Peers of `gpu.py` on the same work: transformers' `generate`, and a step of TRL where it is installed."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import torch
from gpu_work import Bench, Size, Work, build, peak, prompts, wait
from shapes import tokenizer


@torch.no_grad()
def transformers_generate(bench: Bench, size: Size, work: Work) -> dict[str, Any]:
    """`generate` on weights in bfloat16, all rows at once, every completion of the same length."""
    model = build(size, bench.device).to(torch.bfloat16)
    model.set_attn_implementation("sdpa")
    ids = torch.tensor(prompts(work, size), device=bench.device).repeat_interleave(work.group_size, 0)
    mask = torch.ones_like(ids)

    def run(tokens: int) -> None:
        model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            pad_token_id=0,
        )

    run(4)
    largest = peak(bench.device)
    seconds = bench.seconds(lambda: run(work.short_tokens))
    made = work.rows * work.short_tokens
    return {"seconds": seconds, "tokens": made, "tokens_s": made / seconds, "peak_gib": largest()}


def trl_step(bench: Bench, size: Size, work: Work) -> dict[str, Any]:
    """The same step by TRL, as far as it can be said there: its own generate, its own packing."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    ended: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            wait(bench.device)
            ended.append(time.perf_counter())

    micro = bench.arguments.trl_micro_batch if not bench.arguments.smoke else work.group_size
    with tempfile.TemporaryDirectory() as folder:
        build(size, bench.device).cpu().save_pretrained(folder)
        arguments = GRPOConfig(
            output_dir=folder,
            use_cpu=bench.device.type == "cpu",
            bf16=True,
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=work.rows // micro,
            gradient_checkpointing=bench.arguments.trl_checkpointing,
            model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
            num_generations=work.group_size,
            max_completion_length=work.short_tokens,
            generation_kwargs={"min_new_tokens": work.short_tokens},
            max_steps=3,
            learning_rate=1e-6,
            beta=0.0,
            report_to="none",
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
        )
        texts = [" ".join(f"w{token}" for token in prompt) for prompt in prompts(work, size)]
        trainer = GRPOTrainer(
            model=folder,
            reward_funcs=lambda completion_ids, **_: [float(ids[0] % 2) for ids in completion_ids],
            args=arguments,
            processing_class=tokenizer(),  # from a folder, Qwen2 would get its own
            train_dataset=Dataset.from_list([{"prompt": text} for text in texts]),
            callbacks=[Clock()],
        )
        largest = peak(bench.device)
        trainer.train()
    return {"seconds": ended[2] - ended[1], "second_step": ended[1] - ended[0], "peak_gib": largest()}
