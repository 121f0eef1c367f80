"""The screens of `grouprl replay`, with `--branch` too, of `grouprl selftest` and of `grouprl check-model`."""

from __future__ import annotations

import math
import time
from pathlib import Path

from rich.table import Table
from rich.text import Text

from grouprl.config.run import RunConfig
from grouprl.models.load import load_tokenizer
from grouprl.record.branches import write_branches
from grouprl.record.files import atomic_write_text, json_text
from grouprl.tools.proof.branches import Selection, branch
from grouprl.tools.proof.changes import as_values, completion_changes, cosine, norm, not_finite, token_changes
from grouprl.tools.proof.checks import Check
from grouprl.tools.proof.model_check import ModelLine, check_model
from grouprl.tools.proof.replay import Replay
from grouprl.tools.proof.selftest import selftest
from grouprl.trainer.terminal import Terminal, visible
from grouprl.types import counted

_ROWS = 10
# What check-model does after each of these lines.
_AFTERWARDS = {
    "form": "comparing log-probs of long prompts",
    "learner gap": "comparing sampled log-probs",
    "sampler gap": "reading tokenizer and template",
    "LoRA targets": "planning memory",
}


def show_replay(replay: Replay, model: str, changes: str, as_json: Path | None) -> None:
    """Prints a replay.

    Args:
        replay: what was recomputed, beside the record.
        model: the path of the run's model, whose tokenizer writes the tokens.
        changes: the changed settings as they were given; "" = none.
        as_json: a file for all values; None = no file.
    """
    terminal = Terminal()
    begin = f"the checkpoint of step {replay.start}" if replay.start else "the start model"
    again = replay.step - 1 - replay.start
    learned = f" and {counted(again, 'recorded step')} learned again" if again else ""
    terminal.say(f"Step {replay.step} of {replay.run}, from {begin}{learned}")
    if replay.differences:
        table = _table("", "values", "not equal", "largest difference", "replayed")
        for difference in replay.differences:
            value = replay.update.metrics.get(difference.name)
            gap = f"{difference.largest:.2g}" if difference.differing else "0"
            shown = "" if value is None else f"{value:.6g}"
            table.add_row(difference.name, f"{difference.values:,}", f"{difference.differing:,}", gap, shown)
        terminal.console.print(table)
    if replay.update.error:
        where = ", ".join(f"{group}.{completion}" for group, completion in not_finite(replay.update)) or "none"
        terminal.say(f"The update of this step fails: {replay.update.error}")
        terminal.say(f"Completions without a finite push: {where}")
    elif replay.is_identical:
        count = sum(difference.values for difference in replay.differences)
        terminal.say(f"Bit-identical: all {count:,} values equal the record.")
    else:
        earlier = f", first in step {replay.first_difference}" if replay.first_difference else ""
        facts = "; ".join(f"{name} {there!r} then, {here!r} here" for name, (there, here) in replay.machines.items())
        terminal.say(f"Not bit-identical{earlier}. The machine: {facts or 'the same as in the record'}.")
    if replay.other is not None:
        other, tokenizer = replay.other, load_tokenizer(model)
        terminal.say(f"\nWith {changes}:")
        if other.error:
            terminal.say(f"The update fails: {other.error}")
        table = _table("", "recorded", "changed")
        for name in dict.fromkeys((*replay.update.metrics, *other.metrics)):
            values = (metrics.get(name) for metrics in (replay.update.metrics, other.metrics))
            table.add_row(name, *("-" if value is None else f"{value:.4g}" for value in values))
        terminal.console.print(table)
        angle = cosine(replay.update.gradient, other.gradient)
        size = norm(other.gradient) / (norm(replay.update.gradient) or math.nan)
        terminal.say(f"Gradients: cosine {angle:.4f}, {size:.4g} times as long.")
        moved = [change for change in completion_changes(replay) if change.advantage != change.other_advantage]
        terminal.say(f"{counted(len(moved), 'completion')} with another advantage.")
        table = _table("completion", "problem", "reward", "changed", "advantage", "changed")
        for change in moved[:_ROWS]:
            rewards = ("invalid" if value is None else f"{value:.3f}" for value in (change.reward, change.other_reward))
            advantages = (f"{value:+.3f}" for value in (change.advantage, change.other_advantage))
            table.add_row(f"{change.group}.{change.completion}", Text(change.problem), *rewards, *advantages)
        if moved:
            terminal.console.print(table)
        table = _table("token", "", "share of the push", "changed")
        for token in token_changes(replay, _ROWS):
            text = Text(repr(tokenizer.decode([token.token_id])))
            name = f"{token.group}.{token.completion}.{token.position}"
            table.add_row(name, text, f"{token.share:+.3%}", f"{token.other_share:+.3%}")
        terminal.console.print(table)
    if as_json is not None:
        atomic_write_text(as_json, json_text(as_values(replay), indent=2) + "\n")
        terminal.say(f"All values: {as_json}")


