"""One step of GRPO with worked examples in every prompt: CPU time when they are read once, and once for each group.

    python benchmarks/shared_prefix.py                       # the bundled model
    python benchmarks/shared_prefix.py MODEL gsm8k FILE      # a model folder, a task and its data

The reference moves away from the policy first, so that its pass and the KL count.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import TypeVar
from unittest.mock import patch

import torch

from grouprl.algorithms.advantages import Credit
from grouprl.algorithms.spec import Algorithm
from grouprl.config.run import LearnerConfig
from grouprl.learner import Learner, Optimizer, make_batch
from grouprl.models.load import frozen_copy, load_model, load_tokenizer
from grouprl.rollout import NativeEngine, Request, make_requests
from grouprl.tasks import load_task
from grouprl.types import Sampling

CPU = torch.device("cpu")
PROBLEMS, COMPLETIONS, EXAMPLES = 4, 4, 8
SAMPLING = Sampling(max_tokens=64)
Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """CPU seconds of this process, which others that run beside it change little, and the result."""
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def step(path: str, asked: list[Request]) -> tuple[float, float, float]:
    """CPU seconds of sampling, of the reference's pass and of the update."""
    model, tokenizer = load_model(path, device=CPU), load_tokenizer(path)
    reference, settings = frozen_copy(model), LearnerConfig(learning_rate=1e-6)
    for weight in reference.parameters():
        weight.mul_(1.01)
    engine = NativeEngine(model, tokenizer, seed=3, max_rows=64)
    sampling, groups = timed(lambda: engine.generate(asked, SAMPLING))
    learner = Learner(
        model, reference, Optimizer(model, settings, total_updates=1, seed=0), Algorithm(), CPU, "float32", 0
    )
    batch = make_batch(groups, SAMPLING)
    advantages_N = torch.linspace(-1, 1, len(batch.mask_NT))
    credit = Credit(torch.where(batch.mask_NT, advantages_N[:, None], 0.0))
    reading, before = timed(lambda: learner.evaluate(batch))
    updating, _ = timed(lambda: learner.learn(batch, credit, before, step=2))
    return sampling, reading, updating


def main() -> None:
    """Prints a table of both ways."""
    torch.set_num_threads(1)
    given = [argument for argument in sys.argv[1:] if argument != "--smoke"]  # which is as short as the rest
    path, name, file = given or ("abacus", "word_problems", None)
    tokenizer, task = load_tokenizer(path), load_task(name, path=file, examples=EXAMPLES)
    problems = task.problems("train")[:PROBLEMS]
    visits = [(problem, "") for problem in problems]
    together = make_requests(visits, tokenizer, completions=COMPLETIONS, longest_prompt=1 << 20)
    lengths = [len(one.prompt_ids) for one in together]
    print(
        f"{PROBLEMS} prompts of {min(lengths)} to {max(lengths)} tokens, {COMPLETIONS} completions of each; CPU seconds"
    )
    print(f"{'shared tokens':>14}{'sampling':>10}{'reference':>10}{'update':>10}")
    for asked in (together, [replace(one, before=0) for one in together]):
        with nullcontext() if asked[0].before else patch("grouprl.learner.runner.shared_tokens", lambda prompts: 0):
            seconds = step(path, asked)
        print(f"{asked[0].before:14}" + "".join(f"{one:10.1f}" for one in seconds))


if __name__ == "__main__":
    main()
