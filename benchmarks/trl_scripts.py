"""Public scripts for TRL, with one changed import, beside TRL 1.16.0 on the same completions.

    OMP_NUM_THREADS=1 python benchmarks/trl_scripts.py [--smoke] [--only NAME]

Each script below has the settings, the kind of data and the rewards of a public one (its address is in its docstring),
a tiny random model and a few rows. GroupRL makes the first three updates; TRL then makes them on GroupRL's prompts and
completions (its `rollout_func`), with its own rewards, advantages, loss and optimizer. Both log the same names; losses,
rewards and advantages differ by at most 1e-5.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    TrainerCallback,
    set_seed,
)
from trl_peer import missing_trl

from grouprl.models.save import save_model
from grouprl.record.read import read_rollouts
from grouprl.supervised.scratch import new_tokenizer

LIMIT, STEPS, ROWS = 1e-5, 3, 24
NUMBERS = [(3 + row % 7, 2 + row % 5) for row in range(ROWS)]
TEXTS = [f"Anna has {a} pens and gets {b} more. How many pens? <answer>{a + b}</answer>" for a, b in NUMBERS]
SYSTEM = {"role": "system", "content": "Think first, in <think> and </think>, then write the answer in <answer> tags."}
SMALL = {"use_cpu": True, "bf16": False, "report_to": "none", "logging_steps": 1, "disable_tqdm": True}
Script = Callable[[ModuleType, "Place", Any], Any]


class Place:
    """Where a script finds its model, and where its output goes."""

    def __init__(self, folder: Path, name: str) -> None:
        self.model, self.scorer = str(folder / "model"), str(folder / "scorer")
        self.output = str(folder / name)

    def args(self, trl: ModuleType, **settings: Any) -> Any:
        """The script's settings, made small."""
        longest = min(24, settings.get("max_completion_length", 512))
        return trl.GRPOConfig(**{"output_dir": self.output, **settings, **SMALL, "max_completion_length": longest})


# Scripts. Settings are the public script's; texts, rows and rewards are small stand-ins of the same form.


def readme(trl: ModuleType, place: Place, rows: Any) -> Any:
    """https://github.com/huggingface/trl README, quick start: TRL's defaults and its own accuracy_reward."""
    accuracy = import_module("trl.rewards").accuracy_reward
    return trl.GRPOTrainer(
        model=place.model, reward_funcs=accuracy, args=place.args(trl), train_dataset=rows.map(as_messages)
    )


def quickstart(trl: ModuleType, place: Place, rows: Any) -> Any:
    """https://huggingface.co/docs/trl/v0.17.0/grpo_trainer, quick start: text prompts, a length as the reward."""
    args = place.args(trl, logging_steps=10)
    return trl.GRPOTrainer(model=place.model, reward_funcs=near_20, args=args, train_dataset=rows)


def several_tasks(trl: ModuleType, place: Place, rows: Any) -> Any:
    """https://huggingface.co/docs/trl/grpo_trainer, multi-task rewards: None where one does not apply; one is async."""
    rows = rows.map(lambda row: {"task": "sum" if int(row["solution"]) % 2 else "short"})
    args = place.args(trl, reward_weights=[1.0, 0.5])
    return trl.GRPOTrainer(model=place.model, reward_funcs=[digits_of_sums, short_texts], args=args, train_dataset=rows)


def reward_model(trl: ModuleType, place: Place, rows: Any) -> Any:
    """https://huggingface.co/docs/trl/v0.14.0/grpo_trainer, the class's example: a reward model by its name."""
    args = place.args(trl, beta=0.04, num_generations=4)
    return trl.GRPOTrainer(model=place.model, reward_funcs=place.scorer, args=args, train_dataset=rows)


def course(trl: ModuleType, place: Place, rows: Any) -> Any:
    """https://huggingface.co/learn/llm-course/chapter12/5: a PEFT model, AdamW in 8 bits, a removed option."""
    from peft import LoraConfig, get_peft_model

    model = AutoModelForCausalLM.from_pretrained(place.model, dtype="auto")
    set_seed(0)
    lora = LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear")
    older = {"max_prompt_length": 512} if trl.__name__.startswith("grouprl") else {}  # TRL 1.16 refuses it
    args = place.args(
        trl,
        learning_rate=2e-5,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_completion_length=96,
        num_generations=8,
        optim="adamw_torch",
        num_train_epochs=1,
        remove_unused_columns=False,
        **older,
    )
    return trl.GRPOTrainer(model=get_peft_model(model, lora), reward_funcs=[near_50], args=args, train_dataset=rows)


