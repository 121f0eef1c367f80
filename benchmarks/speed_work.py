"""Batches for the learner that were never sampled, so that their lengths and signals are exactly what is asked for."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from shapes import END, Shape, prompts, text
from transformers import LlamaForCausalLM

from grouprl.algorithms.advantages import Credit
from grouprl.algorithms.kl import Kl
from grouprl.algorithms.spec import Algorithm
from grouprl.config.run import LearnerConfig
from grouprl.forward.prefix import shared_tokens
from grouprl.learner import Learner, Optimizer, PolicyEvaluation, assign_credit, make_batch
from grouprl.rollout import Request
from grouprl.types import Batch, Completion, Group, Problem, RewardOutcome, Sampling, StopReason

CPU = torch.device("cpu")
MICRO_BATCH_TOKENS = 2048


def requests(shape: Shape, stream: str = "", *, share: bool = True) -> list[Request]:
    """A group for each of the prompts; another stream, other completions. `share`: read what all begin with once."""
    asked = prompts(shape)
    before = shared_tokens(asked) if share else 0
    return [
        Request(Problem(str(number), text(prompt)), prompt, shape.group_size, stream, before)
        for number, prompt in enumerate(asked)
    ]


class Kept(Optimizer):
    """Leaves gradients and weights alone: what is timed is the learner without its optimizer."""

    def step(self) -> float:
        """Nothing."""
        return 0.0


@dataclass(frozen=True)
class Work:
    """Everything that `Learner.learn` needs."""

    batch: Batch
    credit: Credit
    before: PolicyEvaluation
    algorithm: Algorithm


def made_up(shape: Shape, *, mean_tokens: int, spread: int = 0, kl_coef: float = 0.04, silent: float = 0.0) -> Work:
    """Random completions with log-probs near those of a uniform policy and random rewards.

    Args:
        shape: problems, completions of each and prompt tokens.
        mean_tokens, spread: completions are mean - spread ... mean + spread long, all lengths equally often.
        kl_coef: above 0, there is a reference, whose log-probs are made up as well.
        silent: share of the groups whose rewards are all equal.
    """
    draws, noise = random.Random(0), torch.Generator().manual_seed(0)
    plain = -float(torch.tensor(float(shape.vocabulary)).log())
    groups = []
    for number, prompt in enumerate(prompts(shape)):
        completions = []
        for index in range(shape.group_size):
            length = mean_tokens + draws.randint(-spread, spread)
            ids = tuple(draws.randrange(END + 1, shape.vocabulary) for _ in range(length))
            logprobs = tuple((plain + 0.1 * torch.randn(length, generator=noise)).tolist())
            completions.append(Completion(index, ids, logprobs, logprobs, "", StopReason.LENGTH, 0))
        groups.append(Group(Problem(str(number), text(prompt)), prompt, tuple(completions)))
    sampling = Sampling(max_tokens=mean_tokens + spread)
    batch = make_batch(groups, sampling)
    reference_NT = batch.old_logprobs_NT + 0.1 * torch.randn(batch.mask_NT.shape, generator=noise)
    before = PolicyEvaluation(reference_NT=reference_NT * batch.mask_NT) if kl_coef else PolicyEvaluation()
    algorithm = Algorithm(kl=Kl(kl_coef=kl_coef) if kl_coef else None)
    rewards = [0.0 if group < silent * shape.problems else draws.random() for group in batch.group_of_N]
    outcomes = [RewardOutcome(reward, {"made up": reward}) for reward in rewards]
    credit = assign_credit(outcomes, {"made up": 1.0}, batch, before, algorithm, kl_coef=kl_coef)
    return Work(batch, credit, before, algorithm)


def learner(model: LlamaForCausalLM, algorithm: Algorithm, dtype: str) -> Learner:
    """A learner without an optimizer."""
    return Learner(
        policy=model,
        reference=None,
        optimizer=Kept(model, LearnerConfig()),
        algorithm=algorithm,
        device=CPU,
        dtype=dtype,
        micro_batch_tokens=MICRO_BATCH_TOKENS,
    )
