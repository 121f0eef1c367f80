"""One update of TRL 1.16.0 and one of the recipe that `import-config` makes of the same configuration.

    OMP_NUM_THREADS=1 python benchmarks/import_trl.py

For each of fifteen configurations TRL samples a batch with a small random model and computes an update; GroupRL gets
the same tokens and rewards. The old log-probs are moved by up to 0.3 nats and the weights of the reference are tripled,
so that every bound and the KL are met. Prints a row each: loss, difference, largest gradient, difference.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from shapes import END, Shape, prompts, save, text
from torch import Tensor
from trl_peer import missing_trl

ROOT = Path(__file__).parents[1]
LIMIT = 1e-5
SAMPLED = {"max_completion_length": 96, "num_generations": 4, "max_grad_norm": 1e9, "max_steps": 1}
BASE = {
    **SAMPLED,
    "per_device_train_batch_size": 16,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
}
CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = {
    "the defaults": {},
    "loss_type: grpo": {"loss_type": "grpo", "gradient_accumulation_steps": 2, "per_device_train_batch_size": 8},
    "loss_type: dr_grpo, scale_rewards: false": {"loss_type": "dr_grpo", "scale_rewards": False},
    "loss_type: bnpo": {"loss_type": "bnpo"},
    "scale_rewards: batch": {"scale_rewards": "batch", "gradient_accumulation_steps": 2},
    "beta: 0.04": {"beta": 0.04},
    "beta: 0.1, use_bias_correction_kl: false": {"beta": 0.1, "use_bias_correction_kl": False, "loss_type": "grpo"},
    "importance_sampling_level: sequence": {
        "importance_sampling_level": "sequence",
        "loss_type": "grpo",
        "epsilon": 0.03,
        "epsilon_high": 0.04,
    },
    "loss_type: cispo, epsilon_high: 1.1": {"loss_type": "cispo", "epsilon_high": 1.1},
    "mask_truncated_completions": {"mask_truncated_completions": True, "loss_type": "grpo"},
    "delta: 1.3, epsilon_high: 0.28": {"delta": 1.3, "epsilon_high": 0.28, "epsilon": 0.1},
    "four micro-batches, temperature: 0.7": {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "temperature": 0.7,
        "beta": 0.02,
    },
    "off_policy_mask_threshold: 0.01": {"off_policy_mask_threshold": 0.01, "loss_type": "grpo"},
    "loss_type: sapo": {"loss_type": "sapo"},
    "entropy_coef: 0.05": {"entropy_coef": 0.05},
}


@dataclass
class Update:
    """What an update computed, and the batch that it computed it from."""

    loss: float = 0.0
    gradient: dict[str, Tensor] = field(default_factory=dict)
    rows: list[tuple[list[int], list[int], list[float]]] = field(default_factory=list)  # prompt, completion, old


def rewards_of(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """The share of even token ids."""
    return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]


def length_of(ids: list[int]) -> int:
    """Tokens of a padded completion: up to its end token, if it has one."""
    return ids.index(END) + 1 if END in ids else len(ids)


@torch.no_grad()
def moved_logprobs(model: Any, prompt: list[int], ids: list[int], temperature: float) -> list[float]:
    """The log-probs of a completion, each moved by up to 0.3 nats, always alike for the same completion."""
    logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float() / temperature
    found = logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
    draw = random.Random(str(ids))
    return [value + draw.uniform(-0.3, 0.3) for value in found]


@torch.no_grad()
def move(model: Any) -> None:
    """Makes the reference another policy."""
    for weight in model.parameters():
        weight.mul_(3.0)


def update_of_trl(folder: Path, values: Mapping[str, Any], texts: Sequence[str]) -> Update:
    """Runs TRL's trainer for an update."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    trainer = GRPOTrainer(
        model=str(folder),
        reward_funcs=rewards_of,
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(), save_strategy="no", logging_strategy="no", disable_tqdm=True, **values
        ),
        train_dataset=Dataset.from_list([{"prompt": text} for text in texts]),
    )
    found, score, loss_of = Update(), trainer._generate_and_score_completions, trainer.compute_loss
    if trainer.ref_model is not None:
        move(trainer.ref_model)

    def scored(inputs: Any) -> Any:
        made = score(inputs)
        lengths = [length_of(row.tolist()) for row in made["completion_ids"]]
        old = torch.zeros(made["completion_ids"].shape)
        prompts = zip(made["prompt_ids"], made["prompt_mask"], strict=True)
        for row, (length, (prompt, mask)) in enumerate(zip(lengths, prompts, strict=True)):
            ids = made["completion_ids"][row, :length].tolist()
            words = prompt[mask.bool()].tolist()
            moved = moved_logprobs(trainer.model, words, ids, trainer.temperature)
            old[row, :length] = torch.tensor(moved)
            found.rows.append((words, ids, moved))
        return {**made, "old_per_token_logps": old}

    def counted(*arguments: Any, **keywords: Any) -> Any:
        loss = loss_of(*arguments, **keywords)
        found.loss += float(loss)
        return loss

    def kept(*_: Any, **__: Any) -> Any:
        found.gradient = {name: weight.grad.clone() for name, weight in trainer.model.named_parameters()}
        return torch.zeros(())

    trainer._generate_and_score_completions, trainer.compute_loss = scored, counted
    trainer.accelerator.clip_grad_norm_ = kept
    trainer.train()
    return found


