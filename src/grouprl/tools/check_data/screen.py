"""The screen of `grouprl check-data`: pass rates as bars, what groups of each size cost, advice."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from grouprl.tools.check_data.findings import DataCheck
from grouprl.trainer.terminal import visible
from grouprl.trainer.verdict import duration
from grouprl.types import counted

_WIDTH = 40  # characters of the longest bar


def show(console: Console, checked: DataCheck) -> None:
    """Prints all findings; it fits a terminal of 80 columns."""
    tried = f"{counted(len(checked.problems), 'problem')} of {checked.train_problems:,}"
    title = f"{checked.task} for {checked.model}: {tried}, {counted(checked.samples, 'completion')} each"
    console.print(Text(visible(title), style="bold"))
    if checked.pass_rate is not None and checked.pass_interval is not None:
        low, high = checked.pass_interval
        console.print(f"Pass rate {checked.pass_rate:.1%} ({low:.1%} to {high:.1%}).")
        console.print(Text("Problems by the share of their completions that are correct:", style="dim"))
        bins = checked.histogram
        for name, count in bins.items():
            bar = "█" * round(_WIDTH * count / max(bins.values()))
            console.print(Text.assemble(f"{name:>8}  ", (bar, "cyan"), f" {count}"))
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    # Where other rewards than the verifier's make groups differ, both shares are shown.
    are_apart = any(cost.answers is not None and abs(cost.signal - cost.answers) >= 0.01 for cost in checked.groups)
    answers = ["right and wrong"] if are_apart else []
    for heading in ("group size", "with a signal", "95 % interval", *answers, "tokens", "sampling"):
        table.add_column(heading, justify="right")
    for cost in checked.groups:
        mark = "" if cost.is_unbiased else "~"
        tokens, seconds = ("-", "-") if cost.tokens is None else (f"{cost.tokens:,.0f}", duration(cost.seconds or 0.0))
        low, high = cost.interval
        style = "bold" if cost.group_size == checked.group_size else ""
        apart = [f"{mark}{cost.answers:.0%}"] if are_apart else []
        row = (str(cost.group_size), f"{mark}{cost.signal:.0%}", f"{low:.0%} to {high:.0%}", *apart, tokens, seconds)
        table.add_row(*row, style=style)
    console.print("", table, "", sep="\n")
    console.print(
        Text(
            "tokens, sampling: expected for one group with a signal, at "
            f"{checked.tokens_per_second:,.0f} tokens a second. ~: of more completions than were sampled.",
            style="dim",
        )
    )
    for sentence in checked.advice:
        console.print(Text(sentence))
