"""Peers of `gpu.py` on the same work: a step of TRL where it is installed, else `generate` and a padded update."""

from __future__ import annotations

import copy
import tempfile
import time
from typing import Any

import torch
from gpu_work import Bench, Work, build, peak, prompts, wait
from shapes import tokenizer
from transformers import PreTrainedModel

from grouprl.forward.precision import autocast
from grouprl.tools.planner import ModelShape


def peer_step(bench: Bench, shape: ModelShape, work: Work) -> dict[str, Any]:
    """A step by TRL, with its own `generate`; without TRL, what its step is made of."""
    try:
        import datasets  # noqa: F401
        from trl import GRPOTrainer  # noqa: F401
    except (ImportError, RuntimeError) as error:  # transformers and TRL import lazily and turn errors into others
        reason = " ".join(str(error).split())[:200]
        return {"peer": f"transformers, for want of TRL: {reason}"} | transformers_step(bench, shape, work)
    return {"peer": "TRL"} | trl_step(bench, shape, work)


def transformers_step(bench: Bench, shape: ModelShape, work: Work) -> dict[str, Any]:
    """`generate` on weights in bfloat16, all rows at once; then an update from padded rows over float32 weights."""
    model = build(shape, bench.device)
    model.set_attn_implementation("sdpa")
    sampler = copy.deepcopy(model).to(torch.bfloat16)
    ids = torch.tensor(prompts(work), device=bench.device).repeat_interleave(work.group_size, 0)

    def generate(tokens: int) -> torch.Tensor:
        named = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": True, "top_k": 0, "pad_token_id": 0}
        made: torch.Tensor = sampler.generate(ids, attention_mask=torch.ones_like(ids), **named)
        return made

    generate(4)
    largest, made = peak(bench.device), list[torch.Tensor]()
    sampling = bench.seconds(lambda: made.append(generate(work.max_tokens)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    micro = min(bench.arguments.trl_micro_batch, work.rows)

    def update(rows: torch.Tensor) -> None:
        for part in torch.split(rows, micro):
            padded_loss(bench, model, part, work).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    update(made[0][:micro])
    learning = bench.seconds(lambda: update(made[0]))
    return {
        "seconds": sampling + learning,
        "sampling": sampling,
        "update": learning,
        "tokens_s": work.rows * work.max_tokens / sampling,
        "peak_gib": largest() / (1 << 30),
    }


def padded_loss(bench: Bench, model: PreTrainedModel, rows: torch.Tensor, work: Work) -> torch.Tensor:
    """The policy gradient of rows whose log-probs come from whole logits."""
    with autocast(bench.device, "bfloat16"):
        logits = model(input_ids=rows, use_cache=False, logits_to_keep=work.max_tokens + 1).logits[:, :-1]
    own = rows[:, -work.max_tokens :]
    logprobs = logits.float().log_softmax(-1).gather(2, own[..., None])[..., 0]
    advantages = torch.linspace(-1, 1, len(rows), device=bench.device)[:, None]
    loss: torch.Tensor = -(advantages * (logprobs - logprobs.detach()).exp()).mean()
    return loss


def trl_step(bench: Bench, shape: ModelShape, work: Work) -> dict[str, Any]:
    """The same step by TRL, as far as its options can express it."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    ended: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            wait(bench.device)
            ended.append(time.perf_counter())

    micro = min(bench.arguments.trl_micro_batch, work.rows)
    with tempfile.TemporaryDirectory() as folder:
        build(shape, bench.device).cpu().save_pretrained(folder)
        arguments = GRPOConfig(
            output_dir=folder,
            use_cpu=bench.device.type == "cpu",
            bf16=True,
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=work.rows // micro,
            gradient_checkpointing=bench.arguments.trl_checkpointing,
            model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
            num_generations=work.group_size,
            max_completion_length=work.max_tokens,
            generation_kwargs={"min_new_tokens": work.max_tokens},
            max_steps=2,
            learning_rate=1e-6,
            beta=0.0,
            report_to="none",
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
        )
        texts = [" ".join(f"w{token}" for token in prompt) for prompt in prompts(work)]
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
    return {"seconds": ended[1] - ended[0], "peak_gib": largest() / (1 << 30)}
