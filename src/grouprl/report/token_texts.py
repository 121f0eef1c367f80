"""What single tokens say. A tokenizer decodes sequences; here every token is shown by itself, and no byte is lost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from grouprl.record.layout import RunDirectory
from grouprl.record.strict import read_file
from grouprl.types import UserError

_ASSETS = Path(__file__).parents[1] / "models" / "assets"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # a piece of SentencePiece's byte fallback
_NO_CHARACTER = "\ufffd"  # what decoding gives for bytes that are none


@dataclass(frozen=True)
class Found:
    """A tokenizer, and where it lies, as people name it."""

    tokenizer: Tokenizer
    place: str


def find_tokenizer(folder: Path, config: Mapping[str, Any], root: Path) -> Found | None:
    """The tokenizer of a run: of its newest checkpoint, else of the model that it started from; None = neither is here.

    Args:
        folder: the run directory.
        config: its configuration.
        root: the folder of runs. Nothing outside it is read, nor what a link in it leads to, bundled models apart.

    Raises:
        UserError: the file is no tokenizer.
    """
    for place, path, owner in _candidates(folder, config, root):
        try:
            # A checkpoint may hold a link, and one that is replaced vanishes.
            if path.resolve().is_relative_to(owner.resolve()):
                file = read_file(path)
                if file is not None:
                    return Found(_loaded(file), place)
        except (OSError, RuntimeError):  # RuntimeError: a link to itself
            continue
        except ValueError as error:
            raise UserError(f"{path}: expected a tokenizer, got '{error}': restore the file") from None
    return None


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Of each token its `id`, its `text` and whether it is `half`: not whole characters.

    The text of a special token is its name. Bytes that are no whole character are written as Python writes them
    (\\xe2); the text of an id that the tokenizer does not know is None.
    """
    shown = {token: _shown(tokenizer, token) for token in set(ids)}
    return [{"id": token, "text": shown[token][0], "half": shown[token][1]} for token in ids]


def _candidates(folder: Path, config: Mapping[str, Any], root: Path) -> Iterator[tuple[str, Path, Path]]:
    """Name, tokenizer and the folder that it must not lead out of; the best first."""
    for saved in reversed(RunDirectory(folder).saved_models()):
        yield f"checkpoints/{saved.path.name}", saved.path / "tokenizer.json", root
    model = config.get("model")
    name = model.get("path") if isinstance(model, Mapping) else None
    if isinstance(name, str) and name:
        if re.fullmatch(r"[A-Za-z0-9_-]+", name) and (_ASSETS / name).is_dir():
            yield name, _ASSETS / name / "tokenizer.json", _ASSETS
        else:
            yield name, Path(name) / "tokenizer.json", root


@lru_cache(maxsize=4)
def _loaded(file: bytes) -> Tokenizer:
    return Tokenizer.from_buffer(file)


def _shown(tokenizer: Tokenizer, token: int) -> tuple[str | None, bool]:
    piece = tokenizer.id_to_token(token) if token >= 0 else None
    if piece is None:
        return None, False
    alone: str = tokenizer.decode([token], skip_special_tokens=False)
    if _NO_CHARACTER in alone and (raw := _bytes(piece)) is not None:
        text = raw.decode("utf-8", "backslashreplace")
        return text, text.encode() != raw
    # Some decoders take the space away from what a sequence begins with; what comes second is as it stands in a text.
    twice: str = tokenizer.decode([token, token], skip_special_tokens=False)
    return (twice.removeprefix(alone) if twice.startswith(alone) else alone), False


def _bytes(piece: str) -> bytes | None:
    """The bytes that a vocabulary's piece stands for; None when it stands for characters."""
    if found := _BYTE.fullmatch(piece):
        return bytes.fromhex(found[1])
    known = _byte_of_sign()
    return bytes(known[sign] for sign in piece) if all(sign in known for sign in piece) else None


@cache
def _byte_of_sign() -> dict[str, int]:
    """GPT-2's alphabet of bytes: those that print as themselves, the others in their order from U+0100 on."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(0x100 + place): byte for place, byte in enumerate(others)}
