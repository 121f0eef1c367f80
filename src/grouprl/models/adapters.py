"""LoRA adapters (arXiv:2106.09685): small trained weights beside frozen ones, in PEFT's folder layout.

One copy of the model serves as policy and as reference: the reference is the policy with its adapter switched off.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from grouprl.files import read_needed
from grouprl.models.names import ALL_LINEAR
from grouprl.types import UserError, import_extra

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_MOST_REPEATS = 5  # in a pattern of names: each multiplies the time of a match by the length of a name
_REASON = 300  # characters of another library's error in a message
_REPEAT = re.compile(r"(?<!\()[*+?}]\??")  # in a regular expression; not the `?` of `(?:`
_NAME = "default"  # name of a model's only adapter in transformers and PEFT
# PEFT imports bitsandbytes where it is installed, which warns that it has no kernel for weights of four bits.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
# What PEFT raises for an adapter of another model (weights of other shapes), and for settings of other types.
_WRONG = (OSError, SafetensorError, ValueError, RuntimeError, TypeError, AttributeError, LookupError, re.error)

# Settings that a LoRA adapter may change. All others (DoRA, further trained modules, ...) must have PEFT's defaults,
# because they change a forward pass or base weights in ways that no check here covers.
_PLAIN = {
    "r", "lora_alpha", "target_modules", "exclude_modules", "rank_pattern", "alpha_pattern", "layers_to_transform",
    "layers_pattern", "use_rslora", "lora_dropout", "fan_in_fan_out",
    "base_model_name_or_path", "revision", "task_type", "inference_mode", "auto_mapping", "peft_version",
}  # fmt: skip


class LoraSettings(Protocol):
    """A low-rank adapter; a configuration's section `model.lora` is one."""

    @property
    def rank(self) -> int:
        """Columns of B, rows of A."""
        ...

    @property
    def alpha(self) -> int:
        """The change is multiplied by alpha / rank."""
        ...

    @property
    def targets(self) -> Sequence[str]:
        """Names of layers, or `all-linear`."""
        ...


def add_adapter(model: PreTrainedModel, lora: LoraSettings, *, seed: int) -> PreTrainedModel:
    """Adds a new adapter to a model, in place. B is 0, so the outputs stay equal; A is drawn from `seed`.

    From then on only the adapter's weights take gradients.

    Raises:
        UserError: PEFT is missing, the model has an adapter already, or has no layers of these names.
    """
    peft = import_extra("peft", "lora", "LoRA")
    if has_adapter(model):
        raise UserError(
            "model.lora: expected null for a model that is an adapter already, got settings of a new one: "
            "remove them to continue with that adapter, or merge it into its base model first (docs/models.md)"
        )
    names, transposed = linear_layers(model, lora.targets)
    decoder = model.get_decoder()
    [name] = [name for name, module in model.named_modules() if module is decoder]
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=names,
        exclude_modules=rf"(?!{re.escape(name)}\.).*" if "." in name else None,
        fan_in_fan_out=transposed,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    try:
        _inject(model, config, seed)
    except ValueError as error:  # PEFT knows layers that read weights without calling their module
        got = ", ".join(names)
        raise UserError(
            f"model.lora.targets: expected layers that PEFT adapts, got {got}: name others ({_reason(error)})"
        ) from error
    return model


def attach_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Adds the adapter of a folder to its base model, in place; only the adapter takes gradients.

    Raises:
        UserError: PEFT is missing, or the folder holds no plain LoRA adapter for this model.
    """
    peft = import_extra("peft", "lora", "LoRA")
    try:
        config = peft.PeftConfig.from_pretrained(folder)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _not_an_adapter(folder, f"a readable {CONFIG}", _reason(error)) from error
    defaults, saved = peft.LoraConfig().to_dict(), config.to_dict()
    odd = [f"{key}={value}" for key, value in saved.items() if key not in _PLAIN and defaults.get(key) != value]
    if odd:
        raise _not_an_adapter(folder, "a plain LoRA adapter", ", ".join(odd))
    try:
        tensors = load_file(folder / WEIGHTS)
        widest = max((max(weight.shape, default=0) for weight in tensors.values()), default=0)
        rank = max([config.r, *config.rank_pattern.values()])
        if rank > widest:
            raise ValueError(f"a rank of {rank}, and weights of {widest} at most")
        settings = [config.target_modules, config.exclude_modules, config.layers_pattern]
        patterns = [name for names in settings for name in ([names] if isinstance(names, str) else names or ())]
        for pattern in [*patterns, *config.rank_pattern, *config.alpha_pattern]:
            if len(_REPEAT.findall(pattern)) > _MOST_REPEATS or re.search(r"\)[*+{]", pattern):
                raise ValueError(f"a pattern with too many repetitions: {pattern:.80}")
        _inject(model, config, seed=0)
        heads = {
            "the input embedding": model.get_input_embeddings(),
            "the output embedding": model.get_output_embeddings(),
        }
        adapted = [name for name, module in heads.items() if hasattr(module, "base_layer")]
        if adapted:
            raise _not_an_adapter(folder, "an adapter of the decoder's layers", f"one of {' and '.join(adapted)}")
        result = peft.set_peft_model_state_dict(model, tensors)
    except _WRONG as error:
        raise _not_an_adapter(folder, f"a LoRA adapter for {model.name_or_path}", _reason(error)) from error
    lacking = {name for name, weight in model.named_parameters() if weight.requires_grad} & set(result.missing_keys)
    if lacking or result.unexpected_keys:
        wrong = sorted([*lacking, *result.unexpected_keys])
        raise _not_an_adapter(folder, f"an adapter for {model.name_or_path}", f"a difference in {wrong[:3]}")
    return model


def save_adapter(model: PreTrainedModel, folder: Path, tensors: Mapping[str, Tensor] | None = None) -> None:
    """Writes adapter_config.json and adapter_model.safetensors, without the base model's weights.

    `tensors` are the whole weights of a sharded model by name.
    """
    # Not model.save_pretrained, which queries the hub for the base model at each save.
    peft = import_extra("peft", "lora", "LoRA")
    adapter = peft.get_peft_model_state_dict(model, state_dict=tensors, save_embedding_layers=False)
    plain = {f"base_model.model.{name}": value.detach().cpu().contiguous() for name, value in adapter.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(plain, folder / WEIGHTS, metadata={"format": "pt"})
    model.peft_config[_NAME].save_pretrained(folder)


def has_adapter(model: object) -> bool:
    """Whether the model has an adapter."""
    return bool(getattr(model, "peft_config", None))


def is_peft_model(model: object) -> bool:
    """Whether it is PEFT's own object around a model and its adapter."""
    return has_adapter(model) and hasattr(model, "get_base_model")


