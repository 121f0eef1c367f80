"""How the estimators scatter, what they weigh and where they lean, from sampled and from enumerated groups.

    python benchmarks/estimators.py [--out docs/images]

Prints the numbers and draws estimators-*.png. Seeded; about 5 seconds on one core.
"""

import argparse
import itertools
import math
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drawing import BLUE, GRAY, GREEN, ORANGE, PURPLE, RED, STYLE, legend
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor

from grouprl.algorithms import group_advantages, kl_estimate

SIZES = (2, 4, 8, 16, 32, 64)
GROUPS = 4_000  # sampled for each size
GRPO = {"baseline": "mean", "scale": "group_std"}
DR_GRPO = {"baseline": "mean", "scale": "none"}
RLOO = {"baseline": "leave_one_out", "scale": "none"}


def advantages_of(rewards_MG: Tensor, options: dict[str, Any]) -> Tensor:
    ids_MG = torch.arange(len(rewards_MG))[:, None].expand_as(rewards_MG)
    return group_advantages(rewards_MG.flatten(), ids_MG.flatten(), **options).double().view_as(rewards_MG)


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    print(f"\n{title}\n" + "".join(f"{name:>17}" for name in head))
    for row in rows:
        print("".join(f"{cell:>17.4g}" if isinstance(cell, float) else f"{cell:>17}" for cell in row))


# A policy of three tokens, three at a time: 27 completions with four different rewards

LOGITS = (torch.arange(39, dtype=torch.float64).view(13, 3) ** 2).sin()
COMPLETIONS = list(itertools.product(range(3), repeat=3))
REWARDS_Y = torch.tensor([0.75 * (int(digit) % 4) for digit in "314159265358979323846264338"], dtype=torch.float64)


def logprobs(logits: Tensor) -> Tensor:
    """[27] log-prob of each completion."""
    table_KV = logits.log_softmax(1)
    return torch.stack([table_KV[0, a] + table_KV[1 + a, b] + table_KV[4 + 3 * a + b, c] for a, b, c in COMPLETIONS])


CHANCE_Y = logprobs(LOGITS).exp()
SCORE_YK = torch.autograd.functional.jacobian(logprobs, LOGITS).flatten(1)  # type: ignore[no-untyped-call]  # [27, 39] gradient of each log-prob
TRUE_K = (CHANCE_Y * REWARDS_Y) @ SCORE_YK


# Variance


def baseline_variance(size: int, rate: float = 0.5) -> float:
    """Of the mean reward of a group of right and wrong answers, 20,000 groups."""
    rewards_MG = torch.bernoulli(torch.full((20_000, size), rate, dtype=torch.float64))
    return float((rewards_MG - advantages_of(rewards_MG, DR_GRPO))[:, 0].var())


BASELINES = {
    "no baseline": lambda rewards_MG: rewards_MG,
    "leave one out": lambda rewards_MG: advantages_of(rewards_MG, RLOO),
    "group mean": lambda rewards_MG: advantages_of(rewards_MG, DR_GRPO),
    "expected reward": lambda rewards_MG: rewards_MG - CHANCE_Y @ REWARDS_Y,
}


def gradient_noise(size: int) -> dict[str, float]:
    """Total variance of one group's gradient over the square of its mean, so that a shrunken gradient gains nothing."""
    groups_MG = torch.multinomial(CHANCE_Y, GROUPS * size, replacement=True).view(GROUPS, size)
    noise = {}
    for name, advantages in BASELINES.items():
        per_completion_MY = torch.zeros(GROUPS, len(COMPLETIONS), dtype=torch.float64)
        per_completion_MY.scatter_add_(1, groups_MG, advantages(REWARDS_Y[groups_MG]) / size)  # type: ignore[no-untyped-call]
        shrunk = (size - 1) / size if name == "group mean" else 1.0
        variance = float((per_completion_MY @ SCORE_YK).var(0).sum())
        noise[name] = variance / float((shrunk * TRUE_K).square().sum())
    return noise