def cookbook(trl: ModuleType, place: Place, rows: Any) -> Any:
    """https://huggingface.co/learn/cookbook/fine_tuning_llm_grpo_trl: LoRA by peft_config, two rewards."""
    from peft import LoraConfig

    args = place.args(
        trl,
        learning_rate=1e-5,
        remove_unused_columns=False,
        gradient_accumulation_steps=4,
        num_train_epochs=1,
        max_completion_length=64,
        num_generations=4,
        save_strategy="steps",
        save_steps=10,
    )
    lora = LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=32, lora_dropout=0.0, target_modules=["q_proj", "v_proj"])
    return trl.GRPOTrainer(
        model=place.model,
        reward_funcs=[tags, same_number],
        args=args,
        train_dataset=rows.map(as_messages),
        peft_config=lora,
    )


def mini_r1(trl: ModuleType, place: Place, rows: Any) -> Any:
    """https://www.philschmid.de/mini-deepseek-r1: a rendered prompt that ends in a beginning, KL, cosine."""
    tokenizer = AutoTokenizer.from_pretrained(place.model)

    def rendered(row: dict[str, Any]) -> dict[str, str]:
        prefix = {"role": "assistant", "content": "Let me think.\n<think>"}
        messages = [*as_messages(row)["prompt"], prefix]
        return {"prompt": tokenizer.apply_chat_template(messages, tokenize=False, continue_final_message=True)}

    args = place.args(
        trl,
        max_steps=4,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=8,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        beta=0.04,
        max_completion_length=768,
        num_generations=8,
        save_strategy="steps",
        save_steps=25,
        seed=42,
    )
    return trl.GRPOTrainer(
        model=place.model,
        reward_funcs=[tags, same_number],
        args=args,
        train_dataset=rows.map(rendered),
        processing_class=tokenizer,
    )


def open_r1(trl: ModuleType, place: Place, rows: Any) -> Any:
    """https://github.com/huggingface/open-r1, grpo.py with Qwen2.5-1.5B-Instruct/grpo/config_demo.yaml."""
    args = place.args(
        trl,
        model_init_kwargs={"revision": "main", "dtype": torch.float32, "use_cache": False},
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        learning_rate=2e-5,
        log_level="warning",
        logging_first_step=True,
        lr_scheduler_type="cosine",
        max_completion_length=1024,
        num_generations=4,
        num_train_epochs=1,
        per_device_eval_batch_size=32,
        per_device_train_batch_size=8,
        save_strategy="epoch",
        save_total_limit=1,
        beta=0.04,
        loss_type="grpo",
    )
    return trl.GRPOTrainer(
        model=place.model,
        reward_funcs=[same_number, tags],
        args=args,
        train_dataset=rows.map(as_messages),
        callbacks=[Counting()],
    )


def gsm8k_demo(trl: ModuleType, place: Place, rows: Any) -> Any:
    """https://gist.github.com/willccbb/4676755236bb08cab5f4e54a0475d6fb: five rewards, AdamW's second beta, decay."""
    model = AutoModelForCausalLM.from_pretrained(place.model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(place.model)
    tokenizer.pad_token = tokenizer.eos_token
    args = place.args(
        trl,
        run_name="Qwen-1.5B-GRPO-gsm8k",
        learning_rate=5e-6,
        adam_beta1=0.9,
        adam_beta2=0.99,
        weight_decay=0.1,
        lr_scheduler_type="cosine",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        num_generations=16,
        max_completion_length=786,
        num_train_epochs=1,
        save_steps=100,
        max_grad_norm=0.1,
    )
    return trl.GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[count_tags, tags, digits, same_number, near_20],
        args=args,
        train_dataset=rows.map(as_messages),
    )


