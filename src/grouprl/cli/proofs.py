"""The screens of `grouprl replay`, with `--branch` too, of `grouprl selftest` and of `grouprl check-model`."""

from __future__ import annotations

import math
import time
from pathlib import Path

from rich.table import Table
from rich.text import Text

from grouprl.config.run import RunConfig
from grouprl.models.load import load_tokenizer
from grouprl.record.branches import BranchedCompletion, write_branches
from grouprl.record.files import atomic_write_text, json_text
from grouprl.tools.proof.branches import Selection, branch
from grouprl.tools.proof.changes import as_values, completion_changes, cosine, norm, not_finite, token_changes
from grouprl.tools.proof.checks import Check
from grouprl.tools.proof.model_check import check_model
from grouprl.tools.proof.replay import Replay, ReplayDifference
from grouprl.tools.proof.selftest import selftest
from grouprl.trainer.terminal import Terminal, visible
from grouprl.trainer.verdict import counted

_ROWS = 10


def show_replay(found: Replay, model: str, changes: str, as_json: Path | None) -> None:
    """Prints a replay.

    Args:
        found: the replay.
        model: the path of the run's model, whose tokenizer writes the tokens.
        changes: the changed settings as they were given; "" = none.
        as_json: a file for all values; None = no file.
    """
    terminal = Terminal()
    begin = f"the checkpoint of step {found.start}" if found.start else "the start model"
    again = found.step - 1 - found.start
    learned = f" and {counted(again, 'recorded step')} learned again" if again else ""
    terminal.say(f"Step {found.step} of {found.run}, from {begin}{learned}")
    if found.differences:
        terminal.console.print(_record_table(found))
    terminal.say(_verdict(found))
    if found.other is not None:
        _show_changes(terminal, found, model, changes)
    if as_json is not None:
        atomic_write_text(as_json, json_text(as_values(found), indent=2) + "\n")
        terminal.say(f"All values: {as_json}")


def _record_table(found: Replay) -> Table:
    table = _table("", "values", "not equal", "largest difference", "replayed")
    for one in found.differences:
        value = found.update.metrics.get(one.name)
        table.add_row(
            one.name, f"{one.values:,}", f"{one.differing:,}", _gap(one), "" if value is None else f"{value:.6g}"
        )
    return table


def _gap(one: ReplayDifference) -> str:
    return f"{one.largest:.2g}" if one.differing else "0"


def _verdict(found: Replay) -> str:
    if found.update.error:
        where = ", ".join(f"{group}.{completion}" for group, completion in not_finite(found.update))
        return (
            f"The update of this step fails: {found.update.error}\nCompletions without a finite push: {where or 'none'}"
        )
    if found.is_identical:
        values = sum(one.values for one in found.differences)
        return f"Bit-identical: all {values:,} values equal the record."
    earlier = f", first in step {found.first_difference}" if found.first_difference else ""
    facts = "; ".join(f"{name} {there!r} then, {here!r} here" for name, (there, here) in found.machines.items())
    return f"Not bit-identical{earlier}. The machine: {facts or 'the same as in the record'}."


def _show_changes(terminal: Terminal, found: Replay, model: str, changes: str) -> None:
    other, tokenizer = found.other, load_tokenizer(model)
    assert other is not None
    terminal.say(f"\nWith {changes}:")
    if other.error:
        terminal.say(f"The update fails: {other.error}")
    table = _table("", "recorded", "changed")
    for name in dict.fromkeys((*found.update.metrics, *other.metrics)):
        values = (metrics.get(name) for metrics in (found.update.metrics, other.metrics))
        table.add_row(name, *("-" if value is None else f"{value:.4g}" for value in values))
    terminal.console.print(table)
    angle = cosine(found.update.gradient, other.gradient)
    size = norm(other.gradient) / (norm(found.update.gradient) or math.nan)
    terminal.say(f"Gradients: cosine {angle:.4f}, {size:.4g} times as long.")
    moved = [one for one in completion_changes(found) if one.advantage != one.other_advantage]
    terminal.say(f"{counted(len(moved), 'completion')} with another advantage.")
    table = _table("completion", "problem", "reward", "changed", "advantage", "changed")
    for one in moved[:_ROWS]:
        rewards = ("invalid" if value is None else f"{value:.3f}" for value in (one.reward, one.other_reward))
        advantages = (f"{value:+.3f}" for value in (one.advantage, one.other_advantage))
        table.add_row(f"{one.group}.{one.completion}", Text(one.problem), *rewards, *advantages)
    if moved:
        terminal.console.print(table)
    table = _table("token", "", "share of the push", "changed")
    for token in token_changes(found, _ROWS):
        text = Text(repr(tokenizer.decode([token.token_id])))
        place = f"{token.group}.{token.completion}.{token.position}"
        table.add_row(place, text, f"{token.share:+.3%}", f"{token.other_share:+.3%}")
    terminal.console.print(table)


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
    terminal = Terminal()
    with terminal.status("loading the model"):
        findings = list(check_model(config))
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for one in findings:
        mark = (
            Text("FAIL", "bold red") if one.stops else Text("note", "yellow") if one.remedy else Text("fine", "green")
        )
        table.add_row(one.name, mark, Text(": ".join(filter(None, (one.found, one.remedy)))))
    terminal.console.print(table)
    return not any(one.stops for one in findings)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left", no_wrap=True)
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

        found = branch(run, step, config, selection, learned=lambda _: advance(1), sampled=sampled)
    terminal.say(
        f"Completion {found.group}.{found.completion} of step {step}, {found.problem_id}, reward "
        f"{_number(found.reward)}: {counted(sum(len(token.branches) for token in found.tokens), 'other token')} at "
        f"{len(found.tokens)} of {counted(len(found.token_ids), 'position')}."
    )
    terminal.console.print(_branch_table(found, max(20, terminal.console.width - 52)))
    terminal.say(
        "effect: the reward with the other token, less the recorded one, at the same random numbers; of a position: "
        "the mean by probability. The recorded tokens give the recorded completion and reward again.\n"
        f"Tokens computed: {found.tokens_computed:,}, without reuse {found.tokens_without_prefix:,}; "
        f"{time.perf_counter() - began:.1f} s. All values: {write_branches(run, found)}"
    )


def _branch_table(found: BranchedCompletion, room: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("", "token", "probability", "reward", "effect", "text from there"):
        side = "right" if name in ("", "probability", "reward", "effect") else "left"
        table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
    for token in found.tokens:
        effect = found.effect(token)
        mean, span = "-", ""
        if effect is not None:
            mean, span = f"{effect.mean:+.3f}", f"from {effect.low:+.3f} to {effect.high:+.3f}"
        own = _text(repr(token.token)), f"{token.probability:.1%}", _number(found.reward)
        table.add_row(str(token.position), *own, mean, span, style="bold")
        for one in token.branches:
            change = "-" if one.reward is None or found.reward is None else f"{one.reward - found.reward:+.3f}"
            text = one.text if len(one.text) <= room else f"{one.text[: room - 1]}…"
            numbers = f"{one.probability:.1%}", _number(one.reward), change
            table.add_row("", _text(repr(one.token)), *numbers, _text(text.replace("\n", "⏎")))
    return table


def _text(text: str) -> Text:
    return Text(visible(text))


def _number(reward: float | None) -> str:
    return "invalid" if reward is None else f"{reward:.3f}"
