"""Ways to compute a layer of attention over a shared prompt, and to gather packed tokens, on this CPU.

    python benchmarks/attention_forms.py [prompt tokens, default 60]

16 groups of 8, completions of 40 tokens, 4 heads of 32, float32; mean of 20 after 3 to warm up.
"""

import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from grouprl.models.attention import merged_attention

P, G, T, HEADS, D = 16, 8, 40, 4, 32
L = int(sys.argv[1]) if len(sys.argv) > 1 else 60
N = P * G

torch.manual_seed(0)
query = torch.randn(P, G, T, HEADS, 1, D, requires_grad=True)
prompt = torch.randn(P, L, HEADS, D, requires_grad=True)
own = torch.randn(P, G, T, HEADS, D, requires_grad=True)
seen = torch.cat([torch.ones(T, L), torch.ones(T, T).tril()], 1).bool()
bias = torch.zeros(T, L + T).masked_fill(~seen, -torch.inf).expand(P, G, T, L + T).contiguous()


def copied_keys() -> Tensor:
    copies = prompt[:, None].expand(P, G, L, HEADS, D).reshape(N, L, HEADS, D)
    return torch.cat([copies, own.view(N, T, HEADS, D)], 1).transpose(1, 2)


def shared() -> Tensor:
    return merged_attention(query, prompt, prompt, own, own, bias)


def copied_sdpa() -> Tensor:
    keys = copied_keys()
    rows = query.view(N, T, HEADS, D).transpose(1, 2)
    mask = seen.expand(N, 1, T, L + T)
    return F.scaled_dot_product_attention(rows, keys, keys, attn_mask=mask, scale=1.0).transpose(1, 2)


def copied_softmax() -> Tensor:
    keys = copied_keys()
    scores = query.view(N, T, HEADS, D).transpose(1, 2) @ keys.transpose(2, 3) + bias.view(N, 1, T, L + T)
    return (scores.softmax(-1) @ keys).transpose(1, 2)


tokens = torch.randn(4_800, HEADS, D, requires_grad=True)
places = torch.where(torch.rand(N * T) < 0.3, 0, torch.randint(0, 4_800, (N * T,)))  # padding points at token 0


def advanced_indexing() -> Tensor:
    return tokens[places]


def index_select() -> Tensor:
    return tokens.index_select(0, places)


def milliseconds(form: Callable[[], Tensor], backward: bool) -> float:
    for turn in range(23):
        if turn == 3:
            started = time.perf_counter()
        with torch.set_grad_enabled(backward):
            result = form()
            if backward:
                result.square().sum().backward()
    return (time.perf_counter() - started) / 20 * 1e3


if __name__ == "__main__":
    assert torch.allclose(shared().reshape(-1), copied_sdpa().reshape(-1), atol=1e-4)
    for form in (shared, copied_sdpa, copied_softmax, advanced_indexing, index_select):
        forward, both = milliseconds(form, False), milliseconds(form, True)
        print(f"{form.__name__:18} forward {forward:6.1f} ms   forward + backward {both:6.1f} ms")