def update_of_recipe(folder: Path, values: Mapping[str, Any], rows: Sequence[Any]) -> Update:
    """Imports the configuration and learns from the rows with its recipe."""
    from grouprl.config.run import RunConfig, load_config
    from grouprl.evaluation.metrics import Clock
    from grouprl.learner import Learner
    from grouprl.learner.batch import ScoredGroups
    from grouprl.models.load import frozen_copy, load_model
    from grouprl.step import update_policy
    from grouprl.tools.imported.read import Foreign
    from grouprl.tools.imported.recipe import import_foreign, write_recipe
    from grouprl.types import RewardOutcome

    with tempfile.TemporaryDirectory() as place:
        write_recipe(import_foreign(Foreign("trl", values)), "TRL", Path(place) / "made.yaml")
        config = load_config(RunConfig, [Path(place) / "made.yaml"], [])
    policy = load_model(str(folder), device=torch.device("cpu"))
    reference = frozen_copy(policy) if config.algorithm.kl_coef else None
    if reference is not None:
        move(reference)
    found = Update()

    class Keeper:
        learning_rate, updates = 0.0, 0

        def step(self) -> float:
            found.gradient = {name: weight.grad.clone() for name, weight in policy.named_parameters()}
            policy.zero_grad(set_to_none=True)
            return 0.0

    learner = Learner(
        policy=policy,
        reference=reference,
        optimizer=Keeper(),  # type: ignore[arg-type]
        algorithm=config.algorithm,
        device=torch.device("cpu"),
        dtype=config.model.dtype,
        micro_batch_tokens=10**6,
    )
    groups = groups_of(rows, config.rollout.group_size, config.rollout.max_tokens)
    assert len(groups) == config.rollout.problems_per_step
    outcomes = [
        tuple(
            RewardOutcome(value, {"even": value}) for value in rewards_of([one.token_ids for one in group.completions])
        )
        for group in groups
    ]
    scored = ScoredGroups(1, groups, outcomes, [True] * len(groups), {"even": 1.0}, config.rollout.sampling)
    result = update_policy(learner, scored, Clock("reference", "learn"))
    found.loss = result.metrics["loss"]
    return found


def groups_of(rows: Sequence[Any], size: int, longest: int) -> list[Any]:
    """The groups that TRL's rows are, in their order."""
    from grouprl.types import Completion, Group, Problem, StopReason

    groups = []
    for at in range(0, len(rows), size):
        members = tuple(
            Completion(index, tuple(ids), tuple(old), tuple(old), "", end_of(ids, StopReason, longest), 0)
            for index, (_, ids, old) in enumerate(rows[at : at + size])
        )
        groups.append(Group(Problem(str(at), str(at)), tuple(rows[at][0]), members))
    return groups


def end_of(ids: Sequence[int], reasons: Any, longest: int) -> Any:
    """Whether a completion ended by itself."""
    return reasons.END if ids[-1] == END else reasons.LENGTH


def compare(name: str, folder: Path, texts: Sequence[str]) -> tuple[str, float]:
    """A row of the table, and the larger of the two differences."""
    values = {**BASE, **CONFIGURATIONS[name]}
    theirs = update_of_trl(folder, values, texts)
    ours = update_of_recipe(folder, values, theirs.rows)
    assert theirs.gradient.keys() == ours.gradient.keys()
    losses = abs(theirs.loss - ours.loss)
    gradients = max(float((theirs.gradient[key] - ours.gradient[key]).abs().max()) for key in ours.gradient)
    largest = max(float(one.abs().max()) for one in theirs.gradient.values())
    row = f"| `{name}` | {theirs.loss:.6f} | {losses:.1e} | {largest:.3f} | {gradients:.1e} |"
    return row, max(losses, gradients)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="two configurations: whether it runs")
    arguments = parser.parse_args()
    if missing := missing_trl():
        print(f"skipped, nothing here runs without it: {missing}")
        return
    shape = Shape(32, 2, 2, 1, 32, problems=8, group_size=4, prompt_tokens=8, max_tokens=96)
    torch.set_num_threads(1)
    names = list(CONFIGURATIONS)[: 2 if arguments.smoke else None]
    print("| configuration | loss of TRL | difference | largest gradient | difference |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        save(shape, Path(folder))
        texts = [text(prompt) for prompt in prompts(shape)]
        found = [compare(name, Path(folder), texts) for name in names]
    print("\n".join(row for row, _ in found))
    if (worst := max(difference for _, difference in found)) > LIMIT:
        sys.exit(f"expected differences of at most {LIMIT}, got {worst}")


if __name__ == "__main__":
    main()