def show_selftest(config: RunConfig) -> bool:
    """Prints a table of the checks; returns whether all passed."""
    terminal, began = Terminal(), time.perf_counter()
    checks, seconds = list[Check](), list[float]()
    with terminal.status("checking"):
        for check in selftest(config):
            checks.append(check)
            seconds.append(time.perf_counter() - began - sum(seconds))
    table = _table("check", "difference", "tolerance", "", "seconds")
    table.add_column()
    for check, took in zip(checks, seconds, strict=True):
        mark = Text("pass", "green") if check.passed else Text("FAIL", "bold red")
        table.add_row(check.name, f"{check.difference:.2g}", f"{check.tolerance:.2g}", mark, f"{took:.1f}", check.note)
    terminal.console.print(table)
    failed = sum(not check.passed for check in checks)
    terminal.say(f"{counted(len(checks), 'check')}, {failed or 'none'} failed, in {sum(seconds):.0f} s.")
    return not failed


def show_model_check(config: RunConfig) -> bool:
    """Prints what there is to know about a model; returns whether a run can train it."""
    terminal, findings = Terminal(), list[ModelLine]()
    with terminal.status("loading the model, and comparing its log-probs in both forms") as change:
        for finding in check_model(config):
            findings.append(finding)
            if finding.name in _AFTERWARDS:
                change(_AFTERWARDS[finding.name])
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for finding in findings:
        mark = (
            Text("FAIL", "bold red")
            if finding.stops
            else Text("note", "yellow")
            if finding.remedy
            else Text("fine", "green")
        )
        table.add_row(finding.name, mark, Text(": ".join(filter(None, (finding.found, finding.remedy)))))
    terminal.console.print(table)
    return not any(finding.stops for finding in findings)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    return table


# Branches


def show_branches(run: Path, step: int, config: RunConfig, selection: Selection) -> None:
    """Samples the branches of a completion, prints them, and writes them into the run's directory."""
    terminal, began, ended = Terminal(), time.perf_counter(), 0
    terminal.say(
        f"At most {selection.tokens} positions with the largest entropy (--tokens), at each at most "
        f"{selection.alternatives} other tokens (--alternatives) of a probability of {selection.least:g} or more "
        "(--least)."
    )
    with terminal.progress(f"weights before step {step}", step) as advance:

        def sampled(count: int, total: int) -> None:
            nonlocal ended
            ended += count
            advance(0, f"branches: {ended} of {total}")

        branched = branch(run, step, config, selection, learned=lambda _: advance(1), sampled=sampled)
    count = sum(len(token.branches) for token in branched.tokens)
    terminal.say(
        f"Completion {branched.group}.{branched.completion} of step {step}, {branched.problem_id}, reward "
        f"{_number(branched.reward)}: {counted(count, 'other token')} at "
        f"{len(branched.tokens)} of {counted(len(branched.token_ids), 'position')}."
    )
    room = max(20, terminal.console.width - 52)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("", "token", "probability", "reward", "effect", "text from there"):
        side = "right" if name in ("", "probability", "reward", "effect") else "left"
        table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
    for token in branched.tokens:
        effect = branched.effect(token)
        mean, span = "-", ""
        if effect is not None:
            mean, span = f"{effect.mean:+.3f}", f"from {effect.low:+.3f} to {effect.high:+.3f}"
        recorded = _text(repr(token.token)), f"{token.probability:.1%}", _number(branched.reward)
        table.add_row(str(token.position), *recorded, mean, span, style="bold")
        for other in token.branches:
            rewards = other.reward, branched.reward
            change = "-" if rewards[0] is None or rewards[1] is None else f"{rewards[0] - rewards[1]:+.3f}"
            text = other.text if len(other.text) <= room else f"{other.text[: room - 1]}…"
            numbers = f"{other.probability:.1%}", _number(other.reward), change
            table.add_row("", _text(repr(other.token)), *numbers, _text(text.replace("\n", "⏎")))
    terminal.console.print(table)
    terminal.say(
        "effect: the reward with the other token, less the recorded one, at the same random numbers; of a position: "
        "the mean by probability. The recorded tokens give the recorded completion and reward again.\n"
        f"Tokens computed: {branched.tokens_computed:,}, without reuse {branched.tokens_without_prefix:,}; "
        f"{time.perf_counter() - began:.1f} s. All values: {write_branches(run, branched)}"
    )


def _text(text: str) -> Text:
    return Text(visible(text))


def _number(reward: float | None) -> str:
    return "invalid" if reward is None else f"{reward:.3f}"
