"""Hints for settings of TRL and verl that a user writes here, from the importer's tables."""

from __future__ import annotations

import re

from grouprl.tools.imported.keys import NOT_NEEDED, RENAMED, TRL, VERL

# Names that no table has: of other libraries, and those that people use.
_OTHERS = {
    "batch_size": "rollout.problems_per_step x rollout.group_size",
    "clip_range": "algorithm.clip_high and clip_low",
    "cliprange": "algorithm.clip_high and clip_low",
    "dataset": "task.path with task.name=jsonl, or --task FILE.jsonl",
    "grad_clip": "learner.max_grad_norm",
    "max_length": "rollout.max_tokens",
    "max_new_tokens": "rollout.max_tokens",
    "mini_batch_size": "algorithm.minibatches, the number of updates of a batch",
    "model_name": "model.path",
    "n_gpus_per_node": "`torchrun --nproc-per-node` (docs/scale.md)",
    "nnodes": "`torchrun --nnodes` (docs/scale.md)",
    "ppo_max_token_len_per_gpu": "learner.micro_batch_tokens, in tokens",
    "ppo_micro_batch_size_per_gpu": "learner.micro_batch_tokens, in tokens",
    "wandb": "trackers.names, such as trackers=[wandb] (docs/run_directory.md)",
}
_SETTING = re.compile(
    r"(algorithm|checkpoint|cluster|distributed|epochs|evaluation|learner|model|name|rewards|rollout|runs_dir|seed|steps|"
    r"task|trackers)\b"
)


def hint(name: str) -> str:
    """What a setting of TRL or verl, by the last part of its name, is here; empty for another name."""
    name = RENAMED.get(name, name)
    of_verl = {key.rpartition(".")[2]: entry.here for key, entry in [*VERL.items()][::-1]}
    short = {key for key in of_verl if "_" not in key} - {"n", "lr", "betas", "logger", "tokenizer"}
    idle = {pattern.rpartition(".")[2]: why for pattern, why in NOT_NEEDED.items() if "*" not in pattern}
    known = {**idle, **of_verl, **{key: entry.here for key, entry in TRL.items()}, **_OTHERS}
    here = "" if name in short - TRL.keys() else known.get(name, "")
    return (
        f"TRL's or verl's {name} {'is here' if _SETTING.match(here) else 'has no setting here:'} {here}" if here else ""
    )
