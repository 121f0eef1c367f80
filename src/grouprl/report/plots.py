"""The plots of a run as PNG files, drawn from its run directory. Importing this brings in matplotlib."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from grouprl.record.read import RecordedRun, Row, interval_name
from grouprl.report.curriculum_plot import STANDING
from grouprl.report.drawing import BLUE, COLORS, GREY, RED, SKY, Plot, legend, lines, over_steps, shares, stack

SMALLEST_GAP = 1e-9  # where a gap of exactly 0 is drawn on the logarithmic axis


def _accuracy(run: RecordedRun, figure: Figure) -> None:
    axes = figure.subplots()
    found = {**run.results("before"), **run.results("after")}
    named = {"greedy_accuracy": "greedy", "pass_at_1": "pass@1", "pass_at_8": "pass@8"}
    measures = {name: label for name, label in named.items() if name in found}
    for offset, when, color in ((-0.2, "before", GREY), (0.2, "after", BLUE)):
        row = run.results(when)
        present = [(place + offset, name) for place, name in enumerate(measures) if name in row]
        if present:
            places, names = zip(*present, strict=True)
            heights = np.array([row[name] for name in names])
            low, high = np.array([_interval(row, name) for name in names]).T
            axes.bar(places, heights, 0.36, color=color, label=when)
            errors = np.maximum(0, [heights - low, high - heights])
            axes.errorbar(places, heights, errors, fmt="none", ecolor="#222222", elinewidth=1.4, capsize=3)
            for place, height, top in zip(places, heights, high, strict=True):
                axes.annotate(
                    f"{height:.1%}", (place, top), (0, 4), textcoords="offset points", ha="center", fontsize=9
                )
    axes.set_xticks(range(len(measures)), list(measures.values()))
    shares(axes, "solved held-out problems")
    axes.set_ylim(0, 1.15)
    axes.set_yticks(np.linspace(0, 1, 6))
    legend(axes)


def _heldout(run: RecordedRun, figure: Figure) -> None:
    axes = figure.subplots()
    for name, label, color in (("greedy_accuracy", "greedy", BLUE), ("pass_at_1", "pass@1", RED)):
        rows = [row for row in run.evaluations if row.get(name) is not None]
        if rows:
            steps, values = [row["step"] for row in rows], [row[name] for row in rows]
            low, high = zip(*(_interval(row, name) for row in rows), strict=True)
            axes.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)
            axes.plot(steps, values, color=color, linewidth=2, marker="o", markersize=4, label=label)
    over_steps(axes)
    shares(axes, "solved held-out problems")
    legend(axes)


def _interval(row: Row, name: str) -> tuple[float, float]:
    low, high = row.get(interval_name(name)) or (row[name], row[name])
    return max(0.0, low), min(1.0, high)


def _reward(run: RecordedRun, figure: Figure) -> None:
    parts = [name for name in run.metric_names if name.startswith("rewards/") and name.endswith("/mean")]
    labels = {"reward": "total", **{name: name.removeprefix("rewards/").removesuffix("/mean") for name in parts}}
    lines(figure.subplots(), run, labels, "mean reward")


def _sampled_shares(run: RecordedRun, figure: Figure) -> None:
    axes = figure.subplots()
    traits = [name for name in run.metric_names if name.endswith("_share")]
    lines(axes, run, {**{name: name.removesuffix("_share") for name in traits}, "accuracy": "correct"}, "")
    shares(axes, "share of completions")


def _length(run: RecordedRun, figure: Figure) -> None:
    lengths, cut = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    lines(lengths, run, {"completions/mean_length": "mean", "completions/max_length": "longest"}, "tokens")
    lengths.set_xlabel("")
    lengths.set_ylim(bottom=0)
    lines(cut, run, {"completions/clipped_ratio": ""}, "")
    shares(cut, "cut short")


def _group_signal(run: RecordedRun, figure: Figure) -> None:
    steps, solved = run.column("frac_solved")
    _, hopeless = run.column("frac_hopeless")
    known = bool(steps) and len(solved) == len(hopeless)  # not without a verifier
    spread, *below = figure.subplots(1 + known, 1, sharex=True, squeeze=False)[:, 0]
    lines(spread, run, {"reward_std": ""}, "reward deviation\nin a group")
    spread.set_ylim(bottom=0)
    for kinds in below:
        spread.set_xlabel("")
        mixed = np.maximum(0, 1 - np.array(solved) - np.array(hopeless))
        stack(kinds, steps, {"hopeless": hopeless, "mixed": mixed.tolist(), "solved": solved}, (RED, BLUE, SKY))
        shares(kinds, "groups")


def _divergence(run: RecordedRun, figure: Figure) -> None:
    divergence, entropy = figure.subplots(2, 1, sharex=True)
    lines(divergence, run, {"kl": ""}, "KL to reference\n(nats per token)")
    divergence.set_xlabel("")
    lines(entropy, run, {"entropy": ""}, "entropy\n(nats per token)")
    entropy.set_ylim(bottom=0)


def _clipping(run: RecordedRun, figure: Figure) -> None:
    labels = {"clip_low_fraction": "from below", "clip_high_fraction": "from above"}
    # With one update a step the policy has not moved yet, and a picture of zeros says nothing.
    if any(max(run.column(name)[1], default=0.0) > 0 for name in labels):
        axes = figure.subplots()
        lines(axes, run, labels, "")
        axes.set_ylabel("share of tokens")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def _critic(run: RecordedRun, figure: Figure) -> None:
    cost, explained = figure.subplots(2, 1, sharex=True)
    lines(cost, run, {"value_loss": ""}, "value loss")
    cost.set_xlabel("")
    cost.set_ylim(bottom=0)
    lines(explained, run, {"value_explained_variance": ""}, "variance of the\nreturns explained")
    explained.set_ylim(-1.05, 1.05)


def _gap(run: RecordedRun, figure: Figure) -> None:
    axes = figure.subplots()
    steps, gaps = run.column("sampler_learner_gap")
    if steps:
        drawn = np.maximum(gaps, SMALLEST_GAP)
        axes.semilogy(steps, drawn, color=BLUE, marker=".", markersize=4, linewidth=1)
        axes.set_ylim(10 ** np.floor(np.log10(drawn.min()) - 0.5), 10 ** np.ceil(np.log10(drawn.max()) + 0.5))
    axes.set_ylabel("largest difference (nats)")
    over_steps(axes)


def _time(run: RecordedRun, figure: Figure) -> None:
    axes = figure.subplots()
    steps, parts = run.time_split()
    if steps:
        stack(axes, steps, parts, (*COLORS[: len(parts) - 1], GREY))
    axes.set_ylabel("seconds")


PLOTS: tuple[Plot[RecordedRun], ...] = (
    Plot(
        "accuracy",
        "Held-out accuracy before and after",
        "Share of held-out problems solved greedily, by one sampled completion (pass@1) and by the best of eight "
        "(pass@8), with 95% intervals; worry when the intervals overlap, or when pass@8 falls while pass@1 rises.",
        _accuracy,
    ),
    Plot(
        "heldout",
        "Held-out accuracy while training",
        "Share of problems never trained on that are solved, with 95% bands; worry when it falls while the training "
        "reward still rises.",
        _heldout,
    ),
    Plot(
        "reward",
        "Reward",
        "Mean reward of the sampled completions, in total (weighted) and for each reward function (unweighted); worry "
        "when the total rises through one easy component only.",
        _reward,
    ),
    Plot(
        "shares",
        "What the policy writes",
        "Share of sampled completions that are correct, and that have a property which is watched but never rewarded; "
        "worry when correct completions lose the property you hoped to see.",
        _sampled_shares,
    ),
    Plot(
        "length",
        "Completion length",
        "Tokens in a completion, and the share of completions cut at the token limit; worry when many are cut: they "
        "earn nothing and teach the policy to be short, not right.",
        _length,
    ),
    Plot(
        "group_signal",
        "Signal in the groups",
        "How much rewards differ within a group, and how many groups are all right (solved), all wrong (hopeless) or "
        "mixed; worry when few are mixed, because equal rewards teach nothing.",
        _group_signal,
    ),
    STANDING,
    Plot(
        "divergence",
        "Distance from the reference, and entropy",
        "How far the policy has moved from where it started, and how varied its choices still are; worry when KL "
        "jumps, or when entropy reaches zero while problems are unsolved.",
        _divergence,
    ),
    Plot(
        "clipping",
        "Clipped tokens",
        "Share of tokens whose ratio has left the trusted range, so that they no longer move the policy; worry when it "
        "stays above a tenth: the updates of a step then go further than the data carries.",
        _clipping,
    ),
    Plot(
        "critic",
        "Critic",
        "How far the critic is from the returns, and how much of their variance it explains (1 is all, 0 no more than "
        "their mean); worry when it stays at 0: such a critic is no better than the mean of the batch.",
        _critic,
    ),
    Plot(
        "gap",
        "Sampler and learner agreement",
        "Largest difference between the log-probs at sampling and at learning, which should be rounding only; worry "
        "above 1e-4 in float32: the update then corrects a policy other than the one that wrote.",
        _gap,
    ),
    Plot(
        "time",
        "Where the time of a step goes",
        "Seconds of each step by what they were spent on; worry when a part other than rollout or learn grows.",
        _time,
    ),
)
