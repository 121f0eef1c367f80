"""Measures what is lost when gradients of packs are added in bfloat16: `python benchmarks/bfloat16_gradients.py`.

The gradient of a batch of the bundled model, in 1 to 64 packs: added in bfloat16 as a run does, and in float32.
"""

import argparse

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grouprl.forward.attention import hidden_states
from grouprl.forward.head import output_head
from grouprl.forward.layouts import TreeLayout
from grouprl.forward.precision import autocast
from grouprl.models.load import load_model

CPU = torch.device("cpu")
ROWS, TOKENS, PACKS = 64, 24, (1, 4, 16, 64)


def gradients(model: PreTrainedModel, ids_NT: Tensor, weights_N: Tensor, packs: int) -> tuple[Tensor, Tensor]:
    """The gradient of all matrices as one vector: added as the model does, and in float32."""
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    exact = [torch.zeros(weight.shape) for weight in matrices]
    model.zero_grad()
    total = [torch.zeros_like(weight) for weight in matrices]
    for rows in torch.arange(len(ids_NT)).chunk(packs):
        layout = TreeLayout((TOKENS,) * len(rows), ((),) * len(rows), CPU)
        with autocast(CPU, "bfloat16"):
            hidden_SH = hidden_states(model, ids_NT[rows].flatten(), layout.position_ids_S, layout)
            logits_NTV = output_head(model)(hidden_SH).float().view(len(rows), TOKENS, -1)
        losses_N = nn.functional.cross_entropy(
            logits_NTV[:, :-1].transpose(1, 2), ids_NT[rows, 1:], reduction="none"
        ).mean(1)
        model.zero_grad()
        torch.autograd.backward((losses_N * weights_N[rows]).sum())
        for one, kept, weight in zip(total, exact, matrices, strict=True):
            assert weight.grad is not None
            one.add_(weight.grad)
            kept.add_(weight.grad.float())
    return torch.cat([one.double().flatten() for one in total]), torch.cat([one.double().flatten() for one in exact])


def main() -> None:
    """Prints the relative error of each way against the gradient in float32 sums."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="4 rows in 1 and 2 packs: whether it runs")
    rows, counts = (4, (1, 2)) if parser.parse_args().smoke else (ROWS, PACKS)
    torch.manual_seed(0)
    model = load_model("abacus", device=CPU, weights="bfloat16")
    ids_NT = torch.randint(5, 900, (rows, TOKENS))
    weights_N = torch.randn(rows) / rows  # as advantages: their sum is near 0
    for packs in counts:
        added, exact = gradients(model, ids_NT, weights_N, packs)
        error = float((added - exact).norm() / exact.norm())
        cosine = float(nn.functional.cosine_similarity(added, exact, dim=0))
        print(f"{packs} packs: relative error {error:.2%}, cosine {cosine:.6f}")
    half = rows // 2
    first, second = (gradients(model, ids_NT[part], weights_N[part], 1)[1] for part in (slice(half), slice(half, rows)))
    print(f"two halves of the batch: cosine {float(nn.functional.cosine_similarity(first, second, dim=0)):.3f}")


if __name__ == "__main__":
    main()
