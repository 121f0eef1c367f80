"""How often sampler and learner choose other experts for a token, and what replaying the sampler's choices changes.

python benchmarks/routing.py            # benchmarks/results/routing.md
python benchmarks/routing.py mixtral

Tiny random checkpoints (benchmarks/families.py) with 32 experts, of which a token chooses 4. The native engine samples
from them and the learner reads the completions: with equal weights, and with noise on
the learner's routers, as of another program.
The replay (R3, arXiv:2510.11370) is of this script alone: it changes what `torch.topk` gives to the routers.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from families import CPU, family_folder
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from grouprl.forward.experts import noted_routing, routers, watch_routers
from grouprl.forward.precision import autocast
from grouprl.learner.batch import make_batch
from grouprl.learner.packs import Pack, make_packs, pack_forward
from grouprl.models.load import load_model, load_tokenizer
from grouprl.rollout import NativeEngine, Request
from grouprl.types import Batch, Problem, Sampling

FAMILIES = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss", "granitemoe")
SAMPLING = Sampling(max_tokens=32)
EXPERTS = {"num_experts": 32, "num_local_experts": 32, "num_experts_per_tok": 4}
NOISE = 0.05  # standard deviation, relative to that of a router's weights
CASES = (("float32", 0.0), ("bfloat16", 0.0), ("float32", NOISE))


@dataclass(frozen=True)
class Gap:
    """Between sampler and learner of one family in one precision."""

    tokens: int
    other_experts: float  # share of the tokens whose set of experts differs in some layer
    logprobs: float  # mean difference of log-probs, nats
    replayed: float  # the same with the sampler's choices in the learner


class Replay(TorchFunctionMode):
    """Gives the routers of a forward pass the choices of a list, layer by layer; -1 = their own choice."""

    def __init__(self, choices: Sequence[Tensor]) -> None:
        """`choices`: [S, K] of each layer."""
        super().__init__()
        self._left = list(choices)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replaces the result of the one `topk` of each router."""
        found = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk):
            return found
        own_SK, given_SK = found[1], self._left.pop(0)
        chosen_SK = own_SK.clone()  # products have padding rows, which keep their own
        chosen_SK[: len(given_SK)] = torch.where(given_SK >= 0, given_SK, own_SK[: len(given_SK)])
        return args[0].gather(-1, chosen_SK), chosen_SK


@torch.no_grad()
def routing_gap(folder: Path, dtype: str, noise: float, completions: int = 16) -> Gap:
    """Samples completions one by one, reads all of them as the learner does, and compares."""
    model, tokenizer = load_model(str(folder), device=CPU), load_tokenizer(str(folder))
    watch_routers(model)
    engine = NativeEngine(model, tokenizer, seed=3, max_rows=4, dtype=dtype)
    prompt = tuple(tokenizer("Ben has 3 pens and buys 4 more pens. How many?")["input_ids"])
    requests = [Request(Problem(str(n), "Ben"), prompt, 1) for n in range(completions)]
    engine.generate(requests[:1], SAMPLING)  # the first call also reads a token for the sizes of the cache
    groups, sampled = [], []
    for request in requests:
        with noted_routing() as noted:
            groups += engine.generate([request], SAMPLING)
        layers = len(noted) // len(groups[-1].completions[0])
        # One pass over the prompt, then one for each token but the last; the last position of each predicts a token.
        last = torch.stack([one.experts_SK[-1] for one in noted])
        sampled.append(last.view(-1, layers, last.shape[-1]))
    batch = make_batch(groups, SAMPLING)
    (pack,) = make_packs(batch, range(completions), 10**6, CPU)
    sampled_CLK = torch.stack(
        [sampled[pack.rows[row]][column] for row, column in zip(pack.row_C, pack.column_C, strict=True)]
    )
    generator = torch.Generator().manual_seed(5)
    for router in routers(model) if noise else ():
        weight: Any = router.weight
        weight.add_(noise * weight.std() * torch.randn(weight.shape, generator=generator))
    own_LSK, gap = _learned(model, pack, batch, dtype)
    own_CLK = own_LSK[:, pack.predictors_C].transpose(0, 1)
    differs_C = (own_CLK.sort(-1).values != sampled_CLK.sort(-1).values).flatten(1).any(1)
    given_LSK = torch.full_like(own_LSK, -1)
    given_LSK[:, pack.predictors_C] = sampled_CLK.transpose(0, 1)
    # All completions share the position that predicts their first token; their sampler read the same prompt.
    with Replay(list(given_LSK)):
        replayed = _learned(model, pack, batch, dtype)[1]
    if not noise and replayed > gap + 1e-6:
        raise RuntimeError(f"expected the sampler's choices to lower the gap, got {gap:.1e} -> {replayed:.1e} nats")
    return Gap(len(differs_C), float(differs_C.float().mean()), gap, replayed)


def _learned(model: PreTrainedModel, pack: Pack, batch: Batch, dtype: str) -> tuple[Tensor, float]:
    """The learner's choices [L, S, K], and the mean difference of its log-probs to the sampler's."""
    with autocast(CPU, dtype), noted_routing() as noted:
        logprobs_C = pack_forward(model, pack, batch.sampling).logprobs_C
    old_C = batch.old_logprobs_NT[torch.tensor(pack.rows)[pack.row_C], pack.column_C]
    return torch.stack([one.experts_SK for one in noted]), float((logprobs_C - old_C).abs().mean())


HEADER = "| family | precision | tokens | tokens with other experts | log-prob gap | with replay |\n" + "|---" * 6 + "|"


def row(name: str, dtype: str, noise: float, gap: Gap) -> str:
    """A row of benchmarks/results/routing.md."""
    case = f"{dtype}, routers with noise" if noise else dtype
    return f"| {name} | {case} | {gap.tokens} | {gap.other_experts:.1%} | {gap.logprobs:.1e} | {gap.replayed:.1e} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("families", nargs="*", help="names; the packed ones with experts without any")
    parser.add_argument("--smoke", action="store_true", help="one family and few completions")
    given = parser.parse_args()
    count = 2 if given.smoke else 16
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as tmp:
        print(HEADER)
        for name in given.families or FAMILIES[: 1 if given.smoke else None]:
            folder = family_folder(Path(tmp), name, **EXPERTS)
            for dtype, noise in CASES:
                print(row(name, dtype, noise, routing_gap(folder, dtype, noise, count)), flush=True)


if __name__ == "__main__":
    main()
