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
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.tokenization_auto import get_tokenizer_config
from transformers.utils import CONFIG_NAME, cached_file, extract_commit_hash, find_adapter_config_file, logging

from grouprl.forward.devices import traits_of
from grouprl.forward.precision import round_weights
from grouprl.leaves import leaf
from grouprl.models.adapters import attach_adapter, base_of, is_adapter
from grouprl.models.manifest import check_manifest, has_manifest
from grouprl.models.names import BUNDLED, TOKENIZER_FILES, WEIGHT_INDEX, ModelSource, check_name
from grouprl.models.templates import prepare_template
from grouprl.models.verify import in_right_form, moved
from grouprl.types import UserError, nearest_name

# Configurations of language models, and of models that see images.
_SPEAKS, _SEES = MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

_SPARE = 1 << 24  # weights beside two for each byte of the files

# Tokenizer classes that their tokenizer.json defines completely.
_PLAIN_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")


def load_model(source: str | ModelSource, *, device: torch.device, weights: str = "float32") -> PreTrainedModel:
    """A causal language model with float32 weights, in eval mode, on GroupRL's attention.

    With `weights` "bfloat16" or "nf4" it is loaded and checked in float32 on the CPU, then rounded (`round_weights`,
    `grouprl.lean.four_bits`) and moved, so that the device never holds more.

    The model stays in eval mode in training, because dropout would make learner and sampler disagree. The folder of a
    LoRA adapter gives its base model with the adapter, which alone takes gradients.

    Raises:
        UserError: there is no such model, or GroupRL does not reproduce its forward pass.
    """
    path, revision = located(source)
    folder, base, what = _resolve(path), path, "a causal language model in safetensors"
    _received(path, revision)
    if has_manifest(Path(folder)):
        check_manifest(Path(folder))
    if is_adapter(folder):
        (base, revision), what = _base(folder), f"{what}, the base of the adapter {path!r}"
    try:
        _refuse_adapter(base, what, revision)
        config = AutoConfig.from_pretrained(_resolve(base), revision=revision, trust_remote_code=False)
    except UserError:
        raise
    except Exception as error:  # whatever a damaged or hostile file makes transformers raise
        raise _not_loadable(base, what, error) from error
    sees_images = type(config) in _SEES and type(config) not in _SPEAKS
    auto = AutoModelForImageTextToText if sees_images else AutoModelForCausalLM

    rounded = weights != "float32"
    load_device = torch.device("cpu") if rounded or traits_of(device.type).compares else device

    def load(attention: str) -> PreTrainedModel:
        model = load_pretrained(auto, base, what, attention, {"revision": revision})[0].to(load_device).eval()
        model.config._commit_hash = extract_commit_hash(
            cached_file(_resolve(base), CONFIG_NAME, revision=revision), None
        )
        return attach_adapter(model, Path(folder)) if is_adapter(folder) else model

    with hide_warnings():  # about masks and fast kernels of single architectures, whose numbers are compared here
        model = in_right_form(path, load)
    # Only the text tower of a model that sees learns: text gives the rest no gradient.
    parts = (model.get_decoder(), model.get_output_embeddings())
    learned = {id(weight) for part in parts for weight in part.parameters()}
    for weight in model.parameters():
        if id(weight) not in learned:
            weight.requires_grad_(False)
    if rounded:
        round_weights(model)
    if weights == "nf4":
        leaf("four_bits")(model, device)
    return moved(path, model, device, rounded=rounded)


def _refuse_adapter(path: str, what: str, revision: str) -> None:
    check_name(path)
    _received(path, revision, CONFIG_NAME)
    if find_adapter_config_file(_resolve(path), revision=revision) is not None:
        raise UserError(
            f"model {path!r}: expected {what}, got an adapter: merge it into its base model (docs/models.md); "
            "train, eval, sample, sft and dpo accept a local folder with an adapter"
        )


