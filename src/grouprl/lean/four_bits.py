"""Weights in 4 bits, of bitsandbytes."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from grouprl.types import import_extra


def quantize_weights(model: PreTrainedModel, device: torch.device) -> None:
    """Puts the linear layers of a decoder on `device` in 4 bits, in place: NF4 of QLoRA (arXiv:2305.14314, section 3).

    Blocks of 64 weights share a scale, which is kept in 8 bits. They are no weights to learn: an adapter learns.

    Raises:
        UserError: bitsandbytes is missing.
    """
    layers = import_extra("bitsandbytes", "qlora", "model.weights=nf4").nn
    decoder = model.get_decoder()
    for name, layer in list(decoder.named_modules()):
        if type(layer) is not nn.Linear or "lora_" in name:
            continue
        sizes = layer.in_features, layer.out_features, layer.bias is not None
        small = layers.Linear4bit(*sizes, torch.bfloat16, quant_type="nf4", device="meta")
        small.weight = layers.Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4", module=small)
        small.bias = layer.bias
        # Where the CPU multiplies bfloat16, bitsandbytes 0.50.2 would lay weights out anew at the first call without a
        # gradient, the sampler's, for products that have none: the next update would raise.
        small.support_avx512bf16_for_cpu = False
        decoder.set_submodule(name, small.to(device))
    model.is_loaded_in_4bit = True  # read by PEFT