def dapo(trl: ModuleType, place: Place, rows: Any) -> Any:
    """https://huggingface.co/docs/trl/paper_index, DAPO: truncated completions are masked and punished."""
    args = place.args(
        trl,
        mask_truncated_completions=True,
        loss_type="dapo",
        epsilon_high=0.28,
        epsilon=0.2,
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=20480,
        beta=0.0,
    )
    rewards: list[Any] = [near_20, punish_long]
    return trl.GRPOTrainer(model=place.model, reward_funcs=rewards, args=args, train_dataset=rows.map(as_messages))


def dr_grpo(trl: ModuleType, place: Place, rows: Any) -> Any:
    """https://huggingface.co/docs/trl/paper_index, Dr. GRPO: no deviation, a constant in place of lengths."""
    args = place.args(
        trl, loss_type="dr_grpo", scale_rewards=False, num_generations=8, max_completion_length=3000, beta=0.0
    )
    return trl.GRPOTrainer(model=place.model, reward_funcs=near_20, args=args, train_dataset=rows)


SCRIPTS: tuple[Script, ...] = (
    readme,
    quickstart,
    several_tasks,
    reward_model,
    course,
    cookbook,
    mini_r1,
    open_r1,
    gsm8k_demo,
    dapo,
    dr_grpo,
)


class Counting(TrainerCallback):  # type: ignore[misc]
    """A callback of a script: the updates it has seen."""

    updates = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.updates += 1