def _received(path: str, revision: str, *names: str) -> Path:
    """The folder of a model, checked unless it came with the package; hub models have these files downloaded first."""
    folder = Path(_resolve(path))
    if folder in BUNDLED.values():
        return folder
    if not folder.is_dir():
        quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
        files = [cached_file(path, name, revision=revision, **quiet) for name in names]
        folder = next((Path(file).parent for file in files if file), folder)
    leaf("received.files").refuse_model(folder)
    return folder


def _refuse_size(auto: Any, path: str, options: Mapping[str, Any]) -> None:
    """Checks that a model has about as many weights as its files: transformers makes those that are missing first."""
    revision = options.get("revision", "main")
    folder = _received(path, revision, WEIGHT_INDEX)
    if folder in BUNDLED.values():
        return
    shards = leaf("received.files").shard_names(folder)
    folder = _received(path, revision, *(shards or ["model.safetensors"]))
    file_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    config = AutoConfig.from_pretrained(_resolve(path), trust_remote_code=False, **options)
    with torch.device("meta"):
        weight_count = sum(weight.numel() for weight in auto.from_config(config, trust_remote_code=False).parameters())
    if file_bytes and weight_count > _SPARE + 2 * file_bytes:  # four bits are a weight
        got = f"one of {weight_count} and files of {file_bytes} bytes: get the files of one model"
        raise UserError(f"model {path!r}: expected a configuration of as many weights as its files, got {got}")


