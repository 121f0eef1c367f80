"""Peers of `gpu.py` on the same work: `generate` of transformers with a padded update, and a step of TRL."""

from __future__ import annotations

import copy
import importlib.util
import tempfile
import time
from typing import Any

import torch
from gpu_work import TINY_WORK, Bench, Measures, Subject, Work, build, learn, peak, prompts, requests, wait
from shapes import tokenizer
from transformers import PreTrainedModel

from grouprl.forward.precision import autocast
from grouprl.types import Group, Sampling

MICRO_BATCH = 16  # padded rows of a backward pass of the peers


def peers(bench: Bench) -> None:
    """One step by GroupRL, by transformers' `generate` with a padded update, and by TRL where it is installed."""
    work = TINY_WORK if bench.tiny else Work(64, 8, 256, 256)
    own = bench.measure("GroupRL", own_step, work)
    for name, peer in (("transformers", transformers_step), ("TRL", trl_step)):
        if name == "TRL" and importlib.util.find_spec("trl") is None:
            bench.keep(name, {"skipped": "TRL is not here"})
            continue
        step = bench.measure(name, peer, work)
        if "seconds" in own and "seconds" in step:
            bench.keep(name, step | {"times_as_long": float(step["seconds"]) / float(own["seconds"])})


def own_step(bench: Bench, work: Work) -> Measures:
    """A step by GroupRL after one that records and compiles."""
    subject, parameters = Subject(bench, bench.shape()), Sampling(max_tokens=work.max_tokens)
    engine, asked, groups = subject.engine(work.rows), requests(prompts(work), work.group_size), list[Group]()
    learn(subject.learner, engine.generate(asked, parameters))
    largest = peak(bench.device)
    sampling = bench.seconds(lambda: groups.extend(engine.generate(asked, parameters)))
    return timed(sampling, bench.seconds(lambda: learn(subject.learner, groups)), work, largest())


def timed(sampling: float, learning: float, work: Work, largest: float) -> Measures:
    """The measures of a step from its times."""
    return {
        "seconds": sampling + learning,
        "sampling": sampling,
        "update": learning,
        "tokens_s": work.tokens / sampling,
        "peak_gib": largest / (1 << 30),
    }


def transformers_step(bench: Bench, work: Work) -> Measures:
    """`generate` on weights in bfloat16, all rows at once; then an update from padded rows over float32 weights."""
    model = build(bench.shape(), bench.device)
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
    micro = min(MICRO_BATCH, work.rows)

    def update(rows: torch.Tensor) -> None:
        for part in torch.split(rows, micro):
            padded_loss(bench, model, part, work).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    update(made[0][:micro])
    learning = bench.seconds(lambda: update(made[0]))
    return timed(sampling, learning, work, largest())


def padded_loss(bench: Bench, model: PreTrainedModel, rows: torch.Tensor, work: Work) -> torch.Tensor:
    """The policy gradient of rows whose log-probs come from whole logits."""
    with autocast(bench.device, "bfloat16"):
        logits = model(input_ids=rows, use_cache=False, logits_to_keep=work.max_tokens + 1).logits[:, :-1]
    own = rows[:, -work.max_tokens :]
    logprobs = logits.float().log_softmax(-1).gather(2, own[..., None])[..., 0]
    advantages = torch.linspace(-1, 1, len(rows), device=bench.device)[:, None]
    loss: torch.Tensor = -(advantages * (logprobs - logprobs.detach()).exp()).mean()
    return loss


def trl_step(bench: Bench, work: Work) -> Measures:
    """The same step by TRL, as far as its options can express it."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    ended: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            wait(bench.device)
            ended.append(time.perf_counter())

    micro = min(MICRO_BATCH, work.rows)
    with tempfile.TemporaryDirectory() as folder:
        build(bench.shape(), bench.device).cpu().save_pretrained(folder)
        arguments = GRPOConfig(
            output_dir=folder,
            use_cpu=bench.device.type != "cuda",
            bf16=True,
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=work.rows // micro,
            gradient_checkpointing=False,
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
