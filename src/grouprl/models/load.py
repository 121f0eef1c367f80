"""Loads models and tokenizers from Hugging Face folders or the hub, or the bundled ones."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils import find_adapter_config_file, logging

from grouprl.models.adapters import attach_adapter, base_of, is_adapter
from grouprl.models.attention import NAME, hidden_states
from grouprl.models.layouts import TreeLayout
from grouprl.models.manifest import check_manifest, has_manifest
from grouprl.types import UserError

BUNDLED = {"abacus": Path(__file__).parent / "assets" / "abacus"}

# Settings that change logits after the output embedding: log-probs come from hidden states and would miss them.
_LOGIT_CHANGES = {"final_logit_softcapping": None, "logit_scale": 1.0, "logits_scaling": 1.0}

# Tokenizer classes that their tokenizer.json defines completely.
_PLAIN_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")


def load_model(path: str, *, device: torch.device) -> PreTrainedModel:
    """A causal language model with float32 weights, in eval mode, on GroupRL's attention.

    The model stays in eval mode in training, because dropout would make learner and sampler disagree. The folder of a
    LoRA adapter gives its base model with the adapter, which alone takes gradients.

    Raises:
        UserError: there is no such model, or GroupRL does not reproduce its forward pass.
    """
    folder, base, what = _resolve(path), path, "a causal language model in safetensors"
    if has_manifest(Path(folder)):
        check_manifest(Path(folder))
    if is_adapter(folder):
        base, what = _base(folder), f"{what}, the base of the adapter {path!r}"
    model = load_pretrained(AutoModelForCausalLM, base, what)[0].to(device).eval()
    if is_adapter(folder):
        attach_adapter(model, Path(folder))
    _check_logits(path, model.config)
    verify(path, model)
    return model


def load_pretrained(
    auto: Any, path: str, what: str, options: Mapping[str, Any] = MappingProxyType({}), heads: Set[str] = frozenset()
) -> tuple[PreTrainedModel, set[str]]:
    """Loads a checkpoint as float32 weights on GroupRL's attention.

    Args:
        auto: the Auto class of transformers.
        path: bundled name, folder or hub id.
        what: description of the expected model, for the error.
        options: changes to the model's configuration.
        heads: names of weights that the checkpoint may lack, or have in excess: those of another head.

    Returns:
        The model, and the names of weights that the checkpoint lacks, which are random.

    Raises:
        UserError: there is no such model, its files are damaged, its weights are not those of the model, or it is an
            adapter, which transformers might load from a pickle.
    """
    with hide_progress_bars():
        try:
            if find_adapter_config_file(_resolve(path)) is not None:
                raise UserError(
                    f"model {path!r}: expected {what}, got an adapter: merge it into its base model (docs/lora.md); "
                    "train, eval, sample, sft and dpo accept a local folder with an adapter"
                )
            model, info = auto.from_pretrained(
                _resolve(path),
                dtype=torch.float32,
                attn_implementation=NAME,
                use_safetensors=True,
                output_loading_info=True,
                trust_remote_code=False,  # None would ask on a terminal
                **options,
            )
        except UserError:
            raise
        except Exception as error:  # whatever a damaged or hostile file makes transformers raise
            raise _not_loadable(path, what, error) from error
    missing = set(info["missing_keys"])
    for lack, names in (("without", missing - heads), ("with unknown", set(info["unexpected_keys"]) - heads)):
        if names:
            listed = ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise UserError(
                f"model {path!r}: expected the weights of {type(model).__name__}, got a checkpoint {lack} {listed}: "
                "get the complete files of this model; weights that are missing would be random"
            )
    return model, missing


@contextmanager
def hide_progress_bars() -> Iterator[None]:
    """Hides the progress bars of transformers inside the block; GroupRL draws its own."""
    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


@contextmanager
def hide_warnings() -> Iterator[None]:
    """Hides the warnings of transformers inside the block, for callers that check the loaded model themselves."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model; an adapter that was saved without one has the tokenizer of its base model.

    Raises:
        UserError: there is no such tokenizer, or it has no end token.
    """
    folder = _resolve(path)
    if is_adapter(folder) and not (Path(folder) / "tokenizer_config.json").is_file():
        folder = _resolve(_base(folder))
    try:
        declared = get_tokenizer_config(folder).get("tokenizer_class")
        # AutoTokenizer replaces a Qwen2 model's own tokenizer by Qwen2Tokenizer, which splits text in another way.
        loader = PreTrainedTokenizerFast if declared in _PLAIN_TOKENIZERS else AutoTokenizer
        tokenizer: PreTrainedTokenizerBase = loader.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # whatever a damaged or hostile file makes transformers raise
        raise _not_loadable(path, "a tokenizer", error) from error
    if tokenizer.eos_token_id is None:
        raise UserError(f"model {path!r}: expected a tokenizer with an end token (eos_token), got none: set one")
    return tokenizer


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the model that takes no gradient: the reference."""
    return copy.deepcopy(model).requires_grad_(False)


