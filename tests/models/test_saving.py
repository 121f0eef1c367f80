"""Tensors that are written one after the other make the file that safetensors itself writes."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from grouprl.models.save import save_tensors


def test_the_bytes_are_those_of_safetensors(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "b/exp_avg": torch.randn(3, 5, generator=generator),
        "a": torch.randn(7, generator=generator).bfloat16(),
        "b/step": torch.tensor(3.0),
        "codes": torch.arange(5, dtype=torch.uint8),
        "long": torch.arange(4),
        "none": torch.empty(0, 2),
        "ümlaut": torch.ones(1),
    }
    save_tensors(tmp_path / "own", tensors)
    save_file(tensors, tmp_path / "expected")
    assert (tmp_path / "own").read_bytes() == (tmp_path / "expected").read_bytes()
    save_tensors(None, tensors)  # a rank that writes nothing
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expected", "own"]
