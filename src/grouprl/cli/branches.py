"""The screen of `grouprl replay RUN STEP --branch`."""

from __future__ import annotations

import time
from pathlib import Path

from rich.table import Table
from rich.text import Text

from grouprl.config.run import RunConfig
from grouprl.record.branches import BranchedCompletion, write_branches
from grouprl.run.terminal import Terminal, visible
from grouprl.run.verdict import counted
from grouprl.tools.proof.branches import Selection, branch


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
    terminal.console.print(_table(found, max(20, terminal.console.width - 52)))
    terminal.say(
        "effect: the reward with the other token, less the recorded one, at the same random numbers; of a position: "
        "the mean by probability. The recorded tokens give the recorded completion and reward again.\n"
        f"Tokens computed: {found.tokens_computed:,}, without reuse {found.tokens_without_prefix:,}; "
        f"{time.perf_counter() - began:.1f} s. All values: {write_branches(run, found)}"
    )


def _table(found: BranchedCompletion, room: int) -> Table:
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
