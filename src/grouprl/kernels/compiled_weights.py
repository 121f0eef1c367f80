"""A model's weights as kernels/step.c reads them, and torch's functions that it calls for its products."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grouprl.forward.head import output_head
from grouprl.kernels.calibration import Contest, Form, uses_kernel
from grouprl.kernels.functions import kernels, pointers
from grouprl.kernels.llama_form import window_of

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64
# In C: create a tensor from memory, destroy it, out = left @ right, out = beta * added + alpha * left @ right.
_FUNCTIONS = (
    "aoti_torch_create_tensor_from_blob",
    "aoti_torch_delete_tensor_object",
    "aoti_torch_cpu_mm_out",
    "aoti_torch_cpu_addmm_out",
)


class Torch(ctypes.Structure):
    """`Torch` of kernels/step.c."""

    _fields_ = (
        *((name, _POINTER) for name in ("create", "destroy", "multiply", "multiply_add")),
        ("dtype", ctypes.c_int32),
        ("device_type", ctypes.c_int32),
    )


class Product(ctypes.Structure):
    """`Product` of kernels/step.c."""

    _fields_ = (
        *((name, _POINTER) for name in ("weight", "bias", "down", "up")),
        *((name, _SIZE) for name in ("inner", "outer", "rank")),
        ("scale", ctypes.c_double),
    )


class Norm(ctypes.Structure):
    """`Norm` of kernels/step.c."""

    _fields_ = (("weight", _POINTER), ("eps", ctypes.c_float))


# Weights of a model that no cache holds, whose products of few rows `kernels().product` computes: 1.2 to 1.6 times as
# fast as MKL for 64 rows of 135 million weights, 1.4 to 1.9 times for 32.
_DIRECT_FROM = 1 << 24
_ALL = 1 << 62  # longer than any sequence
_PRODUCTS = ("query", "key", "value", "out", "gate", "up", "down")


class _LayerWeights(ctypes.Structure):
    _fields_ = (
        *((name, Norm) for name in ("before", "after", "query_norm", "key_norm")),
        *((name, Product) for name in _PRODUCTS),
        ("window", _SIZE),
    )


@cache
def torch_library() -> ctypes.CDLL:
    """The library of torch with its C functions, which Python has loaded already."""
    (file,) = (Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")
    return ctypes.CDLL(str(file))


@cache
def torch_functions(dtype: torch.dtype) -> Torch | None:
    """Torch's C functions for tensors of a dtype; None where this torch lacks one of them."""
    library, name = torch_library(), str(dtype).removeprefix("torch.")
    if not all(hasattr(library, function) for function in _FUNCTIONS):
        return None
    addresses = (ctypes.cast(library[function], _POINTER) for function in _FUNCTIONS)
    return Torch(*addresses, library[f"aoti_torch_dtype_{name}"](), library["aoti_torch_device_type_cpu"]())


def has_plain_products(model: PreTrainedModel) -> bool:
    """Whether `CompiledWeights` can read the model: every product is one matrix, with at most one adapter."""
    if torch_functions(torch.float32) is None:
        return False
    layers: Any = model.get_decoder().layers
    projections = (getattr(layer.self_attn, f"{name}_proj") for layer in layers for name in "qkvo")
    mlp = (getattr(layer.mlp, f"{name}_proj") for layer in layers for name in ("gate", "up", "down"))
    return all(map(_is_plain, (*projections, *mlp, output_head(model))))


def _is_plain(module: Any) -> bool:
    if hasattr(module, "lora_A"):
        return len(_adapters(module)) < 2 and _is_plain(module.base_layer)
    return type(module) is nn.Linear


class CompiledWeights:
    """The weights of a model for decode steps; forward passes on several threads share one.

    The pointers are those of the model's own weights; for bfloat16 they are rounded here, once.
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        """The model is one that `llama_form.has_llama_form` and `has_plain_products` accept."""
        decoder: Any = model.get_decoder()
        self.decoder, self.dtype = decoder, dtype
        self.heads: int = model.config.num_attention_heads
        self.intermediate: int = model.config.intermediate_size
        self.embeddings: Tensor = decoder.embed_tokens.weight
        self.output: nn.Module = model.get_output_embeddings()
        functions = torch_functions(dtype)
        assert functions is not None, "torch has no C functions: call has_plain_products first"
        self.torch = functions
        self._kept: list[Tensor] = []  # whose addresses are below
        self.layers = (_LayerWeights * len(decoder.layers))(*map(self._layer, decoder.layers))
        self.norm, self.head = _norm(decoder.norm), self._product(self.output)
        self.direct = dtype == torch.float32 and sum(map(Tensor.numel, model.parameters())) >= _DIRECT_FROM
        self.direct = self.direct and uses_kernel(PRODUCT, len(decoder.norm.weight), dtype)
        self.rank = max(getattr(layer, name).rank for layer in self.layers for name in _PRODUCTS)

    def _layer(self, layer: Any) -> _LayerWeights:
        attention, mlp = layer.self_attn, layer.mlp
        norms = (layer.input_layernorm, layer.post_attention_layernorm)
        head_norms = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
        products = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        mlp_products = (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        return _LayerWeights(
            *map(_norm, (*norms, *head_norms)),
            *map(self._product, (*products, *mlp_products)),
            window_of(attention) or _ALL,
        )

    def _product(self, module: Any) -> Product:
        """W x + b, with PEFT's adapter W x + b + scaling B A x."""
        down = up = None
        scale = 0.0
        if hasattr(module, "lora_A"):
            for name in _adapters(module):
                down, up, scale = module.lora_A[name].weight, module.lora_B[name].weight, module.scaling[name]
            module = module.base_layer
        outer, inner = module.weight.shape
        rank = 0 if down is None else len(down)
        return Product(*map(self._address, (module.weight, module.bias, down, up)), inner, outer, rank, scale)

    def _address(self, weight: Tensor | None) -> int | None:
        if weight is None:
            return None
        self._kept.append(weight.detach().to(self.dtype).contiguous())
        return self._kept[-1].data_ptr()


def _product_forms(width: int, _: torch.dtype) -> tuple[Form, Form]:
    """Always in float32, because the kernel has no other numbers."""
    x, weight = torch.ones(32, width), torch.ones(1024, width)
    y = torch.empty(32, 1024)
    return (
        lambda: kernels().product(*pointers(x, weight, None, y), 32, width, 1024),
        lambda: torch.mm(x, weight.T, out=y),
    )


PRODUCT = Contest("product", "hidden size", (512, 1024, 2048), _product_forms)


def _adapters(module: Any) -> list[str]:
    """The adapters that take part beside the module's own weights."""
    off = module.disable_adapters or module.merged
    return [] if off else [name for name in module.active_adapters if name in module.lora_A]


def _norm(module: Any) -> Norm:
    return Norm() if module is None else Norm(module.weight.data_ptr(), module.variance_epsilon)
