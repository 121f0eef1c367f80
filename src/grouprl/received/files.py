"""Checks the files of a model's folder, which can come from anybody, before a library opens them.

A library would wait at a pipe for ever, and build whatever a small file asks for: ten million layers, a tokenizer that
makes a gigabyte of each word.
"""

from __future__ import annotations

import hashlib
import json
import os
from base64 import b64decode
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from grouprl.files import parse, read_file, refuse_depth, refuse_file
from grouprl.models.names import TOKENIZER_FILES, WEIGHT_INDEX
from grouprl.types import UserError

_READ = (".json", ".jinja")  # suffixes of files that a library reads as a whole
_MOST_FILES = 10_000
# By what is in the name of a setting, the first that is: ten times the largest of known models.
_PARTS, _WIDTH = 4096, 1 << 24
_MOST = {"chunk": 1 << 16, "dim": _WIDTH, "size": _WIDTH}
_MOST |= dict.fromkeys(("layer", "expert", "block", "head", "label", "depth"), _PARTS) | {"d_": _WIDTH}
_MOST_ADDED = 100_000  # tokens beside the vocabulary
_MOST_GROWTH = 1024  # times as many bytes as a text has: known tokenizers may make 528 (sentencepiece's NFKC)
_MOST_ADDITION = 4096  # bytes or tokens that are added to any text; characters of a token
_MOST_TOKEN = 1 << 16  # bytes of a decoded token
_MOST_CONTENTS = 64 << 20  # bytes of all added tokens, when the steps were made with them
# Digests of what passed, with the name of its file: a model is loaded in six steps that each look at its files, and
# Gemma's tokenizer of 33 MB takes 2 CPU seconds.
_PASSED: set[bytes] = set()
_SEQUENCES = ("normalizers", "pretokenizers", "processors", "decoders")
# Times as many bytes at most, of steps without a text of their own: https://unicode.org/faq/normalization.html.
# ByteLevel writes "a" as " a" in a letter of two bytes each at most; decoders put a space before each token.
_GROWTH = dict.fromkeys(("Strip", "StripAccents", "Nmt", "CharDelimiterSplit", "Digits", "FixedLength"), 1.0)
_GROWTH |= dict.fromkeys(("BertPreTokenizer", "Punctuation", "Split", "UnicodeScripts", "Whitespace"), 1.0)
_GROWTH |= dict.fromkeys(("WhitespaceSplit", "BertProcessing", "RobertaProcessing", "Fuse", "ByteFallback"), 1.0)
_GROWTH |= {"BPEDecoder": 2.0, "CTC": 2.0, "WordPiece": 2.0, "ByteLevel": 3.0}
_GROWTH |= {"Lowercase": 1.5, "NFC": 3.0, "NFD": 3.0, "NFKC": 11.0, "NFKD": 11.0, "BertNormalizer": 7.5}


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
            got = f"{name!r:.60} in {WEIGHT_INDEX}"
            raise UserError(f"{folder}: expected weights in this folder, got {got}: write its name")
    for name in TOKENIZER_FILES:
        refuse_tokenizer(read_file(folder / name) or b"", folder / name)


def shard_names(folder: Path) -> list[str]:
    """The files of weights that the index in a folder names."""
    shards = _object(read_file(folder / WEIGHT_INDEX) or b"", folder / WEIGHT_INDEX).get("weight_map")
    return sorted({str(name) for name in shards.values()}) if isinstance(shards, dict) else []


def refuse_config(config: dict[str, Any], where: str) -> None:
    """Raises UserError for the configuration of a model that asks for more than any model has."""
    for name, value in _numbers(config):
        most = next((most for part, most in _MOST.items() if part in name), value)
        if value > most:
            raise UserError(f"{where}: {name}: expected at most {most}, got {value}: use another model")


