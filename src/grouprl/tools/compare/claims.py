"""Answers the claims of a comparison: each expectation as a difference with intervals, and a verdict by one rule.

An expectation holds, fails or stays open by its interval, which is simultaneous over the expectations of its claim:

| expectation | holds | fails |
|---|---|---|
| A > B | the interval lies above 0 | it lies below the margin |
| A = B | it lies within the margin around 0 | it lies above 0 or below 0 |
| A >= B | it lies above minus the margin | it lies below 0 |

A claim holds if all of its expectations hold, does not if any fails, and is undecided otherwise. It holds in the whole
table if each difference also is above 0 with a p below 5 % after Holm's correction over all claims.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean
from typing import Any, Literal

import numpy as np

from grouprl.evaluation.paired import ProblemResults
from grouprl.files import is_number
from grouprl.record.queries import wrong_lengths
from grouprl.record.read import RecordedRun
from grouprl.tools.compare.inference import CrossedDifference, crossed_difference, holm, simultaneous_confidence
from grouprl.tools.compare.read import RecordedComparison, Variant, run_metrics, summed
from grouprl.tools.compare.settings import Claim

Verdict = Literal["holds", "does not hold", "undecided", "not measured yet"]
Values = Mapping[str, float]  # by problem, or one value of the whole run

_TOTALS = {"tokens": "completion_tokens", "seconds": "time/total"}
_WHOLE_RUN = ""  # stands for the problem where a run has one value
_TENTH = 10
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class MeasuredExpectation:
    """An expectation with the difference that the runs show."""

    left: str
    relation: str
    right: str
    difference: CrossedDifference | None  # left - right; None while a run is missing, or has no such metric
    interval: tuple[float, float] | None  # 95 %, simultaneous over the expectations of the claim
    verdict: Verdict


@dataclass(frozen=True)
class AnsweredClaim:
    """A claim with what was measured and the verdict."""

    name: str
    claim: Claim
    measured: tuple[MeasuredExpectation, ...]
    verdict: Verdict


def answer_claims(comparison: RecordedComparison) -> tuple[AnsweredClaim, ...]:
    """Measures the expectations of all claims, in their order."""
    variants = {variant.name: variant for variant in comparison.variants}
    answers = []
    for name, claim in comparison.claims.items():
        if claim.holds is not None:
            answers.append(AnsweredClaim(name, claim, (), "holds" if claim.holds else "does not hold"))
            continue
        confidence = simultaneous_confidence(max(1, len(claim.pairs)))
        measured = []
        for left, relation, right in claim.pairs:
            difference = difference_of(claim, variants[left], variants.get(right))
            interval = None if difference is None else difference.interval(confidence)
            verdict = "not measured yet" if difference is None else verdict_of(relation, interval, claim.margin)
            measured.append(MeasuredExpectation(left, relation, right, difference, interval, verdict))
        answers.append(AnsweredClaim(name, claim, tuple(measured), combined([row.verdict for row in measured])))
    return tuple(answers)


def claims_summary(answered: Sequence[AnsweredClaim]) -> list[dict[str, Any]]:
    """The claims as plain values of summary.json."""
    rows = []
    for answer in answered:
        measured = []
        for expectation in answer.measured:
            difference = expectation.difference
            values: dict[str, Any] = asdict(expectation) | {"alone": None, "p_value": None, "by_seed": ()}
            if difference is not None:
                by_seed = values["difference"].pop("by_seed")
                values |= {"alone": difference.interval(), "p_value": difference.p_value, "by_seed": by_seed}
            measured.append(values)
        fields = answer.claim.model_dump(mode="json", exclude={"expect"})
        named = {"name": answer.name, **fields, "variants": answer.claim.variants}
        rows.append({**named, "verdict": answer.verdict, "measured": measured})
    return correct_over_table(rows)


def correct_over_table(claims: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Corrects the p-values of a table together, whichever comparisons measured its rows.

    Args:
        claims: rows of `claims_summary`, at least `verdict` and `measured`.

    Returns:
        The rows with `p_in_table` of each expectation, its p-value after Holm's correction over all of them, and
        `holds_in_table` of each claim.
    """
    p_values = [row["p_value"] for claim in claims for row in claim["measured"] if row["p_value"] is not None]
    corrected = iter(holm(p_values))
    rows = []
    for claim in claims:
        measured = [
            {**row, "p_in_table": None if row["p_value"] is None else next(corrected)} for row in claim["measured"]
        ]
        shown = bool(measured) and all(
            is_significant(row) and row["relation"] != "=" and row["difference"]["mean"] > 0 for row in measured
        )
        rows.append({**claim, "measured": measured, "holds_in_table": claim["verdict"] == "holds" and shown})
    return rows


def is_significant(expectation: Mapping[str, Any]) -> bool:
    """Whether an expectation's p-value is below 5 % after the correction over the whole table."""
    p_value = expectation["p_in_table"]
    return p_value is not None and bool(p_value < SIGNIFICANT)


