"""Ways to compute a layer of attention over a shared prompt, and to gather packed tokens, on this CPU.

    python benchmarks/attention_forms.py [--prompt-tokens 60]

16 groups of 8, completions of 40 tokens, 4 heads of 32, float32; mean of 20 after 3 to warm up.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from grouprl.models.attention import Rule, merged_attention

HEADS, D = 4, 32


@dataclass(frozen=True)
class Sizes:
    """P groups of G completions with T tokens each, after prompts of L tokens."""

    P: int
    G: int
    T: int
    L: int

    @property
    def N(self) -> int:
        return self.P * self.G


class Layer:
    """Queries, keys of the prompts and of the completions, and each form of attention over them."""

    def __init__(self, sizes: Sizes) -> None:
        P, G, T, L = sizes.P, sizes.G, sizes.T, sizes.L
        self.sizes = sizes
        self.query = torch.randn(P, G, T, HEADS, 1, D, requires_grad=True)
        self.prompt = torch.randn(P, L, HEADS, D, requires_grad=True)
        self.own = torch.randn(P, G, T, HEADS, D, requires_grad=True)
        self.visible = torch.cat([torch.ones(T, L), torch.ones(T, T).tril()], 1).bool()
        bias = torch.zeros(T, L + T).masked_fill(~self.visible, -torch.inf)
        self.bias = bias.expand(P, G, T, L + T).contiguous()
        self.tokens = torch.randn(37 * sizes.N, HEADS, D, requires_grad=True)
        padding = torch.rand(sizes.N * T) < 0.3  # it points at token 0
        self.places = torch.where(padding, 0, torch.randint(0, len(self.tokens), (sizes.N * T,)))

    def copied_keys(self) -> Tensor:
        P, G, L, N, T = self.sizes.P, self.sizes.G, self.sizes.L, self.sizes.N, self.sizes.T
        copies = self.prompt[:, None].expand(P, G, L, HEADS, D).reshape(N, L, HEADS, D)
        return torch.cat([copies, self.own.view(N, T, HEADS, D)], 1).transpose(1, 2)

    def rows(self) -> Tensor:
        return self.query.view(self.sizes.N, self.sizes.T, HEADS, D).transpose(1, 2)

    def shared(self) -> Tensor:
        query, prompt, own = self.query.transpose(2, 3), self.prompt.transpose(1, 2), self.own.transpose(2, 3)
        return merged_attention(query, prompt, prompt, own, own, self.bias, Rule(1.0)).transpose(2, 3)

    def copied_sdpa(self) -> Tensor:
        keys = self.copied_keys()
        mask = self.visible.expand(self.sizes.N, 1, *self.visible.shape)
        return F.scaled_dot_product_attention(self.rows(), keys, keys, attn_mask=mask, scale=1.0).transpose(1, 2)

    def copied_softmax(self) -> Tensor:
        keys = self.copied_keys()
        scores = self.rows() @ keys.transpose(2, 3) + self.bias.view(self.sizes.N, 1, *self.visible.shape)
        return (scores.softmax(-1) @ keys).transpose(1, 2)

    def advanced_indexing(self) -> Tensor:
        return self.tokens[self.places]

    def index_select(self) -> Tensor:
        return self.tokens.index_select(0, self.places)


def milliseconds(form: Callable[[], Tensor], backward: bool, *, calls: int) -> float:
    """Mean of so many calls after 3 to warm up."""
    for turn in range(3 + calls):
        if turn == 3:
            started = time.perf_counter()
        with torch.set_grad_enabled(backward):
            result = form()
            if backward:
                result.square().sum().backward()  # type: ignore[no-untyped-call]
    return (time.perf_counter() - started) / calls * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--prompt-tokens", type=int, default=60)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: whether it runs, not how fast")
    given = parser.parse_args()
    torch.manual_seed(0)
    layer = Layer(Sizes(2, 2, 4, 6) if given.smoke else Sizes(16, 8, 40, given.prompt_tokens))
    assert torch.allclose(layer.shared().reshape(-1), layer.copied_sdpa().reshape(-1), atol=1e-4)
    forms = (layer.shared, layer.copied_sdpa, layer.copied_softmax, layer.advanced_indexing, layer.index_select)
    for form in forms:
        forward, both = (milliseconds(form, backward, calls=1 if given.smoke else 20) for backward in (False, True))
        print(f"{form.__name__:18} forward {forward:6.1f} ms   forward + backward {both:6.1f} ms")


if __name__ == "__main__":
    main()
