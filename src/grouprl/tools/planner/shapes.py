"""Shapes of models from their config.json, and their numbers of weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from grouprl.files import read_json
from grouprl.models.names import BUNDLED
from grouprl.types import UserError, unknown_name

Biases = Literal["none", "qkv", "qkvo"]


@dataclass(frozen=True)
class ModelShape:
    """The shape of a decoder with Llama's architecture, from its config.json."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    tied: bool  # the output embedding is the input embedding
    biases: Biases = "none"  # in attention
    layer_norms: int = 2  # norms of a layer; 4 in Gemma 2 and 3, whose layers the compiled kernels do not compute

    @property
    def queries(self) -> int:
        """Numbers of a token's queries in a layer."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """Numbers of a token's keys in a layer, and of its values."""
        return self.kv_heads * self.head_size

    @property
    def linears(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of the linear layers of a block: queries, keys, values, output, gate, up, down."""
        queries, keys = (self.hidden, self.queries), (self.hidden, self.keys)
        attention = (queries, keys, keys, (self.queries, self.hidden))
        return (*attention, *((self.hidden, self.intermediate),) * 2, (self.intermediate, self.hidden))

    @property
    def linear_parameters(self) -> int:
        """Weights of the linear layers of all blocks, without biases."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.linears)

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the input embedding; an output embedding that is not tied has as many again."""
        return self.vocabulary * self.hidden

    @property
    def decoder_parameters(self) -> int:
        """Parameters of the model without an output embedding, as in a critic or a reward model."""
        with_bias = {"none": 0, "qkv": 3, "qkvo": 4}[self.biases]
        biases = sum(outputs for _, outputs in self.linears[:with_bias])
        norms = self.layer_norms * self.layers + 1
        return self.embedding_parameters + self.linear_parameters + self.layers * biases + norms * self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of the whole model; shared weights count once."""
        return self.decoder_parameters + (0 if self.tied else self.embedding_parameters)

    @property
    def cached_numbers(self) -> int:
        """Numbers of a token in the cache: its keys and values in all layers."""
        return 2 * self.layers * self.keys

    def lora_parameters(self, rank: int) -> int:
        """Parameters of adapters of this rank on all linear layers."""
        return self.layers * sum(rank * (inputs + outputs) for inputs, outputs in self.linears)


SHAPES: Mapping[str, ModelShape] = MappingProxyType(
    {
        shape.name: shape
        for shape in (
            ModelShape("abacus", 5, 128, 4, 4, 32, 384, 936, tied=True, biases="qkvo"),
            ModelShape("Qwen2.5-0.5B", 24, 896, 14, 2, 64, 4864, 151_936, tied=True, biases="qkv"),
            ModelShape("Qwen2.5-1.5B", 28, 1536, 12, 2, 128, 8960, 151_936, tied=True, biases="qkv"),
            ModelShape("Qwen2.5-7B", 28, 3584, 28, 4, 128, 18_944, 152_064, tied=False, biases="qkv"),
            ModelShape("Qwen2.5-14B", 48, 5120, 40, 8, 128, 13_824, 152_064, tied=False, biases="qkv"),
            ModelShape("Llama-3.1-8B", 32, 4096, 32, 8, 128, 14_336, 128_256, tied=False),
            ModelShape("Llama-3.1-70B", 80, 8192, 64, 8, 128, 28_672, 128_256, tied=False),
        )
    }
)


def shape_of(model: str, setting: str = "--model") -> ModelShape:
    """Returns the shape of a model, without loading it.

    Args:
        model: a bundled name, a name of `SHAPES`, its hub id (Qwen/Qwen2.5-7B), or a folder with a config.json.
        setting: names it in errors.

    Raises:
        UserError: the model is unknown, or its config.json is not that of a dense decoder with Llama's architecture.
    """
    config = Path(BUNDLED.get(model, model)) / "config.json"
    if config.is_file():
        return config_shape(read_json(config), config.resolve().parent.name, config)
    return known_shape(model, setting)


def known_shape(model: str, setting: str = "--model") -> ModelShape:
    """Returns the shape of a name or hub id that is in `SHAPES`; it reads no file.

    Raises:
        UserError: the model is unknown.
    """
    name = model.rpartition("/")[2].removesuffix("-Instruct").removesuffix("-Base")
    if name not in SHAPES:
        raise unknown_name(f"{setting} (a known shape, or a folder with a config.json)", model, SHAPES)
    return SHAPES[name]


def config_shape(fields: Mapping[str, Any], name: str, path: Path) -> ModelShape:
    """Returns the shape of a config.json's content; `path` is for its errors.

    Raises:
        UserError: it is not that of a dense decoder with Llama's architecture.
    """
    experts = [name for name in ("num_experts", "num_local_experts", "n_routed_experts") if fields.get(name)]
    if experts:
        raise UserError(f"{path}: expected a dense decoder, got {experts[0]}={fields[experts[0]]}: choose one")

    def number(name: str, usual: int | None = None) -> int:
        value = usual if fields.get(name) is None else fields[name]
        if type(value) is not int or value < 1:
            raise UserError(f"{path}: expected {name}, a whole number from 1, got {value!r:.60}: give another model")
        return value

    hidden, heads = number("hidden_size"), number("num_attention_heads")
    with_bias: Biases = "qkv" if fields.get("model_type") == "qwen2" else "none"
    return ModelShape(
        name=name,
        layers=number("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=number("num_key_value_heads", heads),
        head_size=number("head_dim", hidden // heads),
        intermediate=number("intermediate_size"),
        vocabulary=number("vocab_size"),
        tied=fields.get("tie_word_embeddings") is True,
        biases="qkvo" if fields.get("attention_bias") is True else with_bias,
        layer_norms=4 if str(fields.get("model_type")).startswith(("gemma2", "gemma3")) else 2,
    )
