"""Does this data fit this model? Samples some problems: how many groups will have a signal, and at what cost."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean

from rich.console import Console

from grouprl.config.run import RunConfig
from grouprl.evaluation.statistics import score_interval, wilson_interval
from grouprl.leaves import leaf
from grouprl.record.files import atomic_write_text, json_text
from grouprl.rewards.configured import beside_environment, check_rewards, configured_scorer
from grouprl.rollout.episodes import open_conversations
from grouprl.run.machine import with_dtype
from grouprl.run.opened import OpenedRun
from grouprl.tasks.mixture import Mixture
from grouprl.tools.check_data.estimate import (
    GRID_K,
    Array,
    departures,
    pass_rate_weights,
    signal_chance,
    signal_interval,
    subset_signal,
)
from grouprl.tools.check_data.findings import FEWEST, GROUP_SIZES, DataCheck, GroupCost, ProblemCheck
from grouprl.tools.check_data.screen import show
from grouprl.trainer.terminal import Terminal
from grouprl.types import Group, Problem, RewardOutcome, StopReason, UserError, counted


def check_data(
    config: RunConfig,
    *,
    problems: int = 200,
    samples: int = 16,
    band: tuple[float, float] = (0.1, 0.9),
    write: Path | None = None,
    page: Path | None = None,
    as_json: bool = False,
) -> DataCheck:
    """Tries the data of a run (see `try_data`), prints what was found, and writes files that are asked for.

    Args:
        config: the run.
        problems, samples, band: see `try_data`.
        write: a new file for the problems inside the band, which `rollout.curriculum.chosen` reads.
        page: a new file for the page of the check, which opens without a server.
        as_json: whether to print one JSON object instead of tables.

    Raises:
        UserError: a file exists, or there is nothing to check, before anything is sampled; or fewer than 20 problems
            are in the band of `write`.
    """
    for option, file in (("--write", write), ("--page", page)):
        if file is not None and file.exists():
            raise UserError(f"{option}: expected a new file, got {file}, which is there: give another name")
        if file is not None and not file.absolute().parent.is_dir():
            raise UserError(f"{option}: expected a file in a folder that is there, got {file}: make the folder first")
    run, terminal = OpenedRun(with_dtype(config)), Terminal(errors=as_json)
    if write is not None and run.task.verifier is None:
        raise UserError("--write: expected a task with a verifier, got none: pass rates need right and wrong answers")
    if write is not None and (isinstance(run.task, Mixture) or not run.task.problems("train")[0].prompt_text):
        raise UserError(
            "--write: expected one task whose problems have prompts of their own, got a mixture, or prompts that an "
            "environment gives: leave it out"
        )
    checked = try_data(run, terminal, problems=problems, samples=samples, band=band)
    if as_json:
        print(json_text(checked.as_values()))
    else:
        show(Console(highlight=False), checked)
    if page is not None:
        leaf("data_page")(page, checked.as_values())
        terminal.say(f"Page: {page}")
    if write is not None:
        if len(checked.inside) < FEWEST:
            raise UserError(
                f"--write: expected at least {FEWEST} problems whose pass rate is in {band[0]:g} to {band[1]:g}, got "
                f"{len(checked.inside)} of {len(checked.problems)}: widen --band, or try more --problems"
            )
        rows = [json_text(check.as_row()) for check in checked.inside]
        atomic_write_text(write, "".join(f"{row}\n" for row in rows))
        terminal.say(f"{counted(len(rows), 'problem')} with pass rates of {band[0]:g} to {band[1]:g}: {write}")
    return checked


def try_data(
    run: OpenedRun,
    terminal: Terminal,
    *,
    problems: int = 200,
    samples: int = 16,
    band: tuple[float, float] = (0.1, 0.9),
) -> DataCheck:
    """Samples train problems and scores them as a step of the run would.

    Args:
        run: gives the model, the task, the rewards, the sampling parameters and the group size.
        terminal: shows the progress.
        problems: how many, chosen at random by the seed; all where the task has fewer.
        samples: M, completions of each, at least 2.
        band: pass rates of the problems to train on, each in [0, 1].

    Raises:
        UserError: the band is none, there are fewer than two problems, or no completion has a valid reward.
    """
    if not 0 <= band[0] < band[1] <= 1:
        raise UserError(f"--band: expected two pass rates such as 0.1 0.9, the lower one first, got {band}")
    config, all_problems = run.config, run.task.problems("train")
    if len(all_problems) < 2:
        raise UserError(f"task: expected at least 2 problems to train on, got {len(all_problems)}: give more data")
    group_size = config.rollout.group_size
    rng = random.Random(f"check_data/{config.seed}")  # the first problems may be the easiest
    indices = rng.sample(range(len(all_problems)), min(problems, len(all_problems)))
    tried = [all_problems[index] for index in sorted(indices)]
    with terminal.progress("check-data", len(tried) * samples) as advance:
        groups, outcomes, seconds = _sampled(run, tried, samples, advance)
    totals = [[outcome.total for outcome in row if outcome.valid] for row in outcomes]
    if not any(totals):
        reason = outcomes[0][0].reason
        raise UserError(f"rewards: expected completions with a valid reward, got none, because {reason}: repair it")
    lengths = [[len(completion) for completion in group.completions] for group in groups]
    seconds_per_token = seconds / sum(map(sum, lengths))
    others, valid = [*map(departures, totals)], [*map(len, totals)]
    signal_PK = pass_rate_weights(others, valid, folded=True)
    verdicts = [[float(outcome.correct) for outcome in row if outcome.correct is not None] for row in outcomes]
    answer_PK = pass_rate_weights([*map(departures, verdicts)], [*map(len, verdicts)], folded=True)
    checks = _problem_checks(tried, verdicts, lengths, signal_chance(signal_PK, group_size).tolist())
    costs = []
    for size in sorted({*GROUP_SIZES, group_size}):
        chances, is_unbiased = _chances(totals, signal_PK, size)
        interval = score_interval(chances) if is_unbiased else signal_interval(others, valid, size)
        share = fmean(chances)
        tokens = size * fmean(map(fmean, lengths)) / share if share else None
        paid = None if tokens is None else tokens * seconds_per_token
        answers = fmean(_chances(verdicts, answer_PK, size)[0]) if any(verdicts) else None
        costs.append(GroupCost(size, share, interval, is_unbiased, tokens, paid, answers))
    stops = [completion.stop_reason for group in groups for completion in group.completions]
    rates = [check.correct / check.samples for check in checks if check.correct is not None]
    return DataCheck(
        task=run.task.name,
        model=config.model.path,
        train_problems=len(all_problems),
        samples=samples,
        group_size=group_size,
        max_tokens=config.rollout.max_tokens,
        band=band,
        problems=checks,
        groups=tuple(costs),
        pass_rate=fmean(rates) if rates else None,
        pass_interval=score_interval(rates) if rates else None,
        truncated=stops.count(StopReason.LENGTH) / len(stops),
        tokens_per_second=1 / seconds_per_token,
    )


def _sampled(
    run: OpenedRun, problems: Sequence[Problem], samples: int, advance: Callable[[int], None]
) -> tuple[list[Group], list[tuple[RewardOutcome, ...]], float]:
    """Groups and outcomes of problems, as many at a time as in a step of the run; and the seconds of sampling."""
    config, groups, outcomes, seconds = run.config, list[Group](), list[tuple[RewardOutcome, ...]](), 0.0
    with ExitStack() as stack:
        conversations = stack.enter_context(open_conversations(config, run.task))
        gives_reward = getattr(conversations, "gives_reward", None)
        rewards = beside_environment(config, run.task, run.rewards, gives_reward)
        check_rewards(config, run.task, rewards)
        # With max_invalid=1 the check continues where a run would stop.
        scorer = stack.enter_context(configured_scorer(config, run.task, rewards, max_invalid=1.0))
        scorer.check_columns(problems)
        engine = run.engine(run.model, conversations)
        for first in range(0, len(problems), config.rollout.problems_per_step):
            visits = [(problem, "") for problem in problems[first : first + config.rollout.problems_per_step]]
            requests = run.requests(visits, samples, conversations)
            started = time.perf_counter()
            sampled = engine.generate(requests, run.sampling, on_finished=advance)
            seconds += time.perf_counter() - started
            scorer.begin_step(1)
            outcomes += scorer.finish([scorer.begin(group) for group in sampled], run.tokenizer)
            groups += sampled
    return groups, outcomes, seconds


def _chances(values: Sequence[Sequence[float]], weights_PK: Array, size: int) -> tuple[list[float], bool]:
    """Of each problem's next group, the chance that its values differ; and whether it needed no distribution."""
    if size <= min(map(len, values)):
        return [subset_signal(row, size) for row in values], True
    return signal_chance(weights_PK, size).tolist(), False


def _problem_checks(
    problems: Sequence[Problem],
    verdicts: Sequence[Sequence[float]],
    lengths: Sequence[Sequence[int]],
    signals: Sequence[float],
) -> tuple[ProblemCheck, ...]:
    counts, samples = [round(sum(row)) for row in verdicts], [len(row) for row in verdicts]
    rates = (pass_rate_weights(counts, samples) @ GRID_K).tolist()
    return tuple(
        ProblemCheck(
            problem,
            samples=tries or len(lengths[index]),
            correct=count if tries else None,
            interval=wilson_interval(count, tries) if tries else None,
            pass_rate=rates[index] if tries else None,
            signal=signals[index],
            mean_tokens=fmean(lengths[index]),
        )
        for index, (problem, count, tries) in enumerate(zip(problems, counts, samples, strict=True))
    )
