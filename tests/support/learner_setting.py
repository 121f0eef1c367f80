"""Groups that a tiny model sampled, credit for them, and a learner that keeps its gradient."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grouprl.algorithms.advantages import Credit
from grouprl.algorithms.distillation import Distill
from grouprl.algorithms.spec import Algorithm
from grouprl.algorithms.values import CriticPart
from grouprl.learner import Learner, make_batch
from grouprl.models.load import frozen_copy, load_model, load_tokenizer
from grouprl.rollout import NativeEngine, Request
from grouprl.run.assemble import loss_terms
from grouprl.terms.critic import Critic, CriticLearner
from grouprl.terms.distill import Teacher
from grouprl.types import Batch, Group, Problem, Sampling

CPU = torch.device("cpu")
SAMPLING = Sampling(max_tokens=12, temperature=0.7, top_p=0.9)
# Two groups with signal, of which one holds an invalid completion, and one without.
ADVANTAGES = torch.tensor([1.2, -0.4, -0.8, 0.0, 0.0, 0.0, -1.0, 0.0, 2.0, -0.5, -0.5])
SIGNAL = [0, 1, 2, 6, 8, 9, 10]
GRPO = Algorithm()
# More tokens than `models.prefix` reads for each group.
EXAMPLES = "3 + 4 = 7. Tom has 5 pens and buys 6 more, which makes 5 + 6 = 11 pens. Now another one: "


@dataclass
class GradientKeeper:
    """In the optimizer's place: keeps every update's gradient and number, and leaves the weights."""

    model: PreTrainedModel
    learning_rate: float = 0.0
    updates: int = 0
    turn: int = 0
    gradients: list[dict[str, Tensor]] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)

    @property
    def gradient(self) -> dict[str, Tensor]:
        return self.gradients[-1]

    def step(self) -> float:
        weights = self.model.named_parameters()
        self.gradients.append({name: weight.grad.clone() for name, weight in weights if weight.grad is not None})
        self.turns.append(self.turn)
        self.model.zero_grad(set_to_none=True)
        self.updates += 1
        return 0.0


def loaded(folder: Path) -> PreTrainedModel:
    return load_model(str(folder), device=CPU)


def sampled(folder: Path, sampling: Sampling, before: str = "") -> list[Group]:
    """Groups of 3, 3 and 5 with completions of several lengths; all prompts begin with `before`."""
    model, tokenizer = loaded(folder), load_tokenizer(str(folder))
    model.generation_config.eos_token_id = [1, *range(20, 44)]
    prompts = ("John has 15 apples.", "4", "There are 4 boxes with 6 pens each.")
    requests = [
        Request(Problem(prompt, prompt), tuple(tokenizer(before + prompt)["input_ids"]), count)
        for prompt, count in zip(prompts, (3, 3, 5), strict=True)
    ]
    return NativeEngine(model, tokenizer, seed=3, max_rows=8).generate(requests, sampling)


def batch_of(groups: Sequence[Group]) -> Batch:
    return make_batch(groups, SAMPLING)


def credit_of(batch: Batch, advantages_N: Tensor = ADVANTAGES) -> Credit:
    return Credit(torch.where(batch.mask_NT, advantages_N[:, None], 0.0))


def learn(learner: Learner, batch: Batch, advantages_N: Tensor = ADVANTAGES) -> dict[str, float]:
    before = learner.evaluate(batch)
    return learner.learn(batch, credit_of(batch, advantages_N), before, step=2).metrics


def other_reference(model: PreTrainedModel) -> PreTrainedModel:
    reference = frozen_copy(model)
    for weight in reference.parameters():
        weight.mul_(1.05)
    return reference


def learner_of(
    model: PreTrainedModel,
    algorithm: Algorithm = GRPO,
    *,
    critic: Critic | None = None,
    critic_optimizer: Any = None,
    **changes: object,
) -> Learner:
    fields: dict[str, Any] = {
        "policy": model,
        "reference": other_reference(model) if algorithm.kl_coef else None,
        "optimizer": GradientKeeper(model),
        "algorithm": algorithm,
        "device": CPU,
        "dtype": "float32",
        "micro_batch_tokens": 10**6,
    }
    if critic is not None:
        fields["critic"] = CriticLearner(critic, critic_optimizer, algorithm.critic or CriticPart())
    fields |= changes
    teacher = None if algorithm.distill is None else teacher_of(algorithm.distill)
    terms = loss_terms(algorithm, model, fields["reference"], fields.get("critic"), teacher)
    return Learner(**{"further_terms": terms, **fields})


def teacher_of(part: Distill, model: PreTrainedModel | None = None) -> Teacher:
    """A teacher for batches that have its prompts."""
    return Teacher(part, lambda _: None, None, 60, model)


def critic_of(model: PreTrainedModel, shared: bool) -> Critic:
    """With a head that says something."""
    critic = Critic(model, shared=shared)
    with torch.no_grad():
        critic.head.weight.copy_(torch.sin(torch.arange(critic.head.weight.numel())).view_as(critic.head.weight))
        critic.head.bias.fill_(0.25)
    return critic


def gap(got: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Norm of the difference of two gradients, relative to the second."""
    assert set(got) == set(expected)
    difference = math.sqrt(sum(float((got[name] - expected[name]).double().square().sum()) for name in got))
    return difference / math.sqrt(sum(float(value.double().square().sum()) for value in expected.values()))
