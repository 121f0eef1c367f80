"""How far the learner's log-probs in bfloat16 are from the sampler's, and what each part of a layer adds to that.

    OMP_NUM_THREADS=1 python benchmarks/bfloat16_gap.py                                     # the bundled model
    OMP_NUM_THREADS=1 python benchmarks/bfloat16_gap.py build/smollm2 gsm8k FILE --problems 16     # a folder, a task

About 10,000 tokens at temperature 1. The first row is what a run computes. In the next ones the learner computes one
part with torch, which rounds in another place or adds in another order; in the last both sides use torch alone.
"""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from unittest.mock import patch

import torch
from torch import Tensor

from grouprl.algorithms.spec import Algorithm, Updates
from grouprl.config.run import LearnerConfig
from grouprl.kernels import calibration
from grouprl.kernels.offers import CONTESTS
from grouprl.learner import Learner, Optimizer, make_batch
from grouprl.models.load import load_model, load_tokenizer
from grouprl.rollout import NativeEngine, make_requests
from grouprl.tasks import load_task
from grouprl.types import Batch, Sampling

CPU = torch.device("cpu")
COMPLETIONS, ROWS = 8, 64
PARTS = ("add_norm", "swiglu", "attention", "log-probs")
ALL = frozenset(contest.name for contest in CONTESTS)


def in_torch(names: frozenset[str]) -> AbstractContextManager[object]:
    """Every kernel but these is used, however fast it is."""
    return patch.object(calibration, "_kernel_wins", lambda contest, width, dtype: contest.name not in names)


def gaps(learner: Learner, batch: Batch) -> Tensor:
    """Of each token, in nats."""
    policy_NT = learner.evaluate(batch).policy_NT
    assert policy_NT is not None, "expected a pass of the policy, for there are two updates"
    return (policy_NT - batch.old_logprobs_NT)[batch.mask_NT].abs()


def report(name: str, gaps_C: Tensor) -> None:
    columns = (float(gaps_C.max()), float(gaps_C.quantile(0.999)), float(gaps_C.mean()))
    equal = float((gaps_C == 0).float().mean())
    print(f"{name:<28}{len(gaps_C):8}" + "".join(f"{value:10.2g}" for value in columns) + f"{equal:10.1%}", flush=True)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("given", nargs="*", default=["abacus", "word_problems"], help="MODEL TASK [FILE]")
    parser.add_argument("--problems", type=int, default=64, help="completions: 8 of each, at most 96 tokens")
    parser.add_argument("--examples", type=int, default=0, help="worked examples in each prompt")
    parser.add_argument("--smoke", action="store_true", help="a few tokens: whether it runs")
    given = parser.parse_args()
    path, name, *file = given.given
    problems, tokens = (2, 8) if given.smoke else (given.problems, 96)
    model, tokenizer = load_model(path, device=CPU), load_tokenizer(path)
    task = load_task(name, path=file[0] if file else None, examples=given.examples)
    visits = [(problem, "") for problem in task.problems("train")[:problems]]
    asked = make_requests(visits, tokenizer, completions=COMPLETIONS, longest_prompt=1 << 20)
    optimizer = Optimizer(model, LearnerConfig(learning_rate=1e-6), total_updates=1, seed=0)
    two_updates = Algorithm(updates=Updates(minibatches=2))
    learner = Learner(model, None, optimizer, two_updates, CPU, "bfloat16", 0)

    def sampled() -> Batch:
        engine = NativeEngine(model, tokenizer, seed=3, max_rows=ROWS, dtype="bfloat16")
        return make_batch(engine.generate(asked, Sampling(max_tokens=tokens)), Sampling(max_tokens=tokens))

    print(f"{'':<28}{'tokens':>8}{'largest':>10}{'99.9 %':>10}{'mean':>10}{'equal':>10}")
    batch = sampled()
    report("as in a run", gaps(learner, batch))
    for part in PARTS:
        with in_torch(frozenset({part})):
            report(f"learner's {part} in torch", gaps(learner, batch))
    with in_torch(ALL):
        report("no kernels", gaps(learner, sampled()))


if __name__ == "__main__":
    main()