def is_adapter(folder: str) -> bool:
    """Whether a folder holds an adapter instead of a whole model."""
    return (Path(folder) / CONFIG).is_file()


def base_of(folder: str) -> tuple[str, str]:
    """Folder or hub id of an adapter's base model and its hub revision, from its adapter_config.json.

    Raises:
        UserError: the file cannot be read, or names no base model.
    """
    try:
        settings = json.loads(read_needed(Path(folder) / CONFIG, f"adapter {folder!r}: expected its settings"))
        named, revision = settings.get("base_model_name_or_path"), settings.get("revision") or "main"
    except (OSError, ValueError, AttributeError) as error:
        raise _not_an_adapter(Path(folder), f"a readable {CONFIG}", _reason(error)) from error
    if not isinstance(named, str) or not named:
        raise _not_an_adapter(Path(folder), "the name of a base model", f"base_model_name_or_path={named!r}")
    return named, str(revision)


@contextmanager
def as_reference(reference: PreTrainedModel, policy: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """The reference model inside the block: a copy, or the policy itself with its adapter switched off.

    A copy that is kept on the CPU visits the policy's device. After the block, also after an error, it is gone from
    there, or the adapter is switched on again.
    """
    if reference is not policy:
        device = policy.get_input_embeddings().weight.device
        home = [(tensor, tensor.data) for tensor in (*reference.parameters(), *reference.buffers())]
        try:
            for tensor, home_data in home:
                if home_data.device != device:
                    tensor.data = home_data.to(device)
            yield reference
        finally:
            for tensor, home_data in home:  # the memory that never left: nothing is copied back
                if tensor.device != home_data.device:
                    tensor.data = home_data
        return
    policy.disable_adapters()
    try:
        yield policy
    finally:
        policy.enable_adapters()


def _inject(model: PreTrainedModel, config: Any, seed: int) -> None:
    # PEFT draws from the global generator of the CPU, whatever the device.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model.add_adapter(config, _NAME)
    base = Path(model.name_or_path)
    # A relative path would name another folder when the adapter is loaded from another working directory.
    config.base_model_name_or_path = str(base.resolve()) if base.is_dir() else model.name_or_path
    for weight in model.parameters():
        if weight.requires_grad and weight.dtype == torch.bfloat16:  # PEFT takes the dtype of the layer
            weight.data = weight.data.float()
    config.revision = getattr(model.config, "_commit_hash", None)  # of a base from the hub, which may change there
    model.eval()


def merge_adapter(model: PreTrainedModel) -> None:
    """Adds an adapter's change to its base's weights, in place, and removes the adapter."""
    for name, layer in [(name, layer) for name, layer in model.named_modules() if hasattr(layer, "lora_A")]:
        layer.merge()
        model.set_submodule(name, layer.base_layer)
    del model.peft_config
    model._hf_peft_config_loaded = False  # the mark by which save_pretrained writes an adapter alone


def linear_layers(model: PreTrainedModel, targets: Sequence[str]) -> tuple[list[str], bool]:
    """Names of the decoder's layers that get an adapter, and whether one keeps its weights transposed (GPT-2).

    Embeddings get none: their weights are used as they are, without the module.

    Raises:
        UserError: the decoder has no such layers.
    """
    modules = [(name.rpartition(".")[2], module) for name, module in model.get_decoder().named_modules()]
    linear = {name: type(module) is Conv1D for name, module in modules if isinstance(module, nn.Linear | Conv1D)}
    unknown = [name for name in targets if name not in (*linear, ALL_LINEAR)]
    if unknown or not linear:
        raise UserError(
            f"model.lora.targets: expected {ALL_LINEAR} or linear layers of the decoder, which has "
            f"{', '.join(sorted(linear)) or 'none'}, got {', '.join(unknown or targets)}: choose some of these"
        )
    names = list(targets)
    if ALL_LINEAR in targets:
        # Beside a convolution Mamba's fast path reads out_proj's weights without calling it; PEFT finds names by their
        # ends, so that a number would name a layer.
        read = {"out_proj"} if any(name == "conv1d" for name, _ in modules) else set()
        names = sorted(name for name in linear if name not in read and not name.isdigit())
    return names, any(linear[name] for name in names)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:_REASON] or type(error).__name__


def _not_an_adapter(folder: Path, expected: str, got: str) -> UserError:
    return UserError(
        f"adapter {str(folder)!r}: expected {expected}, got {got}: choose another one, or merge it into its base model "
        "with PEFT and load the result (docs/models.md)"
    )
