"""What a check of data finds, and what it advises."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from grouprl.tasks.curriculum import SOLVED
from grouprl.types import Problem, counted

GROUP_SIZES = (4, 8, 16, 32, 64)
FEWEST = 20  # problems of a band that are worth a training
MOSTLY = 0.5
_BINS = ("never", "to 10 %", "to 30 %", "to 50 %", "to 70 %", "to 90 %", "above", "always")
_ENDS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
_LONGEST = 1_000  # characters of a question


@dataclass(frozen=True)
class ProblemCheck:
    """What M completions of a problem say about it."""

    problem: Problem
    samples: int  # with a verdict; without a verifier all
    correct: int | None  # None = the task has no verifier
    interval: tuple[float, float] | None  # 95 %, of the pass rate, from this problem alone
    pass_rate: float | None  # in [0, 1], with what the other problems say of the distribution
    signal: float  # chance that a group of the run's size has a signal, with that too
    mean_tokens: float

    def is_inside(self, band: tuple[float, float]) -> bool:
        """Whether its pass rate lies in a band, ends included."""
        return self.pass_rate is not None and band[0] <= self.pass_rate <= band[1]

    def as_row(self) -> dict[str, Any]:
        """A line for `rollout.curriculum.chosen`, which reads the prompt; the rest is for people."""
        rate = None if self.pass_rate is None else round(self.pass_rate, 4)
        prompt = self.problem.prompt_text
        return {"prompt": prompt, "pass_rate": rate, "weight": round(self.signal, 4), "id": self.problem.id}


@dataclass(frozen=True)
class GroupCost:
    """Groups of one size over all problems that were tried."""

    group_size: int
    signal: float  # share of the groups whose rewards differ, in [0, 1]
    interval: tuple[float, float]  # 95 %, over problems
    is_unbiased: bool  # group_size is at most M; else it comes from the distribution of pass rates
    tokens: float | None  # sampled for one group with a signal; None = there is none
    seconds: float | None  # of sampling them here, as fast as the check did
    answers: float | None  # share of the groups with right and wrong answers; None = the task has no verifier

    @property
    def taught(self) -> float:
        """The share that counts for advice: with right and wrong answers, if most others differ in form alone."""
        return self.signal if self.answers is None or self.answers >= self.signal / 2 else self.answers


@dataclass(frozen=True)
class DataCheck:
    """The whole check."""

    task: str
    model: str
    train_problems: int  # of the task
    samples: int  # M
    group_size: int  # of the run
    max_tokens: int  # of the run
    band: tuple[float, float]
    problems: tuple[ProblemCheck, ...]
    groups: tuple[GroupCost, ...]
    pass_rate: float | None  # mean over problems
    pass_interval: tuple[float, float] | None
    truncated: float  # share of completions that reach rollout.max_tokens
    tokens_per_second: float  # sampled

    @property
    def inside(self) -> tuple[ProblemCheck, ...]:
        """The problems in the band."""
        return tuple(problem for problem in self.problems if problem.is_inside(self.band))

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do before a training, the most pressing first; each a sentence."""
        run_groups = next(cost for cost in self.groups if cost.group_size == self.group_size)
        sentences = []
        if self.truncated > MOSTLY:
            sentences.append(
                f"{self.truncated:.0%} of the completions reach rollout.max_tokens={self.max_tokens} without an end: "
                "raise it, say where they end (rollout.stop), or show the model the form first (grouprl sft)."
            )
        if self.pass_rate is not None and max(check.correct or 0 for check in self.problems) == 0:
            sentences.append(
                f"No completion of {len(self.problems) * self.samples:,} is correct: these problems teach nothing yet. "
                "Begin with a cold start (grouprl sft), or with easier problems."
            )
            return tuple(sentences)
        solved = fmean(check.pass_rate is not None and check.pass_rate >= SOLVED for check in self.problems)
        if solved > MOSTLY:
            sentences.append(f"The model solves {solved:.0%} of these problems nearly always: take harder ones.")
        if run_groups.taught < run_groups.signal:
            sentences.append(
                f"{run_groups.signal:.0%} of the groups of {self.group_size} will have a signal, but only "
                f"{run_groups.answers:.0%} have right and wrong answers: the others learn from the other rewards alone."
            )
        enough = next((cost for cost in self.groups if cost.taught >= MOSTLY), None)
        if run_groups.taught >= MOSTLY:
            sentences.append(f"It fits: {run_groups.signal:.0%} of the groups of {self.group_size} will have a signal.")
        elif enough is not None and enough.group_size > self.group_size:
            sentences.append(
                f"rollout.group_size={enough.group_size} gives {enough.taught:.0%} of the groups such a signal; "
                f"{self.group_size} gives {run_groups.taught:.0%}."
            )
        inside = self.inside
        if run_groups.taught < MOSTLY and len(inside) >= FEWEST:
            share = fmean(check.signal for check in inside)
            sentences.append(
                f"Train on the {len(inside)} problems whose pass rate is in {self.band[0]:g} to {self.band[1]:g}: "
                f"{share:.0%} of their groups of {self.group_size} will have a signal (--write FILE.jsonl, then "
                "rollout.curriculum.chosen=FILE.jsonl)."
            )
        elif run_groups.taught < MOSTLY and self.pass_rate is not None:
            sentences.append(
                f"Only {counted(len(inside), 'problem')} of {len(self.problems)} have a pass rate in {self.band[0]:g} "
                f"to {self.band[1]:g}: begin with a cold start (grouprl sft), or try more --problems."
            )
        return tuple(sentences)

    def as_values(self) -> dict[str, Any]:
        """All values for JSON, with the id and the last message of each problem."""
        rows = [
            {**vars(check), "problem": check.problem.id, "question": _question(check.problem)[:_LONGEST]}
            for check in self.problems
        ]
        values = asdict(replace(self, problems=()))
        return {**values, "problems": rows, "advice": self.advice, "histogram": self.histogram}

    @property
    def histogram(self) -> dict[str, int]:
        """Problems by the share of their completions that are correct; empty without a verifier."""
        counts = dict.fromkeys(_BINS, 0)
        for check in self.problems:
            if check.correct is None:
                return {}
            share = check.correct / check.samples
            counts[_BINS[bisect_left(_ENDS, share) + (share == 1)]] += 1
        return counts


def _question(problem: Problem) -> str:
    return problem.prompt if isinstance(problem.prompt, str) else problem.prompt[-1]["content"]