def load_pretrained(
    auto: Any,
    path: str,
    what: str,
    attention: str,
    options: Mapping[str, Any] = MappingProxyType({}),
    heads: Set[str] = frozenset(),
) -> tuple[PreTrainedModel, set[str]]:
    """Loads a checkpoint as float32 weights.

    Args:
        auto: the Auto class of transformers.
        path: bundled name, folder or hub id.
        what: description of the expected model, for the error.
        attention: name of the attention implementation, GroupRL's or one of transformers'.
        options: changes to the model's configuration, and the hub's revision.
        heads: names of weights that the checkpoint may lack, or have in excess: those of another head.

    Returns:
        The model, and the names of weights that the checkpoint lacks, which are random.

    Raises:
        UserError: there is no such model, its files are damaged, its weights are not those of the model, or it is an
            adapter, which transformers might load from a pickle.
    """
    with hide_progress_bars():
        try:
            _refuse_adapter(path, what, options.get("revision", "main"))
            _refuse_size(auto, path, options)
            model, info = auto.from_pretrained(
                _resolve(path),
                dtype=torch.float32,
                attn_implementation=attention,
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
    refuse_other_weights(path, model, missing - heads, set(info["unexpected_keys"]) - heads)
    return model, missing


def refuse_other_weights(path: str, model: PreTrainedModel, missing: Set[str], unknown: Set[str]) -> None:
    """Raises UserError for a checkpoint that lacks weights of a model, by name, or has others."""
    for lack, names in (("without", missing), ("with unknown", unknown)):
        if names:
            listed = ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise UserError(
                f"model {path!r}: expected the weights of {type(model).__name__}, got a checkpoint {lack} {listed}: "
                "get the complete files of this model; weights that are missing would be random"
            )


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


def load_tokenizer(model: str | ModelSource) -> PreTrainedTokenizerBase:
    """The tokenizer of a model; an adapter that was saved without one has the tokenizer of its base model.

    A configuration gives it another chat template, or arguments for it: see `prepare_template`.

    Raises:
        UserError: there is no such tokenizer, it has no end token, or the chat template cannot be used.
    """
    path, revision = located(model)
    folder = _resolve(path)
    if is_adapter(folder) and not (Path(folder) / "tokenizer_config.json").is_file():
        base, revision = _base(folder)
        folder = _resolve(base)
    try:
        _received(folder, revision, *TOKENIZER_FILES)
        declared = get_tokenizer_config(folder, revision=revision).get("tokenizer_class")
        # AutoTokenizer replaces a Qwen2 model's own tokenizer by Qwen2Tokenizer, which splits text in another way.
        loader = PreTrainedTokenizerFast if declared in _PLAIN_TOKENIZERS else AutoTokenizer
        tokenizer: PreTrainedTokenizerBase = loader.from_pretrained(folder, revision=revision, trust_remote_code=False)
    except UserError:
        raise
    except Exception as error:  # whatever a damaged or hostile file makes transformers raise
        raise _not_loadable(path, "a tokenizer", error) from error
    if tokenizer.eos_token_id is None:
        raise UserError(f"model {path!r}: expected a tokenizer with an end token (eos_token), got none: set one")
    if isinstance(model, str):
        prepare_template(tokenizer, path)
    else:
        prepare_template(tokenizer, path, model.chat_template, model.chat_template_kwargs)
    return tokenizer


def check_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises UserError for a tokenizer with tokens that the model has no embedding of."""
    rows, tokens = model.get_input_embeddings().weight.shape[0], len(tokenizer)
    if tokens > rows:
        raise UserError(
            f"model {model.name_or_path!r}: expected a tokenizer of at most {rows} tokens, as many as the model has "
            f"embeddings, got one of {tokens}: use the model's own tokenizer"
        )


def located(model: str | ModelSource) -> tuple[str, str]:
    """Path and hub revision of a model.

    Raises:
        UserError: a model on this machine has no revisions.
    """
    if isinstance(model, str):
        return model, "main"
    if model.revision is not None and (model.path in BUNDLED or Path(model.path).is_dir()):
        raise UserError(
            f"model.revision: expected null for {model.path}, which is on this machine, got {model.revision}: leave it "
            "out, or give a hub id as model.path"
        )
    return model.path, model.revision or "main"


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the model that takes no gradient: the reference."""
    return copy.deepcopy(model).requires_grad_(False)


@torch.no_grad()
def mix_weights(model: PreTrainedModel, other: PreTrainedModel, share: float) -> None:
    """Makes each weight of `model`, in place, 1 - share of itself and `share` of the same weight of `other`.

    A share below 1 is the soft update of arXiv:2404.09656, equation 3, rounded once from float32.
    """
    if share == 1:
        model.load_state_dict(other.state_dict())
        return
    theirs = dict(other.named_parameters())  # names a shared weight once; the frozen model has the same names
    for name, weight in model.named_parameters():
        weight.copy_(weight.float() * (1 - share) + theirs[name].to(weight.device).float() * share)


def end_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The tokens that end a completion: the tokenizer's end token and those of the model's generation config."""
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    several = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({tokenizer.eos_token_id, *(token for token in several if token is not None)}))


def context_length(model: PreTrainedModel) -> int:
    """The most tokens of a prompt and its completion that the model's positions allow."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 30)


def fingerprint(model: PreTrainedModel) -> str:
    """Hash of the names, shapes and values of all weights."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _resolve(path: str) -> str:
    return str(BUNDLED.get(path, path))


def _base(adapter: str) -> tuple[str, str]:
    """The present folder or hub id of an adapter's base model, and its hub revision."""
    named, revision = base_of(adapter)
    for bundled in BUNDLED.values():
        if Path(named).parts[-4:] == bundled.parts[-4:]:  # the bundled model of another installation
            return str(bundled), "main"
    if Path(named).is_absolute() and not Path(named).is_dir():
        raise UserError(
            f"adapter {adapter!r}: expected its base model in {named}, found none: restore it, or write its new "
            f"folder into base_model_name_or_path of {adapter}/adapter_config.json"
        )
    return named, revision


def _not_loadable(path: str, what: str, error: Exception) -> UserError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    near = nearest_name(path, BUNDLED)
    hint = f"did you mean {near!r}? " if near else ""
    return UserError(
        f"model {path!r}: expected {what}, could not load it ({reason}): {hint}"
        f"give a bundled name ({', '.join(BUNDLED)}), a local folder in Hugging Face layout, or a hub id with a network"
    )
