"""What the worker pool costs: a trivial reward on 1,024 completions, against calling it in the run's own process.

python benchmarks/reward_pool.py
"""

import argparse
import asyncio
import statistics
import time
from functools import partial

import cloudpickle

from grouprl.config.run import ScoringConfig
from grouprl.rewards.calls import RewardCall, call, gather, signature
from grouprl.rewards.workers.pool import RewardPool

COMPLETIONS, ROUNDS = 1024, 15


def trivial(completions: list[str], **columns: object) -> list[float]:
    return [float(len(text)) for text in completions]


def keywords(size: int) -> dict[str, list[object]]:
    return {
        "prompts": ["What is 15 - 3 - 5?" * 10] * size,
        "completions": ["15 - 3 = 12. 12 - 5 = 7. \\boxed{7} " * 20] * size,
        "completion_ids": [list(range(200))] * size,
        "answer": ["15 - 3 = <<15-3=12>>12\n12 - 5 = <<12-5=7>>7\n#### 7"] * size,
    }


def in_pool(pool: RewardPool, groups: list[dict[str, list[object]]]) -> None:
    for scored in [pool.submit(RewardCall("trivial", group)) for group in groups]:
        gather(scored)


def here(groups: list[dict[str, list[object]]]) -> None:
    for group in groups:
        call(trivial, signature(trivial).arguments(group), group["completions"], run=asyncio.run)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="few completions: whether it runs, not how fast")
    completions, rounds = (64, 1) if parser.parse_args().smoke else (COMPLETIONS, ROUNDS)
    print("completions of 200 tokens; ms per completion, median (minimum to maximum) of", rounds, "rounds")
    with RewardPool({"trivial": cloudpickle.dumps(trivial)}, ScoringConfig()) as pool:
        pool.signatures()
        for size in (1, 4, 8, 16, 64):
            groups = [keywords(size) for _ in range(completions // size)]
            for name, run in (("pool", partial(in_pool, pool)), ("in process", here)):
                times = []
                for _ in range(rounds):
                    started = time.perf_counter()
                    run(groups)
                    times.append((time.perf_counter() - started) / completions * 1e3)
                median, low, high = statistics.median(times), min(times), max(times)
                print(f"groups of {size:>3}, {name:<10}: {median:.4f} ({low:.4f} to {high:.4f})")


if __name__ == "__main__":
    main()
