"""A processor, pretended, whose products of fewer rows than a limit round otherwise for each number of rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from grouprl.forward import products


def pretend_processor(monkeypatch: pytest.MonkeyPatch, folder: Path, *, fewest: int = 16, multiple: int = 1) -> Path:
    """Nothing is measured yet on it; the file that keeps what is measured.

    As in real ones the difference is one of rounding: a model that is loaded meanwhile still computes what it should.
    A product is perturbed below `fewest` rows, and where its rows are no multiple of `multiple`.
    """
    real, file = torch.nn.functional.linear, folder / "products.json"

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        rows, made = x.shape[:-1].numel(), real(x, weight, bias)
        return made * (1 + (rows + 1) * 2**-22) if rows < fewest or rows % multiple else made

    monkeypatch.setattr(products, "_file", lambda: file)
    monkeypatch.setattr(products, "_KNOWN", {})
    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    return file
