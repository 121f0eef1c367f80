"""Checks of a model under its settings: each computes the same thing in two ways that must agree."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.algorithms import group_advantages
from grouprl.algorithms.losses import TokenGrid
from grouprl.algorithms.spec import Algorithm
from grouprl.config.run import LoraConfig, RunConfig
from grouprl.forward.precision import autocast
from grouprl.learner import Learner, ScoredGroups, make_batch
from grouprl.learner.packs import make_packs, pack_forward
from grouprl.models.adapters import add_adapter, has_adapter
from grouprl.models.load import load_model
from grouprl.models.save import save_model
from grouprl.models.verify import plain_logprobs
from grouprl.tools.proof.replay import make_update
from grouprl.types import Batch, Group, RewardOutcome, Sampling, StepReward

# In float32; in bfloat16 twice the rounding error of transformers' own rows where that is larger.
_LOGPROBS, _GRADIENT, _LARGEST = 1e-4, 1e-3, 2e-3
_WHOLE = 1 << 30  # tokens of a pack that holds everything
_STEP = 1_000_001  # after every warm-up


@dataclass(frozen=True)
class Check:
    """Two ways to one result, and how far apart they are; `difference` is a NaN where nothing could be compared."""

    name: str
    difference: float
    tolerance: float
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the difference is within the tolerance."""
        return self.difference <= self.tolerance


def numeric_checks(
    config: RunConfig, learner: Learner, tokenizer: PreTrainedTokenizerBase, groups: Sequence[Group], sampling: Sampling
) -> Iterator[Check]:
    """Yields the checks of sampled groups, on the policy that sampled them; the learner's weights stay.

    Args:
        config: the settings under test.
        learner: the run's learner with a learning rate of 0.
        tokenizer: the policy's tokenizer.
        groups: groups that the policy sampled under `sampling`.
        sampling: the sampling parameters.
    """
    model, device, dtype = learner.policy, learner.device, config.model.dtype
    batch = make_batch(groups, Sampling(max_tokens=sampling.max_tokens))
    exact = plain_logprobs(model, groups)
    with autocast(device, dtype):
        rounded = plain_logprobs(model, groups)
        packed, apart = (packed_logprobs(model, batch, budget) for budget in (_WHOLE, 1))
    slopes, usual_slopes, packed_slopes = (gradients(model, rows) for rows in (exact, rounded, packed))
    usual, usual_slope = relative(rounded, exact), relative(usual_slopes, slopes)
    most, most_slope = max(_LOGPROBS, 2 * usual), max(_GRADIENT, 2 * usual_slope)
    yield Check("packed = padded rows, log-probs", relative(packed, exact), most)
    yield Check("packed = padded rows, gradient", relative(packed_slopes, slopes), most_slope)
    yield Check("shared prompt = own prompts, log-probs", relative(apart, packed), most)
    # Every second completion is rewarded, so that each group has a signal; its last token ends a reasoning step.
    outcomes: list[list[RewardOutcome]] = []
    for group in groups:
        rewards = [(len(completion) - 1, float(completion.index % 2)) for completion in group.completions]
        outcomes.append([RewardOutcome(odd, {"odd": odd}, steps=(StepReward(end, odd),)) for end, odd in rewards])
    scored = ScoredGroups(_STEP, groups, outcomes, [True] * len(groups), {"odd": 1.0}, sampling)
    setting, results = learner.micro_batch_tokens, []
    for budget in (_WHOLE, 1, setting):
        learner.micro_batch_tokens = budget
        gradient = make_update(learner, scored).gradient
        results.append([gradient[name] for name in sorted(gradient)])
    learner.micro_batch_tokens = setting
    difference = max(relative(other, results[0]) for other in results[1:])
    yield Check("any micro-batches, gradient", difference, most_slope)

    largest = max(_LARGEST, 4 * _gap(rounded, exact))
    completions = [completion for group in groups for completion in group.completions]
    with torch.no_grad(), autocast(device, dtype):
        seen = packed_logprobs(model, make_batch(groups, sampling), _WHOLE)
    drawn = [torch.tensor(completion.logprobs) for completion in completions]
    plain = [torch.tensor(completion.plain_logprobs) for completion in completions]
    yield Check("sampler = learner, largest gap", _gap(drawn, seen), largest)
    yield Check("sampler = plain forward, largest gap", _gap(plain, exact), largest)
    yield _merged(config, model, groups, most)
    with TemporaryDirectory() as folder:
        save_model(model, tokenizer, Path(folder))
        again = load_model(folder, device=model.device).state_dict()
    weights = model.state_dict()
    both = weights.keys() & again.keys()
    wrong = [
        name
        for name in weights.keys() | again.keys()
        if name not in both or not torch.equal(weights[name], again[name])
    ]
    yield Check("saved = reloaded", len(wrong), 0, ", ".join(sorted(wrong)[:2]))


