"""Checks the files of a model's folder, which can come from anybody, before a library opens them.

A library would wait at a pipe for ever, and build whatever a small file asks for: ten million layers, a tokenizer that
makes a gigabyte of each word.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from grouprl.files import read_file, refuse_depth, refuse_file
from grouprl.types import UserError

TOKENIZER = "tokenizer.json"
INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = (TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_READ = (".json", ".jinja")  # suffixes of files that a library reads as a whole
_MOST_FILES = 10_000
# By what is in the name of a setting, the first that is: ten times the largest of known models.
_PARTS, _WIDTH = 4096, 1 << 24
_MOST = {"chunk": 1 << 16, "dim": _WIDTH, "size": _WIDTH}
_MOST |= dict.fromkeys(("layer", "expert", "block", "head", "label", "depth"), _PARTS) | {"d_": _WIDTH}
_MOST_ADDED = 100_000  # tokens beside the vocabulary
_MOST_GROWTH = 256  # times that a text may grow before it is split into tokens, or after


def refuse_model(folder: Path) -> None:
    """Checks a folder of a model or an adapter; passes where there is none. Links to files are followed.

    Raises:
        UserError: there is a pipe, a socket or a device in it, a file larger than its kind may be, or a configuration
            or a tokenizer that asks for more than any model has. What cannot be read, who loads it reports.
    """
    if not folder.is_dir():
        return
    for number, path in enumerate(_below(folder)):
        if number >= _MOST_FILES:
            raise UserError(f"{folder}: expected the folder of a model, got one of more than {_MOST_FILES} files")
        if os.path.exists(path) and not path.is_dir():
            refuse_file(path, os.stat(path), None if path.suffix in _READ else 1 << 62)
    refuse_config(_object(read_file(folder / "config.json") or b"", folder / "config.json"), f"{folder}/config.json")
    for name in shard_names(folder):
        if Path(name).name != name:
            raise UserError(f"{folder}: expected weights in this folder, got {name!r:.60} in {INDEX}: write its name")
    for name in TOKENIZER_FILES:
        refuse_tokenizer(read_file(folder / name) or b"", folder / name)


def shard_names(folder: Path) -> list[str]:
    """The files of weights that the index in a folder names."""
    shards = _object(read_file(folder / INDEX) or b"", folder / INDEX).get("weight_map")
    return sorted({str(name) for name in shards.values()}) if isinstance(shards, dict) else []


def refuse_config(config: dict[str, Any], place: str) -> None:
    """Raises UserError for the configuration of a model that asks for more than any model has."""
    for name, value in _numbers(config):
        most = next((most for part, most in _MOST.items() if part in name), value)
        if value > most:
            raise UserError(f"{place}: {name}: expected at most {most}, got {value}: use another model")


def refuse_tokenizer(data: bytes, path: Path) -> None:
    """Checks the contents of a file of a tokenizer.

    Raises:
        UserError: it has too many added tokens, or steps that multiply a text.
    """
    found = _object(data, path)
    added = [found.get(name) for name in ("added_tokens", "added_tokens_decoder", "additional_special_tokens")]
    added += [found] if path.name == "added_tokens.json" else []
    count = max((len(one) for one in added if isinstance(one, list | dict)), default=0)
    if count > _MOST_ADDED:
        raise UserError(f"{path}: expected at most {_MOST_ADDED} added tokens, got {count}: use another tokenizer")
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        growth = 1.0
        for step in _steps(found.get(name)):
            pattern, content = step.get("pattern"), step.get("content")
            if isinstance(content, str):
                literal = pattern.get("String") if isinstance(pattern, dict) else None
                regex = pattern.get("Regex") if isinstance(pattern, dict) else None
                length = len(literal) if isinstance(literal, str) else not _matches_nothing(regex)
                growth *= max(1.0, len(content) / length if length else len(content) + 1.0)
        if growth > _MOST_GROWTH:
            raise UserError(
                f"{path}: {name}: expected steps that make a text at most {_MOST_GROWTH} times as long, got "
                f"{growth:.3g} times: use another tokenizer"
            )


def _matches_nothing(regex: object) -> bool:
    """Whether a pattern matches an empty text, so that its content is put between all characters; True if unknown."""
    try:
        return re.match(str(regex), "") is not None
    except re.error:
        return True


def _below(folder: Path) -> Iterator[Path]:
    """What is in the folder, and in its folders."""
    for path in folder.iterdir():
        yield path
        if path.is_dir():
            yield from path.iterdir()


def _object(data: bytes, path: Path) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        found = json.loads(data)
        refuse_depth(found, path)
        return found if isinstance(found, dict) else {}
    return {}


def _numbers(tree: Any) -> Iterator[tuple[str, int]]:
    """The names and values of the whole numbers in a configuration, of lists with the name of the list."""
    for name, value in tree.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                yield from _numbers(one)
            elif isinstance(one, int):
                yield name, one


def _steps(tree: Any) -> Iterator[dict[str, Any]]:
    """Every step of a normalizer, a pre-tokenizer or a decoder, also inside sequences."""
    if isinstance(tree, dict):
        yield tree
    for value in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _steps(value)