def draw_variance(figure: Figure) -> None:
    variances = [baseline_variance(size) for size in SIZES]
    noises = [gradient_noise(size) for size in SIZES]
    exponent = np.polyfit(np.log(SIZES), np.log(variances), 1)[0]
    table(
        f"(a) variance of the group mean (pass rate 0.5) falls as G^{exponent:.3f}; gradient noise / signal",
        ["G", "baseline", "0.25 / G", *BASELINES],
        [
            (size, variance, 0.25 / size, *noise.values())
            for size, variance, noise in zip(SIZES, variances, noises, strict=True)
        ],
    )
    left, right = figure.subplots(1, 2)
    left.plot(SIZES, [0.25 / size for size in SIZES], color=GRAY, label="p (1 - p) / G")
    left.plot(SIZES, variances, "o", color=BLUE, label="measured")
    left.set(title="Variance of the group mean", xlabel="group size G", ylabel="variance")
    styles = {"no baseline": (RED, "-o"), "leave one out": (BLUE, "-o"), "group mean": (ORANGE, "--")}
    for name in BASELINES:
        color, style = styles.get(name, (GREEN, "-o"))
        right.plot(SIZES, [noise[name] for noise in noises], style, color=color, markersize=4, label=name)
    right.set(title="Gradient of one group", xlabel="group size G", ylabel="variance / |mean|²")
    for axes in (left, right):
        logarithmic(axes, SIZES)
        axes.set_yscale("log")
        axes.legend()


# Branches: what a token is worth, from other continuations of what stands before it


def drawn(numbers_NT: Tensor, begun_NT: Tensor, known: int) -> tuple[Tensor, Tensor]:
    """[N, 3] rows of LOGITS, and the tokens drawn at these numbers after the `known` first tokens of others."""
    chance_KV, prefix_N, rows, tokens = LOGITS.softmax(1), torch.zeros(len(numbers_NT), dtype=torch.long), [], []
    for t, first in enumerate((0, 1, 4)):
        rows.append(first + prefix_N)
        drawn_N = (chance_KV[rows[t]].cumsum(1) < numbers_NT[:, t, None]).sum(1).clamp(max=2)
        tokens.append(begun_NT[:, t] if t < known else drawn_N)
        prefix_N = 3 * prefix_N + tokens[t]
    return torch.stack(rows, 1), torch.stack(tokens, 1)


def branch_noise(size: int, branches: int, *, common: bool) -> tuple[float, float]:
    """Noise of a group's gradient as in `gradient_noise`, and the tokens that the group takes.

    With branches each token gets r - (their mean reward) instead of r - (mean of the group's others). A branch draws
    the token again, and what follows at the completion's own random numbers (common) or at others. The gradient is
    unbiased, because nothing in a branch depends on the token. With common numbers the same token costs nothing.
    """
    numbers_NT, place_Y = torch.rand(GROUPS * size, 3, dtype=torch.float64), torch.tensor([9, 3, 1])
    rows_NT, tokens_NT = drawn(numbers_NT, torch.empty(0), 0)
    rewards_N = REWARDS_Y[tokens_NT @ place_Y]
    advantages_NT = advantages_of(rewards_N.view(-1, size), RLOO).view(-1, 1).repeat(1, 3)
    sampled = 3 * len(rewards_N)
    for t, branch in itertools.product(range(3), range(branches)):
        mixed_NT = torch.rand(numbers_NT.shape, dtype=torch.float64)
        if common:
            mixed_NT[:, t + 1 :] = numbers_NT[:, t + 1 :]
        _, other_NT = drawn(mixed_NT, tokens_NT, t)
        before_N = advantages_NT[:, t] if branch else rewards_N
        advantages_NT[:, t] = before_N - REWARDS_Y[other_NT @ place_Y] / branches
        sampled += (3 - t) * int((other_NT[:, t] != tokens_NT[:, t]).sum() if common else len(rewards_N))
    scores_NTV = torch.nn.functional.one_hot(tokens_NT, 3) - LOGITS.softmax(1)[rows_NT]
    gradients_MKV = torch.zeros(GROUPS, *LOGITS.shape, dtype=torch.float64)
    groups_NT = torch.arange(GROUPS).repeat_interleave(size)[:, None].expand_as(rows_NT)
    gradients_MKV.index_put_((groups_NT, rows_NT), advantages_NT[..., None] * scores_NTV / size, accumulate=True)
    return float(gradients_MKV.flatten(1).var(0).sum() / TRUE_K.square().sum()), sampled / GROUPS


