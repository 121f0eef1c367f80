"""A whole GRPO step beside TRL's, from `vs_trl.py`: rollout, reference, loss, gradient, update.

    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/speed_trl.py [--smoke]

Two of the cases of `vs_trl.py`, each one step after one to warm up, against TRL with the settings that are the fastest
on a CPU of those whose weights learn. CPU seconds. `vs_trl.py` itself takes more steps, TRL's own settings too, and
compares loss and gradient.
"""

from __future__ import annotations

from typing import Any

from floor import DTYPES
from speed_rows import Row, child, finish, say, section_parser, smaller
from trl_peer import missing_trl

# Name, and the options of the scripts.
CASES = {
    f"{name}, {dtype}": ("--dtype", dtype, *words)
    for dtype in DTYPES
    for name, words in {"KL": ("--beta", "0.04"), "no KL, half silent": ("--beta", "0.0", "--silent-half")}.items()
}


def compare(name: str, words: tuple[str, ...]) -> tuple[list[Row], dict[str, Any]]:
    ours = child("vs_trl.py", "--only", "grouprl", "--steps", "1", *words, silent=True)
    peer = child("trl_peer.py", "--variant", "tuned", "--steps", "1", *words, silent=True)
    # The lengths of the completions are each library's own draw, so the work is not quite the same.
    theirs = peer["cpu"] * ours["tokens"] / peer["tokens"]
    rows = [
        smaller(f"{name}, time", "s", ours["cpu"], theirs, "TRL tuned", ours["floor"]),
        smaller(f"{name}, memory", "MiB", ours["above_imports_mib"], peer["above_imports_mib"], "TRL tuned"),
    ]
    for row in rows:
        say(f"{row.name}: {row.ours:,.2f} {row.unit}, TRL {row.peer:,.2f}")
    return rows, {"grouprl": ours, "trl": peer}


def main() -> None:
    given = section_parser(__doc__).parse_args()
    note = missing_trl()
    if note or given.smoke:
        finish([], note=f"skipped: {note or 'both scripts that it starts have a smoke of their own'}")
        return
    rows, found = [], {}
    for name, words in CASES.items():
        more, found[name] = compare(name, words)
        rows += more
    finish(rows, measured=found)


if __name__ == "__main__":
    main()
