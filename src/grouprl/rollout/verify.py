"""Compares what an engine samples with the model's own forward pass, before a run begins."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grouprl.models.verify import Gap, gap_to, plain_logprobs
from grouprl.rollout.engine import Engine, Request
from grouprl.types import Problem, Sampling, UserError

MOST_SAMPLED = 16  # tokens of each of the two completions


@torch.no_grad()
def sampler_gap(
    engine: Engine, model: PreTrainedModel, prompt_ids: Sequence[int], max_tokens: int = MOST_SAMPLED
) -> Gap:
    """The largest difference of sampled log-probs to the model's own, as a part of the largest of those and 1 nat."""
    request = Request(Problem("check", "check"), tuple(prompt_ids), 2)
    [group] = engine.generate([request], Sampling(max_tokens=max_tokens))

    def plain_forward(model: PreTrainedModel) -> Tensor:
        return torch.cat(plain_logprobs(model, [group])).cpu()

    expected = plain_forward(model)
    sampled = torch.tensor([value for completion in group.completions for value in completion.logprobs])
    largest = expected.abs().max().clamp(min=1.0)  # a sure model has log-probs near 0
    return gap_to(model, float((sampled - expected).abs().max() / largest), float(largest), plain_forward)


def check_sampler(engine: Engine, model: PreTrainedModel, *, most_tokens: int) -> None:
    """Raises UserError if a float32 engine in this process does not sample from the model that is trained."""
    most = model.get_input_embeddings().weight.shape[0]
    gap = sampler_gap(engine, model, [at % most for at in (3, 5, 7, 9)], min(MOST_SAMPLED, most_tokens))
    if not gap.fits:
        raise UserError(
            f"expected sampled log-probs within {gap.most:.1g} of the model's own forward pass, got a difference of "
            f"{gap.size:.2g} of the largest: the sampler does not support {type(model).__name__} on this machine; set "
            "GROUPRL_KERNELS=off, and if that does not help choose another model"
        )