def print_branches() -> None:
    group, tokens = branch_noise(8, 0, common=False)
    rows: list[tuple[object, ...]] = []
    for branches, common in itertools.product((1, 2, 4), (True, False)):
        noise, cost = branch_noise(8, branches, common=common)
        rows.append(
            (branches, "common" if common else "other", cost / tokens, noise / group, noise * cost / group / tokens)
        )
    head = ["branches", "numbers", "tokens", "noise", "at equal tokens"]
    table("(e) branches at every token of a group of 8, over the group without any", head, rows)


# KL


def kl_moments(policy_V: Tensor, reference_V: Tensor) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of each estimate over the tokens of the policy, exact."""
    moments = {}
    for kind in ("k1", "k2", "k3"):
        estimate_V = kl_estimate(policy_V, reference_V, kind=kind)
        mean = float(policy_V.exp() @ estimate_V)
        moments[kind] = mean, math.sqrt(float(policy_V.exp() @ (estimate_V - mean).square()))
    return moments


def draw_kl(figure: Figure) -> None:
    at = torch.arange(64, dtype=torch.float64)
    logits, noise = 2 * (at * at).sin(), (at**3).cos()
    amounts = np.geomspace(0.03, 3, 25)
    journeys = {
        "reference elsewhere": [
            kl_moments(logits.log_softmax(0), (logits + amount * noise).log_softmax(0)) for amount in amounts
        ],
        "policy sharper than its reference": [
            kl_moments(((1 + amount) * logits).log_softmax(0), logits.log_softmax(0)) for amount in amounts
        ],
    }
    for axes, (name, journey) in zip(figure.subplots(1, 2), journeys.items(), strict=True):
        true = [moments["k1"][0] for moments in journey]
        table(
            f"(b) KL estimates of one token, {name}: mean, standard deviation",
            ["true KL", "k1 mean", "k2 mean", "k3 mean", "k1 dev", "k2 dev", "k3 dev"],
            [
                (kl, *(moments[kind][part] for part in (0, 1) for kind in moments))
                for kl, moments in zip(true[::6], journey[::6], strict=True)
            ],
        )
        axes.plot(true, true, color=GRAY, linewidth=3, alpha=0.5, label="mean of k1 and k3 (the KL)")
        axes.plot(true, [moments["k2"][0] for moments in journey], "--", color=GREEN, label="mean of k2")
        for kind, color in (("k1", BLUE), ("k2", GREEN), ("k3", RED)):
            axes.plot(true, [moments[kind][1] for moments in journey], color=color, label=f"deviation of {kind}")
        axes.set(title=name.capitalize(), xlabel="KL(policy || reference), nats", xscale="log", yscale="log")
        axes.set_ylabel("nats per token")
        axes.grid(axis="y", which="major")
        axes.legend(fontsize=8)


# Weight by pass rate


def mass_by_formula(rate: float, size: int) -> dict[str, float]:
    """Mean |advantage| of a group: with k right, the deviation makes it 2 sqrt(k (G - k)) / G."""
    spread = rate * (1 - rate)
    ways = [math.comb(size, k) * rate**k * (1 - rate) ** (size - k) for k in range(size + 1)]
    scaled = sum(way * 2 * math.sqrt(k * (size - k)) / size for k, way in enumerate(ways))
    return {"GRPO": scaled, "Dr.GRPO": 2 * spread * (size - 1) / size, "RLOO": 2 * spread}


def mass_by_simulation(rate: float, size: int) -> dict[str, float]:
    rewards_MG = torch.bernoulli(torch.full((20_000, size), rate, dtype=torch.float64))
    options = {"GRPO": GRPO, "Dr.GRPO": DR_GRPO, "RLOO": RLOO}
    return {name: float(advantages_of(rewards_MG, option).abs().mean()) for name, option in options.items()}


def draw_weight(figure: Figure) -> None:
    size, curve, dots = 8, np.linspace(0.005, 0.995, 199), (0.02, 0.05, *np.arange(0.1, 0.91, 0.1), 0.95, 0.98)
    formula = [mass_by_formula(rate, size) for rate in curve]
    measured = [mass_by_simulation(rate, size) for rate in dots]
    table(
        "(c) mean |advantage| of a group of 8 by pass rate: formula, simulation",
        ["pass rate", *(f"{name} {way}" for name in formula[0] for way in ("form.", "sim."))],
        [
            (float(rate), *(value for name in found for value in (mass_by_formula(rate, size)[name], found[name])))
            for rate, found in zip(dots, measured, strict=True)
        ],
    )
    left, right = figure.subplots(1, 2)
    left.plot(curve, 2 * np.sqrt(curve * (1 - curve)), ":", color=GRAY, label="2 sqrt(p (1 - p)), large G")
    for name, color in (("GRPO", BLUE), ("RLOO", GREEN), ("Dr.GRPO", RED)):
        left.plot(curve, [masses[name] for masses in formula], color=color, label=name)
        left.plot(dots, [masses[name] for masses in measured], "o", color=color, markersize=3)
        factor = [masses[name] / (2 * rate * (1 - rate)) for rate, masses in zip(curve, formula, strict=True)]
        right.plot(curve, factor, color=color, label=name)
    right.plot(curve, 1 / np.sqrt(curve * (1 - curve)), ":", color=GRAY, label="1 / sqrt(p (1 - p)), large G")
    left.set(title="Mean |advantage|, G = 8 (dots: sampled)", xlabel="pass rate p")
    right.set(title="Factor on the true gradient, G = 8", xlabel="pass rate p", ylim=(0, 5))
    for axes in (left, right):
        axes.legend(fontsize=8)


# Direction of GRPO's gradient


@cache
def counts_of(levels: int, size: int) -> Tensor:
    """[M, levels] how many of `size` completions have each reward, for every group up to order."""
    bars = itertools.combinations(range(size + levels - 1), levels - 1)
    ends = np.array([(-1, *bar, size + levels - 1) for bar in bars])
    return torch.from_numpy(np.diff(ends) - 1)


def expected_advantages(size: int, chance_R: Tensor, rewards_R: Tensor, options: dict[str, Any]) -> Tensor:
    """[R] chance-weighted advantage of each reward level, over every group: exact."""
    counts_MR = counts_of(len(rewards_R), size)
    log_ways_M = math.lgamma(size + 1) - torch.lgamma(counts_MR.double() + 1).sum(1)
    chance_M = (log_ways_M + (counts_MR * chance_R.log()).sum(1)).exp()
    levels_MG = torch.arange(len(rewards_R)).repeat(len(counts_MR)).repeat_interleave(counts_MR.flatten())
    levels_MG = levels_MG.view(-1, size)
    weighted_MG = advantages_of(rewards_R[levels_MG], options) * chance_M[:, None] / size
    return torch.zeros_like(rewards_R).index_add_(0, levels_MG.flatten(), weighted_MG.flatten())


def graded_cosine(size: int, options: dict[str, Any]) -> float:
    """One problem whose 27 completions earn four different rewards."""
    rewards_R, level_Y = REWARDS_Y.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    chance_R = torch.zeros_like(rewards_R).index_add_(0, level_Y, CHANCE_Y)
    score_RK = torch.zeros(len(rewards_R), SCORE_YK.shape[1], dtype=torch.float64)
    score_RK.index_add_(0, level_Y, CHANCE_Y[:, None] * SCORE_YK)
    expected_K = (expected_advantages(size, chance_R, rewards_R, options) / chance_R) @ score_RK
    return float(torch.cosine_similarity(expected_K, TRUE_K, dim=0))


RATES = [0.01, *np.arange(0.05, 1, 0.05).tolist(), 0.99]


def problems_cosine(size: int, options: dict[str, Any]) -> float:
    """Problems with their own parameter each, right or wrong, pass rates from 0.01 to 0.99; true gradient p (1 - p)."""
    expected = []
    for rate in RATES:
        chance_R = torch.tensor([1 - rate, rate], dtype=torch.float64)
        score_R = torch.tensor([-rate, 1 - rate], dtype=torch.float64)  # of the logit of being right
        levels_R = torch.tensor([0.0, 1.0], dtype=torch.float64)
        expected.append(float(expected_advantages(size, chance_R, levels_R, options) @ score_R))
    true = torch.tensor([rate * (1 - rate) for rate in RATES])
    return float(torch.cosine_similarity(torch.tensor(expected), true, dim=0))


def draw_direction(figure: Figure) -> None:
    spread = torch.tensor([rate * (1 - rate) for rate in RATES])
    limit = float(torch.cosine_similarity(spread.sqrt(), spread, dim=0))
    rows = [
        (
            size,
            graded_cosine(size, GRPO),
            problems_cosine(size, GRPO),
            graded_cosine(size, DR_GRPO),
            problems_cosine(size, DR_GRPO),
        )
        for size in SIZES
    ]
    table(
        f"(d) cosine of the expected gradient with the true one; limit of many problems for GRPO {limit:.4f}",
        ["G", "GRPO graded", "GRPO problems", "Dr.GRPO graded", "Dr.GRPO problems"],
        rows,
    )
    axes = figure.subplots()
    columns = list(zip(*rows, strict=True))
    axes.plot(SIZES, columns[3], color=GRAY, linewidth=3, alpha=0.5, label="Dr.GRPO and RLOO,\nboth cases")
    axes.plot(SIZES, columns[1], "-o", color=BLUE, markersize=4, label="GRPO, one problem,\nfour different rewards")
    axes.plot(SIZES, columns[2], "-o", color=PURPLE, markersize=4, label="GRPO, 21 problems,\nright or wrong")
    axes.axhline(limit, color=PURPLE, linestyle=":", label="its limit")
    axes.set(title="Where GRPO's gradient points", xlabel="group size G", ylabel="cosine with the true gradient")
    logarithmic(axes, SIZES)
    legend(axes)


def logarithmic(axes: Any, sizes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])


FIGURES = {
    "variance": (draw_variance, (9.0, 3.6)),
    "kl": (draw_kl, (9.0, 3.9)),
    "weight": (draw_weight, (9.0, 3.6)),
    "direction": (draw_direction, (9.0, 3.6)),
}


def draw_all(folder: Path) -> None:
    torch.manual_seed(0)
    for name, (draw, inches) in FIGURES.items():
        with rc_context(STYLE):
            figure = Figure(figsize=inches, dpi=110, layout="constrained")
            draw(figure)
            figure.savefig(folder / f"estimators-{name}.png", metadata={"Software": None})
    print_branches()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "images")
    parser.add_argument("--smoke", action="store_true", help="leaves the pictures alone: whether it runs")
    given = parser.parse_args()
    if given.smoke:
        with tempfile.TemporaryDirectory() as folder:
            draw_all(Path(folder))
        return
    draw_all(given.out)


if __name__ == "__main__":
    main()