def refuse_tokenizer(data: bytes, path: Path) -> None:
    """Checks the contents of a file of a tokenizer: how long its steps may make a text, and the text of a token.

    Raises:
        UserError: it has too many added tokens or too long tokens, steps that together make a text too long, or steps
            of an unknown type; or it is no JSON, which a library might read nevertheless.
    """
    digest = hashlib.sha256(path.name.encode() + b"\0" + data).digest()
    if digest in _PASSED:
        return
    tree = parse(data, path) if data.strip() else {}
    tree = tree if isinstance(tree, dict) else {}
    added = [tree.get(name) for name in ("added_tokens", "added_tokens_decoder", "additional_special_tokens")]
    added += [tree] if path.name == "added_tokens.json" else []
    count = max((len(tokens) for tokens in added if isinstance(tokens, list | dict)), default=0)
    if count > _MOST_ADDED:
        raise UserError(f"{path}: expected at most {_MOST_ADDED} added tokens, got {count}: use another tokenizer")
    steps = ("normalizer", "pre_tokenizer", "post_processor", "padding", "truncation")
    times, more = _composed([tree.get(name) for name in steps], path)
    _refuse_growth(f"{path}: normalizer, pre_tokenizer and post_processor: expected steps", times, more, _MOST_ADDITION)
    listed = [
        token for tokens in added[:2] for token in (tokens.values() if isinstance(tokens, dict) else tokens or ())
    ]
    contents = [token["content"] for token in listed if isinstance(token, dict) and "content" in token]
    if (
        sum(len(str(text)) * times + more for text in contents) > _MOST_CONTENTS
    ):  # a library makes these steps with each
        raise UserError(f"{path}: expected added tokens of at most {_MOST_CONTENTS} bytes: use another tokenizer")
    model = tree["model"] if isinstance(tree.get("model"), dict) else {}
    affixes = [model.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix", "unk_token")]
    tokens = [token[0] if isinstance(token, list) and token else token for token in model.get("vocab") or ()]
    longest = max((len(token) for token in (*tokens, *affixes, *contents) if isinstance(token, str)), default=0)
    _refuse_growth(f"{path}: vocabulary: expected tokens", 1.0, longest, _MOST_ADDITION)
    times, more = _composed([tree.get("decoder")], path)
    _refuse_growth(f"{path}: decoder: expected steps", times, longest * times + more, _MOST_TOKEN)
    _PASSED.add(digest)


def _refuse_growth(expected: str, times: float, more: float, most: int) -> None:
    if times > _MOST_GROWTH or more > most:
        raise UserError(
            f"{expected} that make a text at most {_MOST_GROWTH} times as long and add at most {most} bytes, got "
            f"{times:.3g} times and {more:.3g} bytes: use another tokenizer"
        )


def _composed(steps: Iterable[Any], path: Path) -> tuple[float, float]:
    """`times` and `more`: steps, one after the other, make `times * n + more` bytes or tokens of n bytes at most."""
    times, more = 1.0, 0.0
    for step in steps:
        if step is not None:
            factor, addition = _growth(step, path)
            times, more = times * factor, more * factor + addition
    return times, more


def _growth(step: Any, path: Path) -> tuple[float, float]:
    """`times` and `more` of one step of a tokenizer, or of a sequence of them."""
    with suppress(ValueError, LookupError, TypeError, AttributeError):  # of settings that are of another kind
        match step:
            case {"type": str(kind)} if kind in _GROWTH:
                return _GROWTH[kind], 4.0  # a space, or the tokens that stand around a text
            case {"type": "Sequence"}:
                [steps] = [step[name] for name in _SEQUENCES if name in step]
                return _composed(steps, path)
            case {"type": "Prepend", "prepend": str(text)}:
                return 1.0, len(text.encode())
            case {"type": "Replace", "pattern": {"String": str(literal)}, "content": str(text)} if literal:
                return max(1.0, len(text.encode()) / len(literal.encode())), 0.0
            case {"type": "Replace", "content": str(text)} | {"type": "Metaspace", "replacement": str(text)}:
                return len(text.encode()) + 1.0, len(text.encode())  # before each character: a regex may match nothing
            case {"type": "Precompiled", "precompiled_charsmap": str(charsmap)}:
                table = b64decode(charsmap)  # of sentencepiece: length of a trie, the trie, the texts of its leaves
                leaves = table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")
                return float(max(1, *map(len, leaves))), 0.0
            case {"type": "TemplateProcessing", "special_tokens": dict(special)}:
                forms = [[next(iter(piece.items())) for piece in step[form]] for form in ("single", "pair")]
                texts = [[piece["id"] for kind, piece in form if kind == "Sequence"] for form in forms]
                copies = max(form.count(name) for form in texts for name in ("A", "B"))
                named = [[piece["id"] for kind, piece in form if kind != "Sequence"] for form in forms]
                return max(1.0, copies), float(max(sum(len(special[name]["ids"]) for name in form) for form in named))
            case {"strategy": strategy, "pad_to_multiple_of": multiple}:  # of the padding
                fixed = 0 if strategy == "BatchLongest" else strategy["Fixed"]
                return 1.0, float(fixed + (multiple or 0))
            case {"max_length": int(longest), "stride": int(stride)}:  # of the truncation: pieces that overlap
                return max(1.0, longest / max(1, longest - stride)), 0.0
    got = step.get("type") if isinstance(step, dict) else step
    raise UserError(
        f"{path}: expected steps of a tokenizer with type and settings, got {got!r:.60}: use another tokenizer, or "
        "save it again with a newer version of its library"
    )


def _below(folder: Path) -> Iterator[Path]:
    """What is in the folder, and in its folders."""
    for path in folder.iterdir():
        yield path
        if path.is_dir():
            yield from path.iterdir()


def _object(data: bytes, path: Path) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        tree = json.loads(data)
        refuse_depth(tree, path)
        return tree if isinstance(tree, dict) else {}
    return {}


def _numbers(tree: Any) -> Iterator[tuple[str, int]]:
    """The names and values of the whole numbers in a configuration, of lists with the name of the list."""
    for name, value in tree.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict):
                yield from _numbers(item)
            elif isinstance(item, int):
                yield name, item