def packed_logprobs(model: PreTrainedModel, batch: Batch, budget: int) -> list[Tensor]:
    """Log-probs of each row by packs of at most `budget` tokens, under the batch's sampling parameters."""
    row_logprobs: dict[int, Tensor] = {}
    for pack in make_packs(batch, range(len(batch.group_of_N)), budget, model.device):
        values = pack_forward(model, pack, batch.sampling).logprobs_C
        for index, row in enumerate(pack.rows):
            row_logprobs[row] = values[pack.row_C == index]
    return [row_logprobs[row] for row in range(len(row_logprobs))]


def gradients(model: PreTrainedModel, rows: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of all trained weights of a sum of the rows in which every token has another weight."""
    weighted = [(row * torch.linspace(-1, 1, len(row), device=row.device)).sum() for row in rows]
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    values = torch.autograd.grad(torch.stack(weighted).sum(), weights, allow_unused=True)
    return [gradient for gradient in values if gradient is not None]


def relative(values: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Norm of the difference over the norm of what is expected."""
    pairs = [(a.detach().double(), b.detach().double()) for a, b in zip(values, expected, strict=True)]
    gap, size = sum(float((a - b).square().sum()) for a, b in pairs), sum(float(b.square().sum()) for _, b in pairs)
    return (gap / size) ** 0.5 if size else math.inf


def _gap(values: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    return max(float((a.detach().cpu() - b.detach().cpu()).abs().max()) for a, b in zip(values, expected, strict=True))


def _merged(config: RunConfig, model: PreTrainedModel, groups: Sequence[Group], most: float) -> Check:
    """Compares an adapter with its weights merged: the settings' adapter, or one of rank 4; B is drawn, not 0."""
    name = "LoRA merged = unmerged, log-probs"
    if find_spec("peft") is None:
        return Check(name, 0.0, most, "skipped: pip install 'grouprl[lora]'")
    model = copy.deepcopy(model)
    if not has_adapter(model):
        add_adapter(model, config.model.lora or LoraConfig(rank=4, alpha=8), seed=0)
    generator = torch.Generator().manual_seed(0)
    batch = make_batch(groups, Sampling())
    with torch.no_grad():
        for weight in (weight for name, weight in model.named_parameters() if "lora_B" in name):
            weight.copy_(0.02 * torch.randn(weight.shape, generator=generator))
        before = packed_logprobs(model, batch, _WHOLE)
        layers = [layer for layer in model.modules() if hasattr(layer, "merge") and hasattr(layer, "lora_A")]
        for layer in layers:
            layer.merge()
        if not layers or not all(layer.merged for layer in layers):
            return Check(name, math.nan, most, "PEFT merged nothing")
        return Check(name, relative(packed_logprobs(model, batch, _WHOLE), before), most)


# A policy whose every completion can be written down

_WORDS, _LENGTH = 3, 2


def exact_gradient(algorithm: Algorithm) -> Check:
    """Compares the expected gradient of the algorithm's objective with that of the expected reward.

    The policy is a table of logits for 3 tokens and completions of 2, so that all 81 groups of 2 can be listed with
    their probabilities. Rewards are compared with the others of the group (leave-one-out), which is unbiased.
    """
    rows = list(itertools.product(range(_WORDS), repeat=_LENGTH))
    tokens_YT = torch.tensor(rows)
    prefixes_YT = torch.stack([torch.zeros(len(rows), dtype=torch.long), 1 + tokens_YT[:, 0]], 1)
    rewards_Y = torch.tensor([0.75 * ((3 * n) % 4) for n in range(len(rows))], dtype=torch.float64)
    logits = torch.arange(4.0 * _WORDS, dtype=torch.float64).square().sin().view(4, _WORDS).requires_grad_()

    logprobs_YT = logits.log_softmax(-1)[prefixes_YT, tokens_YT]
    chances_Y = logprobs_YT.sum(1).exp()
    (exact,) = torch.autograd.grad((chances_Y * rewards_Y).sum(), logits, retain_graph=True)

    pairs_MG = torch.tensor(list(itertools.product(range(len(rows)), repeat=2)))
    rows_N, groups_N = pairs_MG.flatten(), torch.arange(len(pairs_MG)).repeat_interleave(2)
    advantages_N = group_advantages(rewards_Y[rows_N], groups_N, baseline="leave_one_out", scale="none").double()
    chance_N = chances_Y.detach()[pairs_MG].prod(1).repeat_interleave(2) / 2
    weights_NT = chance_N[:, None].expand(-1, _LENGTH)
    advantages_NT, mask_NT = advantages_N[:, None].expand_as(weights_NT), weights_NT > 0
    tokens = TokenGrid(logprobs_YT[rows_N], logprobs_YT.detach()[rows_N], advantages_NT, weights_NT, mask_NT)
    loss, _ = algorithm.objective.loss(tokens)
    (surrogate,) = torch.autograd.grad(-loss, logits)
    return Check("exact policy gradient, listed policy", relative([surrogate], [exact]), 1e-6)
