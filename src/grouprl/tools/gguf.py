"""Models of llama.cpp and Ollama: a GGUF file becomes, once, a folder in Hugging Face layout that is loaded afterwards.

The weights are dequantized to float32, so that they can be trained. transformers reads the tensors, the tokenizer and
the chat template (docs/models.md).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
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
from grouprl.leaves import leaf
from grouprl.models.load import hide_progress_bars, hide_warnings, refuse_other_weights
from grouprl.models.names import is_gguf
from grouprl.models.save import save_model
from grouprl.record.files import atomic_directory
from grouprl.types import UserError, import_extra

SOURCE = "gguf.json"  # in the folder: name and SHA-256 of the file that it was made of
_BLOCK = 1 << 24  # bytes
_SPARE = 1 << 24  # weights beside two for each of the file
_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a value, by its type
_TEXT, _LIST = 8, 9
_MOST_ELEMENTS = 1 << 22  # values in a header; Gemma's vocabulary has 1,400,000
_MOST_AXES = 8

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
    with file.open("rb") as stream:
        source = {"file": file.name, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        made_of = read_json(folder / SOURCE) if folder.is_dir() else {}
        if made_of.get("sha256") == source["sha256"]:
            return folder
        other = f"one of another file, {made_of['file']!r}" if made_of.get("file") else "one with files"
        raise UserError(
            f"model {str(file)!r}: expected a new or empty folder {folder} for its weights, got "
            f"{other if folder.is_dir() else 'a file'}: move it away, or name another folder with "
            f"grouprl import-model {file} FOLDER"
        )
    reader = _check(file)
    # The folder comes first: a place that cannot be written to costs no reading then.
    with atomic_directory(folder) as unfinished:
        model, tokenizer = _read(file, reader)
        save_model(model, tokenizer, unfinished)
        (unfinished / SOURCE).write_text(json.dumps(source, indent=2) + "\n", encoding="utf-8")
    return folder


def _check(file: Path) -> Any:
    """A reader of the header, after what transformers would read wrongly or with a traceback is refused."""
    library = import_extra("gguf", "gguf", f"model {str(file)!r}")
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            _refuse_lengths(stream, library.GGML_QUANT_SIZES, size)
        content = _reader_class(library.GGUFReader)(file)
        header = {name: (field.contents() if len(field.data) == 1 else None) for name, field in content.fields.items()}
    except (ValueError, LookupError, OverflowError, MemoryError, TypeError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"model {str(file)!r}: expected a whole GGUF file of a known quantization, got one that cannot be read "
            f"({reason}): get the file again, or another quantization of the model"
        ) from error
    parts = header.get("split.count") or 1
    if parts != 1:
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
    matches = [re.match(r"blk\.([0-9]{1,9})\.", tensor.name) for tensor in content.tensors]
    numbers = {int(match[1]) for match in matches if match}
    if isinstance(layers, int) and (len(numbers), max(numbers, default=-1)) != (layers, layers - 1):
        raise UserError(
            f"model {str(file)!r}: expected the weights of {layers} layers, as the file says, got those of "
            f"{len(numbers)}: get the complete file of this model; weights that are missing would be random"
        )
    for name, value in header.items():
        is_count = re.search("_(count|length)$|vocab_size$", name) and "context" not in name
        if is_count and isinstance(value, int) and not 0 <= value <= size:
            raise UserError(
                f"model {str(file)!r}: {name}: expected a count that fits a file of {size} bytes, got {value}: get the "
                "file again"
            )
    return content


def _reader_class(library_reader: Any) -> Any:
    """The library's reader, with one view of plain memory for each value in place of three of a mapped file.

    Gemma's vocabulary has 1,300,000 values: 19 CPU seconds with the library's, 4 with this (EPYC Zen 3, one thread).
    """

    class Reader(library_reader):  # type: ignore[misc]
        def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: str | None = None) -> Any:
            order = np.dtype(dtype).newbyteorder(override_order or self.byte_order)
            return np.frombuffer(self.data, order, int(count), offset)

    return Reader


def _refuse_lengths(stream: BinaryIO, sizes: Mapping[int, tuple[int, int]], size: int) -> None:
    """Compares every count and length of a header with the size of the file, before a library uses them.

    Source of the layout: GGUF version 3 as ggml specifies it (ggml-org/ggml, gguf.md).

    Raises:
        ValueError: the file is cut, or is no GGUF file of this byte order.
    """
    elements = 0

    def read(count: int) -> bytes:
        if (needed := stream.tell() + count) > size:
            raise ValueError(f"the file is cut: expected {needed} bytes or more, got {size}")
        if count > _BLOCK:
            raise ValueError(f"a field of {count} bytes")
        return stream.read(count)

    def number(width: int) -> int:
        return int.from_bytes(read(width), "little")

    def skip(kind: int, count: int) -> None:
        nonlocal elements
        elements += count
        if elements > _MOST_ELEMENTS or kind not in (*_WIDTHS, _TEXT):
            raise ValueError(f"{count} values of type {kind} in a field")
        if kind == _TEXT:
            for _ in range(count):
                read(number(8))
        else:
            read(_WIDTHS[kind] * count)

    magic, version, tensors, fields = read(4), number(4), number(8), number(8)
    if magic != b"GGUF" or not version & 0xFFFF:
        raise ValueError("no GGUF file, or one of another byte order")
    alignment = 32
    for _ in range(fields):
        name, kind = read(number(8)), number(4)
        if kind == _LIST:
            skip(number(4), number(8))
        elif name == b"general.alignment" and kind == 4:
            alignment = number(4)
        else:
            skip(kind, 1)
    end = 0
    for _ in range(tensors):
        read(number(8))
        shape = [number(8) for _ in range(min(number(4), _BLOCK))]
        kind, start = number(4), number(8)
        if len(shape) > _MOST_AXES or kind not in sizes:
            raise ValueError(f"weights of {len(shape)} axes and type {kind}")
        block, width = sizes[kind]
        end = max(end, start + math.prod(shape) * width // block)
    needed = -(-stream.tell() // max(1, alignment)) * alignment + end
    if needed > size:
        raise ValueError(f"the file is cut: expected {needed} bytes, got {size}")


def _read(file: Path, reader: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    location: dict[str, Any] = {"gguf_file": file.name, "trust_remote_code": False}
    weights = sum(tensor.n_elements for tensor in reader.tensors)
    library = import_extra("gguf", "gguf", f"model {str(file)!r}")
    library_reader = library.GGUFReader
    try:
        # transformers makes a reader of the same file for the settings, the tokenizer and the weights.
        library.GGUFReader = lambda *_: reader
        with hide_progress_bars(), hide_warnings():
            config = AutoConfig.from_pretrained(str(file.parent), **location)
            leaf("received.files").refuse_config(config.to_dict(), file.name)
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
            if (needed := sum(weight.numel() for weight in model.parameters())) > _SPARE + 2 * weights:
                raise ValueError(f"its settings need {needed} weights, it has {weights}")
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                str(file.parent), config=config, **location
            )
            location |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
            read: Any
            read, info = AutoModelForCausalLM.from_pretrained(str(file.parent), dtype=torch.float32, **location)
    except Exception as error:  # whatever a damaged or hostile file makes transformers raise
        reason = ": ".join((type(error).__name__, *str(error).strip().splitlines()[:1]))
        raise UserError(
            f"model {str(file)!r}: expected a GGUF file of an architecture that transformers reads, with its "
            f"tokenizer, could not load it ({reason}): get the model in Hugging Face layout"
        ) from error
    finally:
        library.GGUFReader = library_reader
    lacking = {*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])}
    refuse_other_weights(str(file), read, lacking, set(info["unexpected_keys"]))
    # transformers saves no model that came from GGUF: its weights go into one that did not.
    with torch.device("meta"):
        model_to_save = type(read)(config)
    model_to_save.load_state_dict(read.state_dict(), assign=True)
    model_to_save.tie_weights()
    rows = len(model_to_save.get_input_embeddings().weight)
    if len(tokenizer) <= rows:
        return model_to_save, tokenizer
    tree = json.loads(tokenizer.backend_tokenizer.to_str())
    tree["added_tokens"] = [token for token in tree["added_tokens"] if token["id"] < rows]
    backend, template = Tokenizer.from_str(json.dumps(tree)), tokenizer.chat_template
    return model_to_save, PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=template, **tokenizer.special_tokens_map
    )