def end_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The tokens that end a completion: the tokenizer's end token and those of the model's generation config."""
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    several = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({tokenizer.eos_token_id, *(token for token in several if token is not None)}))


def context_length(model: PreTrainedModel) -> int:
    """The most tokens of a prompt and its completion that the model's positions allow."""
    return int(getattr(model.config, "max_position_embeddings", 1 << 30))


def fingerprint(model: PreTrainedModel) -> str:
    """Hash of the names, shapes and values of all weights."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@torch.no_grad()
def verify(path: str, model: PreTrainedModel) -> None:
    """Checks on two tiny completions of one prompt that packed hidden states equal the model's own.

    An architecture that keeps state outside attention, or with unknown positions, fails here instead of training with
    wrong log-probs.

    Raises:
        UserError: hidden states differ by more than 1e-3.
    """
    device = model.get_input_embeddings().weight.device
    ids = [torch.tensor(row, device=device) for row in ([3, 5, 7, 9], [4, 6, 8], [2, 1])]
    layout = TreeLayout((4,), ((3, 2),), device)
    packed_SH = hidden_states(model, torch.cat(ids), layout.position_ids_S, layout)
    model.set_attn_implementation("sdpa")
    whole = [torch.cat([ids[0], branch])[None] for branch in ids[1:]]
    rows = [model.get_decoder()(input_ids=row, use_cache=False).last_hidden_state[0] for row in whole]
    model.set_attn_implementation(NAME)
    expected_SH = torch.cat([rows[0], rows[1][4:]])
    gap = float((packed_SH - expected_SH).abs().max())
    if not gap < 1e-3:
        raise UserError(
            f"model {path!r}: expected packed hidden states equal to the model's own, got a difference of {gap:.2g}: "
            f"{type(model).__name__} processes tokens in a way that GroupRL does not support; choose another model"
        )


def _resolve(path: str) -> str:
    return str(BUNDLED.get(path, path))


def _base(adapter: str) -> str:
    """The present folder or hub id of an adapter's base model."""
    named = base_of(adapter)
    for bundled in BUNDLED.values():
        if Path(named).parts[-4:] == bundled.parts[-4:]:  # the bundled model of another installation
            return str(bundled)
    if Path(named).is_absolute() and not Path(named).is_dir():
        raise UserError(
            f"adapter {adapter!r}: expected its base model in {named}, found none: put it back, or write its new "
            f"folder into base_model_name_or_path of {adapter}/adapter_config.json"
        )
    return named


def _check_logits(path: str, config: Any) -> None:
    for name, neutral in _LOGIT_CHANGES.items():
        value = getattr(config, name, None)
        if value not in (None, neutral):
            raise UserError(
                f"model {path!r}: expected logits straight from the output embedding, got {name}={value}: not supported"
            )


def _not_loadable(path: str, what: str, error: Exception) -> UserError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return UserError(
        f"model {path!r}: expected {what}, could not load it ({reason}): "
        f"give a bundled name ({', '.join(BUNDLED)}), a local folder in Hugging Face layout, or a hub id with a network"
    )
