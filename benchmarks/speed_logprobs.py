"""Log-probs of 4,096 tokens over 151,936 words: seconds and memory of GroupRL's chunks, and of full logits.

    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/speed_logprobs.py [--smoke]

Hidden size 896 (the sizes of Qwen2.5-0.5B), float32, forward and backward pass, each form once in a process of its own.
Memory is the most that the process held beyond weights, hidden states and the gradients of both. Full logits are made
only where 12 GiB are free.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from floor import matmul_rate
from speed_rows import child, finish, say, section_parser, smaller, timed
from torch import Tensor, nn
from trl_peer import memory_mib

from grouprl.forward.logprobs import token_logprobs
from grouprl.types import Sampling

FORMS = ("ours", "full")
NEEDED_MIB = 12 << 10


def sizes(smoke: bool) -> tuple[int, int, int]:
    """Tokens, hidden size, vocabulary."""
    return (256, 64, 8_192) if smoke else (4_096, 896, 151_936)


def run(form: str, head: nn.Linear, hidden_SH: Tensor, targets_S: Tensor) -> None:
    """Adds the gradient of the mean log-prob to head and hidden states."""
    if form == "ours":
        logprobs_S, _ = token_logprobs(head, hidden_SH, targets_S, Sampling())
    else:
        logprobs_S = -F.cross_entropy(head(hidden_SH), targets_S, reduction="none")
    logprobs_S.mean().backward()  # type: ignore[no-untyped-call]


def measure(form: str, tokens: int, hidden: int, vocabulary: int) -> dict[str, float]:
    """Seconds, MiB beyond what is there in any case, and the norms of the gradients for a comparison."""
    generator = torch.Generator().manual_seed(0)
    head = nn.Linear(hidden, vocabulary, bias=False)
    nn.init.normal_(head.weight, std=0.02, generator=generator)
    hidden_SH = torch.randn(tokens, hidden, generator=generator, requires_grad=True)
    targets_S = torch.randint(vocabulary, (tokens,), generator=generator)
    warm = nn.Linear(64, 1_024, bias=False)
    run(form, warm, torch.randn(64, 64, requires_grad=True), torch.randint(1_024, (64,)))
    before_mib = memory_mib("VmRSS")
    seconds, _ = timed(lambda: run(form, head, hidden_SH, targets_S))
    assert head.weight.grad is not None
    assert hidden_SH.grad is not None
    norms = {"weight_norm": float(head.weight.grad.norm()), "hidden_norm": float(hidden_SH.grad.norm())}
    gradients_mib = (head.weight.numel() + hidden_SH.numel()) * 4 / (1 << 20)
    return {"seconds": seconds, "mib": memory_mib("VmHWM") - before_mib - gradients_mib, **norms}


def free_mib() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) / 1024


def main() -> None:
    parser = section_parser(__doc__)
    parser.add_argument("--form", choices=FORMS, help="one measurement, in this process, as JSON")
    given = parser.parse_args()
    tokens, hidden, vocabulary = sizes(given.smoke)
    if given.form:
        print(json.dumps(measure(given.form, tokens, hidden, vocabulary)))
        return
    roomy = given.smoke or free_mib() > NEEDED_MIB
    if not roomy:
        say(f"full logits: skipped, {free_mib() / 1024:.1f} GiB are free and 12 are needed")
    words = ["--smoke"] if given.smoke else []
    found = {form: child("speed_logprobs.py", "--form", form, *words) for form in FORMS if form == "ours" or roomy}
    ours, full = found["ours"], found.get("full", {})
    if full:
        for norm in ("weight_norm", "hidden_norm"):
            assert abs(ours[norm] / full[norm] - 1) < 1e-4, found
    name = f"{tokens:,} x {vocabulary:,}"
    # The logits once, then both gradients: making the logits a second time is a price, not a need.
    side = 256 if given.smoke else 2048
    floor = 6 * tokens * hidden * vocabulary / matmul_rate(side, side, side, "float32")
    peer = "full logits" if full else "full logits: no room"
    rows = [
        smaller(f"{name}, time", "s", ours["seconds"], full.get("seconds"), peer, floor),
        smaller(f"{name}, memory", "MiB", ours["mib"], full.get("mib"), peer),
    ]
    for row in rows:
        say(f"{row.name}: {row.ours:,.4g} {row.unit}, {row.peer_name} {row.peer or 0:,.4g}")
    finish(rows, measured=found)


if __name__ == "__main__":
    main()
