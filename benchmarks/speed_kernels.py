"""Milliseconds of each compiled kernel and of torch code for the same result, forward and backward, at three sizes.

    OMP_NUM_THREADS=1 python benchmarks/speed_kernels.py [--smoke]

The times are those by which a run chooses between the two (`grouprl doctor`): from their file beside the compiled
library, or measured now.
"""

from __future__ import annotations

import os

from speed_rows import Row, finish, say, section_parser, smaller

from grouprl.kernels.build import why_no_library
from grouprl.kernels.calibration import timings
from grouprl.kernels.offers import CONTESTS


def main() -> None:
    section_parser(__doc__).parse_args()
    os.environ.pop("GROUPRL_KERNELS", None)
    if why_not := why_no_library():
        finish([], note=f"left out: {why_not}")
        return
    rows: list[Row] = []
    for contest in CONTESTS:
        for timing in timings(contest):
            title = f"{contest.name}, {contest.size} {timing.width}, {timing.dtype}"
            rows.append(smaller(title, "ms", 1000 * timing.kernel, 1000 * timing.torch, "torch"))
            say(f"{title}: {rows[-1].ours:.2f} ms, torch {rows[-1].peer:.2f} ms")
    finish(rows)


if __name__ == "__main__":
    main()
