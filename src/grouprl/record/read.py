"""Reads a run directory, finished or not, without torch; docs/run_directory.md describes every file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from grouprl.files import is_number, opened, parse_object, read_json, read_text
from grouprl.record.layout import RunDirectory, refuse_links, run_at
from grouprl.record.queries import completion_rows, recorded_counts
from grouprl.record.rollouts import open_recorded
from grouprl.record.rows import checked_rows, numbers, parsed, token_advantages, truth
from grouprl.types import (
    Completion,
    Episode,
    Group,
    Problem,
    RewardOutcome,
    StepReward,
    StopReason,
    TokenTrace,
    UserError,
)

Row = Mapping[str, Any]
_MOST_LINES = 1_000_000  # of a JSON-lines file; a row takes a kilobyte of memory or more
_STEPS = 1 << 53  # largest whole number in JavaScript


@dataclass(frozen=True)
class Example:
    """A held-out problem with a completion, recorded before and after training to show the change."""

    problem_id: str
    prompt: str
    answer: str  # the right answer; empty when the problem has none
    completion: str
    correct: bool | None  # None = the verifier failed, or does not measure the run
    reward: float | None = None  # None = invalid, or not recorded


@dataclass(frozen=True)
class RecordedRewards:
    """The rewards of a run, with their weights by name."""

    weights: Mapping[str, float]  # weight of each reward in the total
    process: Mapping[str, float]  # weight of each process reward on its steps


@dataclass(frozen=True)
class RecordedRun:
    """Everything in a run directory except the rollouts. Parts that the run has not written yet are empty."""

    directory: Path
    config: str  # YAML text
    metrics: tuple[Row, ...]  # one per step, ascending
    evaluations: tuple[Row, ...]
    held_out: tuple[Row, ...]  # results of each problem in those evaluations
    examples: Mapping[str, tuple[Example, ...]]  # by "before", "step N" and "after"
    summary: Row

    def column(self, name: str) -> tuple[list[int], list[float]]:
        """Returns the steps at which metric `name` was recorded as a finite number, and its values there."""
        pairs = [(row["step"], float(row[name])) for row in self.metrics if is_number(row.get(name))]
        return [step for step, _ in pairs], [value for _, value in pairs]

    def results(self, when: str) -> Row:
        """Returns the results of the evaluation "before" or "after" training; empty when it is missing."""
        return {name: value for name, value in (self.summary.get(when) or {}).items() if value is not None}


def measure_of(summary: Row, evaluations: Sequence[Row]) -> str:
    """What measures a run, as its summary says or its evaluations show: "greedy_accuracy", or its own mean "reward"."""
    by_reward, judged = (any(name in row for row in evaluations) for name in ("reward", "greedy_accuracy"))
    measure = summary.get("measure") or (by_reward and not judged and "reward")
    return "reward" if measure == "reward" else "greedy_accuracy"


def read_run(directory: str | Path) -> RecordedRun:
    """Reads everything but the rollouts.

    Raises:
        UserError: `directory` is not a run directory, or a file of it is damaged (an incomplete last line is skipped).
    """
    directory = run_at(directory)
    run = RunDirectory(directory)
    refuse_links(directory)
    return RecordedRun(
        directory=directory,
        config=read_text(run.config) or "",
        metrics=read_json_lines(run.metrics),
        evaluations=read_json_lines(run.evaluations),
        held_out=read_json_lines(run.held_out),
        examples=read_examples(run.examples),
        summary=read_summary(directory),
    )


def read_json_lines(path: Path) -> tuple[dict[str, Any], ...]:
    """Reads a JSON-lines file of a run; empty when it does not exist. Skips an incomplete last line.

    Raises:
        UserError: a line, which the error names, is not a JSON object with a `step`, or of another run; or there are
            too many.
    """
    with opened(path) as file:
        rows = () if file is None else tuple(rows_of(file, path))
    run = run_identifier(path.parent) if any("run" in row for row in rows) else None
    for number, row in enumerate(rows, start=1):
        refuse_foreign(row, run, f"{path}:{number}")
    return rows


def refuse_foreign(contents: dict[str, Any], run: str | None, where: object) -> None:
    """Takes the id of the run that wrote them out of the contents of a file, or of a line; `run` is that of the folder.

    Raises:
        UserError: they are two: the file belongs to another run.
    """
    writer = contents.pop("run", None)
    if None not in (writer, run) and writer != run:
        raise UserError(
            f"{where}: expected a record of this run ({run}), got one of the run {writer!r:.40}: restore the file, "
            "or remove it"
        )


def run_identifier(directory: Path) -> str | None:
    """The id of a run, by which its files and checkpoints belong to it; None when it recorded none.

    Raises:
        UserError: code.json is damaged.
    """
    run = read_json(RunDirectory(directory).code).get("run")
    return None if run is None else str(run)


def rows_of(file: IO[bytes], path: Path, first: int = 1) -> Iterator[dict[str, Any]]:
    """Yields the rows of the whole lines from here on, the next of which has the number `first`.

    Raises:
        UserError: see `read_json_lines`.
    """
    for number, line in enumerate(file, start=first):
        if number > _MOST_LINES:
            raise UserError(f"{path}: expected at most {_MOST_LINES} lines, got more: restore the file")
        if line.endswith(b"\n"):
            where = f"{path}:{number}"
            row = parse_object(line[:-1].decode("utf-8", "replace"), where)
            step = row.get("step")
            if type(step) is not int or not 0 <= step < _STEPS:
                raise UserError(f"{where}: expected a step, a whole number from 0, got {step!r:.60}: restore the file")
            yield row


def read_summary(directory: str | Path) -> dict[str, Any]:
    """Reads a run's summary.json; empty when the run has not written it yet.

    Raises:
        UserError: the file is damaged, or of another run.
    """
    path = RunDirectory(directory).summary
    summary = read_json(path)
    refuse_foreign(summary, run_identifier(path.parent), path)
    for when in ("before", "after"):
        if not isinstance(summary.get(when, {}), dict | None):
            raise UserError(
                f"{path}: {when}: expected the results of an evaluation, got "
                f"{summary[when]!r:.60}: restore the file or remove it"
            )
    return summary


def read_rewards(directory: Path) -> RecordedRewards:
    """Reads the weights in a run's rewards.json; empty when the run has not written it.

    Raises:
        UserError: the file is damaged.
    """
    path = RunDirectory(directory).rewards
    contents = {"weights": {}, "process": {}} | read_json(path)
    for weights in (contents["weights"], contents["process"]):
        if not isinstance(weights, dict) or not all(map(is_number, weights.values())):
            raise UserError(
                f"{path}: expected the weight of each reward by its name, got {weights!r:.60}: restore the file"
            )
    return RecordedRewards(contents["weights"], contents["process"])


def read_examples(path: Path) -> dict[str, tuple[Example, ...]]:
    """Reads the held-out problems of examples.json by "before", "step N" and "after"; empty without the file.

    Raises:
        UserError: the file has other contents, is of another run, or cannot be read.
    """
    contents = read_json(path)
    refuse_foreign(contents, run_identifier(path.parent), path)
    try:
        return {when: tuple(Example(**row) for row in rows) for when, rows in contents.items()}
    except TypeError as error:
        raise UserError(f"{path}: expected lists of examples ({error}): restore the file or remove it") from None


# The rollouts


@dataclass(frozen=True)
class RecordedGroup:
    """A group of a run: completions, reward outcomes, advantages and traces."""

    group: Group  # log-probs as float32; columns that JSON does not have are text
    outcomes: tuple[RewardOutcome, ...]
    advantages: tuple[float, ...]  # mean over each completion's tokens
    token_advantages: tuple[tuple[float, ...], ...]
    traces: tuple[TokenTrace, ...]
    kept: bool = True  # whether the group entered the loss


def read_rollouts(directory: str | Path, step: int) -> tuple[RecordedGroup, ...]:
    """Reads the groups of one step, in order; empty when the step is not recorded.

    Raises:
        UserError: `directory` has no rollouts.sqlite, or it is damaged.
    """
    directory = Path(directory).expanduser()
    path = RunDirectory(directory).rollouts
    with closing(open_recorded(directory)) as database:
        database.row_factory = checked_rows(path)
        rows = completion_rows(database, "*", step)
    groups: list[RecordedGroup] = []
    for _, members in groupby(rows, key=lambda row: row["group_index"]):
        group_rows = list(members)
        completions: list[Completion] = []
        outcomes: list[RewardOutcome] = []
        for row in group_rows:
            try:
                episode = None if row["episode"] is None else Episode.of(parsed(path, row, "episode"))
            except (TypeError, KeyError, AttributeError) as error:
                raise UserError(
                    f"{path}: expected the episode of a completion, got {error}: restore the file"
                ) from error
            completion = Completion(
                index=row["completion_index"],
                token_ids=numbers(row["token_ids"], "<i4"),
                logprobs=numbers(row["logprobs"], "<f4"),
                plain_logprobs=numbers(row["plain_logprobs"], "<f4"),
                text=row["text"],
                stop_reason=StopReason(row["stop_reason"]),
                weights_version=row["weights_version"],
                episode=episode,
            )
            completions.append(completion)
            components = parsed(path, row, "components")
            earned = math.nan if row["earned"] is None else row["earned"]
            steps = tuple(StepReward(end, reward) for end, reward in parsed(path, row, "step_rewards") or ())
            extra, reason = parsed(path, row, "extra") or {}, row["invalid_reason"] or ""
            outcomes.append(RewardOutcome(earned, components, reason, steps, truth(row["correct"]), extra))
        head = group_rows[0]
        messages = parsed(path, head, "messages")
        prompt = head["prompt"] if messages is None else tuple(messages)
        problem = Problem(head["problem_id"], prompt, parsed(path, head, "columns"))
        traces = (
            TokenTrace(*(None if row[name] is None else numbers(row[name], "<f4") for name in _TRACED))
            for row in group_rows
        )
        group = RecordedGroup(
            group=Group(problem, numbers(head["prompt_ids"], "<i4"), tuple(completions)),
            outcomes=tuple(outcomes),
            advantages=tuple(row["advantage"] for row in group_rows),
            token_advantages=tuple(token_advantages(row) for row in group_rows),
            traces=tuple(traces),
            kept=bool(head["kept"]),
        )
        groups.append(group)
    return tuple(groups)


_TRACED = ("learner_logprobs", "entropies", "reference_logprobs", "updated_logprobs", "old_logprobs")


_COUNTED = ("groups/sampled", "completion_tokens")


def incomplete_steps(directory: Path, until: int, *, evaluated: bool = True) -> tuple[int, ...]:
    """Returns the steps of 0 to `until` that are not recorded, or recorded in part, ascending.

    A step is whole with one line in metrics.jsonl, and with the groups and tokens in rollouts.sqlite that it names;
    step 0, of a run that is `evaluated`, with the evaluation before training.

    Raises:
        UserError: a file is damaged.
    """
    files = RunDirectory(directory)
    before = not evaluated or any(row["step"] == 0 for row in read_json_lines(files.evaluations))
    lines = read_json_lines(files.metrics)
    times, rows = Counter(row["step"] for row in lines), {row["step"]: row for row in lines}
    counted = recorded_counts(directory, until)
    lacking = tuple(
        step
        for step in range(1, until + 1)
        if times[step] != 1 or counted.get(step) != tuple(rows[step].get(name) for name in _COUNTED)
    )
    return lacking if before or not until else (0, *lacking)
