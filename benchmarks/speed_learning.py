"""Forward and backward pass of the GRPO loss: groups packed with their prompt once, against padded rows.

    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/speed_learning.py [--smoke]

The padded form is what most libraries do, written plainly: each completion a row [prompt, completion], padded on the
right, transformers' own forward pass with sdpa on 16 rows at a time, logits of the completions, log_softmax, the same
loss. (Without an attention mask: padding on the right is behind everything, and sdpa is faster so.) Neither form has an
optimizer; their gradients are asserted to be equal. Memory is the most that a process held beyond its imports.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from floor import DTYPES, learning_floor
from shapes import SHAPES, Shape, build
from speed_rows import Row, child, finish, median_seconds, say, section_parser, smaller
from speed_work import CPU, MICRO_BATCH_TOKENS, Work, learner, made_up
from torch import Tensor
from transformers import LlamaForCausalLM
from trl_peer import memory_mib

from grouprl.algorithms import policy_loss, token_weights
from grouprl.algorithms.losses import Clip
from grouprl.forward.precision import autocast

ROWS = 16  # of the padded form in a micro-batch
EXACT = 1e-5  # largest difference of a gradient's element, relative to the largest element


@dataclass(frozen=True)
class Case:
    shape: Shape
    mean_tokens: int
    spread: int  # completions are mean_tokens - spread ... mean_tokens + spread long


CASES = {
    "prompt as long as completions": Case(replace(SHAPES["small"], problems=8, prompt_tokens=74), 74, 22),
    "prompt 1024, completions 64": Case(replace(SHAPES["small"], problems=2, prompt_tokens=1024), 64, 0),
}


def case_of(name: str, smoke: bool) -> Case:
    if not smoke:
        return CASES[name]
    case = CASES[name]
    return Case(replace(case.shape, problems=2, prompt_tokens=case.shape.prompt_tokens // 8), 10, min(case.spread, 4))


def padded_learn(model: LlamaForCausalLM, work: Work, dtype: str) -> None:
    """Adds the gradient of the loss, as `Learner.learn` does."""
    batch, algorithm = work.batch, work.algorithm
    prompts_NL = torch.tensor([batch.prompts[group] for group in batch.group_of_N])
    weights_NT = token_weights(batch.trained_NT, aggregate=algorithm.objective.aggregate)
    clip, kl = algorithm.objective, algorithm.kl
    assert isinstance(clip, Clip)
    assert kl is not None
    assert work.before.reference_NT is not None
    for first in range(0, len(prompts_NL), ROWS):
        rows = slice(first, first + ROWS)
        width = int(batch.mask_NT[rows].sum(1).max())
        completions_nT = batch.token_ids_NT[rows, :width]
        with autocast(CPU, dtype):
            input_ids = torch.cat([prompts_NL[rows], completions_nT], 1)
            logits = model(input_ids=input_ids, use_cache=False, logits_to_keep=width + 1).logits[:, :-1]
        logprobs_nTV = logits.float().log_softmax(-1)
        loss, _ = policy_loss(
            logprobs_nTV.gather(2, completions_nT[..., None]).squeeze(2),
            logprobs_nTV.gather(2, completions_nT[..., None]).squeeze(2).detach(),  # one update a batch: the ratio is 1
            work.credit.advantages_NT[rows, :width],
            weights_NT[rows, :width],
            clip_low=clip.clip_low,
            clip_high=clip.clip_high,
            ref_logprobs_NT=work.before.reference_NT[rows, :width],
            kl_coef=algorithm.kl_coef,
            kl=kl.kl_estimator,
        )
        loss.backward()  # type: ignore[no-untyped-call]


def forms(case: Case, dtype: str) -> tuple[Work, dict[str, LlamaForCausalLM], dict[str, Callable[[], object]]]:
    """The batch, and both forms on models of their own."""
    work = made_up(case.shape, mean_tokens=case.mean_tokens, spread=case.spread)
    models = {"ours": build(case.shape), "padded": build(case.shape)}
    models["ours"].set_attn_implementation("grouprl")
    models["padded"].set_attn_implementation("sdpa")
    packed = learner(models["ours"], work.algorithm, dtype)
    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: packed.learn(work.batch, work.credit, work.before, step=2),
        "padded": lambda: padded_learn(models["padded"], work, dtype),
    }
    return work, models, runs


def gradient(model: LlamaForCausalLM) -> Tensor:
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


def gradient_gap(models: dict[str, LlamaForCausalLM], runs: dict[str, Callable[[], object]]) -> float:
    """Largest difference between the gradients, relative to the largest element."""
    found = {}
    for name, model in models.items():
        model.zero_grad(set_to_none=True)
        runs[name]()
        found[name] = gradient(model)
    return float((found["ours"] - found["padded"]).abs().max() / found["padded"].abs().max())


def compare(name: str, dtype: str, *, smoke: bool) -> tuple[Row, float]:
    case = case_of(name, smoke)
    work, models, runs = forms(case, dtype)
    gap = gradient_gap(models, runs)
    assert dtype != "float32" or gap < EXACT, f"{name}: expected equal gradients, got a relative gap of {gap:.2g}"
    seconds = median_seconds(runs, rounds=4, at_most=12, warm=True)  # by the gradients
    # Each prompt and each completion without its last token: what a pass would read if no group were divided.
    packed = sum(map(len, work.batch.prompts)) + int(work.batch.mask_NT.sum()) - len(work.batch.group_of_N)
    floor = learning_floor(case.shape, packed, int(work.batch.mask_NT.sum()), dtype)
    row = smaller(f"{name}, {dtype}", "s", seconds["ours"], seconds["padded"], "padded rows", floor)
    say(f"{row.name}: {row.ratio:.2f} x padded, gradient gap {gap:.2g}")
    return row, gap


def memory(name: str, form: str, *, smoke: bool) -> float:
    """MiB beyond the imports of one pass in this process."""
    imports_mib = memory_mib("VmRSS")
    case = case_of(name, smoke)
    work = made_up(case.shape, mean_tokens=case.mean_tokens, spread=case.spread)
    model = build(case.shape)
    model.set_attn_implementation("grouprl" if form == "ours" else "sdpa")
    if form == "ours":
        packed = learner(model, work.algorithm, "float32")
        packed.learn(work.batch, work.credit, work.before, step=2)
    else:
        padded_learn(model, work, "float32")
    return memory_mib("VmHWM") - imports_mib


def main() -> None:
    parser = section_parser(__doc__)
    parser.add_argument("--memory", nargs=2, metavar=("CASE", "FORM"), help="of one form, in this process")
    given = parser.parse_args()
    if given.memory:
        print(json.dumps({"mib": memory(*given.memory, smoke=given.smoke)}))
        return
    rows, gaps = [], {}
    cases = list(CASES)[: 1 if given.smoke else None]
    for name in cases:
        for dtype in list(DTYPES)[: 1 if given.smoke else None]:
            row, gaps[row.name] = compare(name, dtype, smoke=given.smoke)
            rows.append(row)
    for name in cases:
        words = ["--smoke"] if given.smoke else []
        mib = {form: child("speed_learning.py", "--memory", name, form, *words)["mib"] for form in ("ours", "padded")}
        rows.append(smaller(f"{name}, memory", "MiB", mib["ours"], mib["padded"], "padded rows"))
    finish(rows, gradient_gaps=gaps, micro_batch_tokens=MICRO_BATCH_TOKENS, padded_rows=ROWS)


if __name__ == "__main__":
    main()