def as_messages(row: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": [SYSTEM, {"role": "user", "content": row["prompt"]}]}


def text_of(completion: Any) -> str:
    return completion if isinstance(completion, str) else completion[0]["content"]


def near_20(completions: Sequence[Any], **_: Any) -> list[float]:
    return [-abs(20.0 - len(text_of(completion))) for completion in completions]


def near_50(completions: Sequence[Any], **_: Any) -> list[float]:
    return [-abs(50.0 - len(text_of(completion))) for completion in completions]


def tags(completions: Sequence[Any], **_: Any) -> list[float]:
    texts = map(text_of, completions)
    return [len(re.findall("[<>/a-z]", text)) / max(1, len(text)) for text in texts]


def count_tags(completions: Sequence[Any], **_: Any) -> list[float]:
    return [0.125 * text_of(completion).count("<") for completion in completions]


def digits(completions: Sequence[Any], **_: Any) -> list[float]:
    return [sum(map(str.isdigit, text_of(completion))) / 10 for completion in completions]


def same_number(completions: Sequence[Any], solution: Sequence[str], **_: Any) -> list[float]:
    texts = map(text_of, completions)
    return [float(sum(map(text.count, number))) for text, number in zip(texts, solution, strict=True)]


def punish_long(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    return [min(0.0, (16 - len(ids)) / 8) for ids in completion_ids]


def digits_of_sums(completions: Sequence[Any], task: Sequence[str], **_: Any) -> list[float | None]:
    values = digits(completions)
    return [value if name == "sum" else None for value, name in zip(values, task, strict=True)]


async def short_texts(completions: Sequence[Any], task: Sequence[str], **_: Any) -> list[float | None]:
    await asyncio.sleep(0)
    values = near_20(completions)
    return [value if name == "short" else None for value, name in zip(values, task, strict=True)]


for function in (near_20, near_50, tags, count_tags, digits, same_number, punish_long, digits_of_sums, short_texts):
    vars(function)["in_process"] = True  # GroupRL starts no worker processes


# The two runs of a script.


def save_models(folder: Path) -> None:
    """A policy and a reward model with random weights, wide enough that completions differ."""
    tokenizer = new_tokenizer(TEXTS * 3, 320)
    shape = {"vocab_size": len(tokenizer), "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    config = LlamaConfig(**shape, **heads, **ends)
    generator = torch.Generator().manual_seed(5)
    for name, kind in (("scorer", LlamaForSequenceClassification), ("model", LlamaForCausalLM)):
        config.num_labels = 1
        model = kind(config).eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.copy_(0.15 * torch.randn(weight.shape, generator=generator))
        if name == "model":  # TRL takes a completion for ended whose last token is the padding: here the end alone
            tokenizer.pad_token = tokenizer.eos_token
            model.config.pad_token_id = tokenizer.eos_token_id
        save_model(model, tokenizer, folder / name)


class Stop(TrainerCallback):  # type: ignore[misc]
    """Ends a training after the compared updates."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= STEPS


def compare(script: Script, folder: Path) -> tuple[str, float]:
    """A row of the table, and the largest difference of a loss, a reward or an advantage."""
    import trl as theirs

    import grouprl.trl as ours

    prompts = [text.partition("<")[0] for text in TEXTS]
    solutions = [str(first + second) for first, second in NUMBERS]
    rows = Dataset.from_dict({"prompt": prompts, "solution": solutions})
    place = Place(folder, f"{script.__name__}-ours")
    trainer = script(ours, place, rows)
    trainer.add_callback(Stop())
    trainer.train()
    our_log = [entry for entry in trainer.state.log_history if "reward" in entry][:STEPS]
    steps = [read_rollouts(place.output, step) for step in range(1, len(our_log) + 1)]
    order = [int(group.group.problem.id.rpartition("/")[2]) for groups in steps for group in groups]

    trl_trainer = script(theirs, Place(folder, f"{script.__name__}-theirs"), rows.select(order))
    batches, advantages = iter(steps), list[list[float]]()

    def recorded(asked: Any, _: Any) -> dict[str, Any]:
        advantages.append(list(trl_trainer._logs["advantages"]))
        members = [(group.group, text) for group in next(batches) for text in group.group.completions]
        texts = trl_trainer._tokenize_prompts(asked)[0]
        assert texts == [list(group.prompt_ids) for group, _ in members], f"{script.__name__}: other prompts"
        return {
            "prompt_ids": texts,
            "completion_ids": [list(text.token_ids) for _, text in members],
            "logprobs": [list(text.logprobs) for _, text in members],
        }

    trl_trainer.rollout_func, trl_trainer.shuffle_dataset = recorded, False
    trl_trainer.args.max_steps, trl_trainer.args.save_strategy = trainer.state.max_steps, "no"
    trl_trainer.add_callback(Stop())
    trl_trainer.train()
    advantages = [*advantages[1:], list(trl_trainer._logs["advantages"])]
    their_log = [entry for entry in trl_trainer.state.log_history if "reward" in entry]

    assert [entry.keys() for entry in our_log] == [entry.keys() for entry in their_log], (
        f"{script.__name__}: {our_log[0].keys() ^ their_log[0].keys()}"
    )
    gaps = {
        name: max(
            abs((one[name] or 0.0) - (other[name] or 0.0)) / max(1.0, abs(other[name] or 0.0))
            for one, other in zip(our_log, their_log, strict=True)
        )
        for name in our_log[0]
        if name not in ("step_time", "epoch")
    }
    flat = [[value for group in groups for value in group.advantages] for groups in steps]
    gaps["advantages"] = max(
        abs(one - other) for pair in zip(flat, advantages, strict=True) for one, other in zip(*pair, strict=True)
    )
    compared = [name for name in gaps if name in ("loss", "advantages") or name.startswith("reward")]
    worst = max(gaps[name] for name in compared)
    row = f"| {script.__name__} | {len(our_log)} | {len(our_log[0])} | " + " | ".join(
        f"{gaps[name]:.1e}" if name in gaps else "-" for name in ("loss", "reward", "advantages", "grad_norm", "kl")
    )
    return row + " |", worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="two scripts: whether it runs")
    parser.add_argument("--only", choices=[script.__name__ for script in SCRIPTS])
    arguments = parser.parse_args()
    if missing := missing_trl():
        print(f"skipped, nothing here runs without it: {missing}")
        return
    torch.set_num_threads(1)
    scripts = [script for script in SCRIPTS if arguments.only in (None, script.__name__)]
    gaps = []
    print("| script | updates | metrics | loss | reward | advantages | grad_norm | kl |\n" + "|---" * 8 + "|")
    with tempfile.TemporaryDirectory() as folder:
        save_models(Path(folder))
        for script in scripts[: 2 if arguments.smoke else None]:
            with redirect_stdout(StringIO()):
                row, gap = compare(script, Path(folder))
            print(row, flush=True)
            gaps.append(gap)
    if max(gaps) > LIMIT:
        sys.exit(f"expected differences of at most {LIMIT}, got {max(gaps)}")


if __name__ == "__main__":
    main()
