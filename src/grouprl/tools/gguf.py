"""Models of llama.cpp and Ollama: a GGUF file becomes, once, a folder in Hugging Face layout that is loaded afterwards.

The weights are dequantized to float32, so that they can be trained. transformers reads the tensors, the tokenizer and
the chat template (docs/models.md).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    modeling_gguf_pytorch_utils,
)
from transformers.utils import logging

from grouprl.files import read_json
from grouprl.models.load import hide_progress_bars, hide_warnings, refuse_other_weights
from grouprl.models.names import is_gguf
from grouprl.models.save import save_model
from grouprl.received.files import refuse_config
from grouprl.record.files import atomic_directory
from grouprl.types import UserError, import_extra

SOURCE = "gguf.json"  # in the folder: name and SHA-256 of the file that it was made of
_BLOCK = 1 << 24  # bytes

# The reader's bar is tqdm's own, which no setting of transformers hides.
modeling_gguf_pytorch_utils.tqdm = logging.tqdm


def loadable(path: str) -> str:
    """The path of a model as it is loaded: of a GGUF file the folder that is made of it, any other as it is."""
    return str(import_gguf(Path(path))) if is_gguf(path) else path


def import_gguf(file: Path, folder: Path | None = None) -> Path:
    """Returns the folder of a GGUF file's model, which it makes the first time.

    Args:
        file: the file.
        folder: where the model is written; None = beside the file, under its name without `.gguf`.

    Raises:
        UserError: the file is damaged, one of several parts, of an unknown architecture or quantization, or without a
            tokenizer; or the folder holds something else.
    """
    folder = file.with_suffix("") if folder is None else folder
    if not file.is_file():
        raise UserError(f"model {str(file)!r}: expected a GGUF file, found none: check the path")
    source = {"file": file.name, "sha256": _sha256(file)}
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        made_of = read_json(folder / SOURCE) if folder.is_dir() else {}
        if made_of.get("sha256") == source["sha256"]:
            return folder
        raise UserError(
            f"model {str(file)!r}: expected a new or empty folder {folder} for its weights, got "
            f"{_held(folder, made_of.get('file'))}: move it away, or "
            f"name another folder with grouprl import-model {file} FOLDER"
        )
    _check(file)
    with atomic_directory(folder) as made:  # first, because a place that cannot be written to costs no reading then
        model, tokenizer = _read(file)
        save_model(model, tokenizer, made)
        (made / SOURCE).write_text(json.dumps(source, indent=2) + "\n", encoding="utf-8")
    return folder


def _held(folder: Path, source: str | None) -> str:
    if not folder.is_dir():
        return "a file"
    return "one with files" if source is None else f"one of another file, {source!r}"


def _check(file: Path) -> None:
    """Reads the header alone, and refuses what transformers would read wrongly or with a traceback."""
    reader = import_extra("gguf", "gguf", f"model {str(file)!r}").GGUFReader
    try:
        found = reader(file)
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError, UnicodeDecodeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"model {str(file)!r}: expected a whole GGUF file of a known quantization, got one that cannot be read "
            f"({reason}): get the file again, or another quantization of the model"
        ) from error
    header = {name: _value(field) for name, field in found.fields.items()}
    parts = header.get("split.count") or 1
    if parts > 1:
        raise UserError(
            f"model {str(file)!r}: expected a model in one GGUF file, got one of {parts} parts: join them with "
            "llama-gguf-split --merge"
        )
    if not header.get("tokenizer.ggml.model"):
        raise UserError(
            f"model {str(file)!r}: expected a GGUF file with a tokenizer, got none in it: get the file of a language "
            "model"
        )
    layers = header.get(f"{header.get('general.architecture')}.block_count")
    numbers = {int(found[1]) for tensor in found.tensors if (found := re.match(r"blk\.(\d+)\.", tensor.name))}
    if isinstance(layers, int) and numbers != set(range(layers)):
        raise UserError(
            f"model {str(file)!r}: expected the weights of {layers} layers, as the file says, got those of "
            f"{len(numbers)}: get the complete file of this model; weights that are missing would be random"
        )


def _value(field: Any) -> Any:
    return field.contents() if len(field.data) == 1 else None


def _read(file: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    place: dict[str, Any] = {"gguf_file": file.name, "trust_remote_code": False}
    try:
        with hide_progress_bars(), hide_warnings():
            config = AutoConfig.from_pretrained(str(file.parent), **place)
            refuse_config(config.to_dict(), file.name)
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(file.parent), **place)
            place |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
            read: Any
            read, info = AutoModelForCausalLM.from_pretrained(str(file.parent), dtype=torch.float32, **place)
    except Exception as error:  # whatever a damaged or hostile file makes transformers raise
        reason = ": ".join((type(error).__name__, *str(error).strip().splitlines()[:1]))
        raise UserError(
            f"model {str(file)!r}: expected a GGUF file of an architecture that transformers reads, with its "
            f"tokenizer, could not load it ({reason}): get the model in Hugging Face layout"
        ) from error
    lacking = {*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])}
    refuse_other_weights(str(file), read, lacking, set(info["unexpected_keys"]))
    # transformers saves no model that came from GGUF: its weights go into one that did not.
    with torch.device("meta"):
        made = type(read)(config)
    made.load_state_dict(read.state_dict(), assign=True)
    made.tie_weights()
    return made, _without_additions(tokenizer, len(made.get_input_embeddings().weight))


def _without_additions(tokenizer: PreTrainedTokenizerBase, rows: int) -> PreTrainedTokenizerBase:
    """Removes what transformers adds to each tokenizer of GPT-2's kind: a model without it has no embedding of it."""
    if len(tokenizer) <= rows:
        return tokenizer
    tree = json.loads(tokenizer.backend_tokenizer.to_str())
    tree["added_tokens"] = [token for token in tree["added_tokens"] if token["id"] < rows]
    backend, template = Tokenizer.from_str(json.dumps(tree)), tokenizer.chat_template
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, **tokenizer.special_tokens_map)


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