def claims_table(claims: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of a table in Markdown, a row for each claim of `claims_summary`."""
    yield "| claim | source | measured | verdict |"
    yield "|---|---|---|---|"
    for claim in claims:
        holds = "holds in the whole table" if claim["holds_in_table"] else "holds here"
        verdict = holds if claim["verdict"] == "holds" else claim["verdict"]
        yield f"| {claim['claim']} | {claim['source']} | {_measured_cell(claim)} | {verdict} |"


def _measured_cell(claim: Mapping[str, Any]) -> str:
    if claim["exact"] is not None:
        return f"{claim['found']} (`{claim['exact']}`)"
    factor = 100 if is_share(claim["measure"]) else 1
    differences = []
    for row in claim["measured"]:
        if row["difference"] is None or row["interval"] is None:
            continue
        low, high = (factor * end for end in row["interval"])
        sides = row["left"] if row["right"] == "0" else f"{row['left']} - {row['right']}"
        star = "\\*" if is_significant(row) else ""
        differences.append(f"{sides}: {factor * row['difference']['mean']:+.3g} ({low:+.3g} to {high:+.3g}){star}")
    name = claim["measure"].replace("_", " ") + (" gained" if claim["grows"] else "")
    unit = ", points" if factor > 1 else ""
    margin = f", margin {factor * claim['margin']:g}"
    return f"{name} at equal {claim['at']}{unit}{margin}: {'; '.join(differences)}" if differences else "-"


def is_share(measure: str) -> bool:
    """Whether a measure is a share, whose differences are shown in points."""
    return measure in ("accuracy", "speed") or measure.startswith("frac_")


def verdict_of(relation: str, interval: tuple[float, float] | None, margin: float) -> Verdict:
    """Whether an interval of left - right shows the relation, contradicts it, or neither; the module has the rule."""
    if interval is None:
        return "undecided"
    low, high = interval
    holds, fails = {
        ">": (low > 0, high < margin),
        "=": (-margin < low and high < margin, low > 0 or high < 0),
        ">=": (low > -margin, high < 0),
    }[relation]
    return "holds" if holds else "does not hold" if fails else "undecided"


def combined(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of a claim from those of its expectations."""
    if not verdicts or "not measured yet" in verdicts:
        return "not measured yet"
    if "does not hold" in verdicts:
        return "does not hold"
    return "holds" if set(verdicts) == {"holds"} else "undecided"


# The measures


def difference_of(claim: Claim, left: Variant, right: Variant | None) -> CrossedDifference | None:
    """The measure of a variant less that of another, None for 0, over the seeds and problems that both have.

    On each seed both sides are measured where the one that has spent less in all (tokens, seconds or steps) ends.
    """
    rows: list[dict[str, float]] = []
    for seed, run in left.runs.items():
        sides = [run] if right is None else [run, right.runs[seed]] if seed in right.runs else []
        if sides:
            limit = min(max(spent(side, claim.at).values()) for side in sides)
            ours, *others = map(partial(values_of, claim, limit=limit), sides)
            rows.append({key: ours[key] - sum(o[key] for o in others) for key in ours if all(key in o for o in others)})
    shared = [key for key in rows[0] if all(key in row for row in rows)] if rows else []
    return crossed_difference([[row[key] for key in shared] for row in rows]) if shared else None


def spent(run: RecordedRun, at: str) -> Mapping[int, float]:
    """Step -> tokens, seconds or steps spent up to it."""
    if at == "steps":
        return {int(step): float(step) for step in (0, *(row["step"] for row in run.metrics))}
    return summed(run, _TOTALS[at])


def values_of(claim: Claim, run: RecordedRun, *, limit: float) -> Values:
    """The measure of a run where it has spent `limit`; empty where it was not recorded."""
    totals = spent(run, claim.at)
    if claim.measure in ("accuracy", "speed"):
        points = {
            totals[row["step"]]: result.sampled_by_problem or result.greedy_by_problem
            for row in run.held_out
            if row["step"] in totals and (result := ProblemResults.read(row)) is not None
        }
        spent_X = sorted(points)
        names = [name for name in points[spent_X[0]] if all(name in points[x] for x in spent_X)] if points else []
        if not names or limit <= spent_X[0]:
            return {}
        grid_X = [*(x for x in spent_X if x < limit), limit]
        values_PX = np.array([np.interp(grid_X, spent_X, [points[x][name] for x in spent_X]) for name in names])
        if claim.measure == "speed":
            widths_X = np.diff(grid_X) / (grid_X[-1] - grid_X[0])
            result_P = ((values_PX[:, 1:] + values_PX[:, :-1]) / 2) @ widths_X
        else:
            result_P = values_PX[:, -1]
        start_P = values_PX[:, 0] if claim.grows else np.zeros(len(names))
        return dict(zip(names, (result_P - start_P).tolist(), strict=True))
    is_of_wrong = claim.measure == "wrong_length"
    pairs = wrong_lengths(run.directory) if is_of_wrong else zip(*run.column(claim.measure), strict=True)
    reached = [value for step, value in pairs if totals.get(step, math.inf) <= limit]
    tenth = max(1, len(reached) // _TENTH)
    if reached:
        return {_WHOLE_RUN: fmean(reached[-tenth:]) - (fmean(reached[:tenth]) if claim.grows else 0.0)}
    result = run_metrics(run).get(claim.measure)
    return {_WHOLE_RUN: float(result)} if is_number(result) else {}
