"""Encodes a rendered conversation of which parts are plain text: what an environment says writes no control token."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from grouprl.types import UserError


def probes_of(count: int) -> list[str]:
    """Words that stand in the place of texts where a template shows how it writes them."""
    return [f"zqShown{number}qz" for number in range(count)]


def text_pieces(
    render: Callable[[Sequence[str]], str], texts: Sequence[str], begin: Callable[[str], int] = lambda _: 0
) -> list[str]:
    """By turns the template's own text and one of the texts, in what is rendered with these.

    Args:
        render: renders a conversation with texts in their places; it may raise a UserError.
        texts: as many as it has places.
        begin: where in what is rendered with other texts the first piece begins.
    """
    texts = [text.encode("utf-8", "replace").decode() for text in texts]  # half of a surrogate pair is no text
    probes = probes_of(len(texts))
    skeleton = render(probes)
    rest, pieces = skeleton[begin(skeleton) :], list[str]()
    for number, (probe, text) in enumerate(zip(probes, texts, strict=True)):
        template_text, _, rest = rest.partition(probe)
        # The template may trim a text, or write it as JSON: what it writes stands in the place of the probe.
        before, written = skeleton[: len(skeleton) - len(rest) - len(probe)], ""
        with suppress(UserError):  # a template can fail with a text, such as an empty one
            written = render([*probes[:number], text, *probes[number + 1 :]])
        inside = written.startswith(before) and written[len(before) :].endswith(rest)
        pieces += [template_text, written[len(before) : len(written) - len(rest)] if inside else text]
    return [*pieces, rest]


def encoded_pieces(tokenizer: PreTrainedTokenizerBase, pieces: Sequence[str]) -> tuple[int, ...]:
    """Token ids of `text_pieces`. Only marks in the template's own text become their tokens."""
    text, is_template = "".join(pieces), [number % 2 == 0 for number, piece in enumerate(pieces) for _ in piece]
    marks = _marks(tokenizer)
    batch = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids: list[int] = []
    for token, (start, stop) in zip(batch["input_ids"], batch["offset_mapping"], strict=True):
        mark = marks.get(token, "")
        if mark and (first := text.find(mark, start, stop)) >= 0:  # white space around it can belong to the token
            start, stop = first, first + len(mark)
        elif token == tokenizer.unk_token_id:
            mark = ""  # of a letter that the tokenizer does not know
        ids += _plain_ids(text[start:stop], tokenizer) if mark and not all(is_template[start:stop]) else [token]
    return tuple(ids)


@lru_cache(maxsize=8)
def _marks(tokenizer: PreTrainedTokenizerBase) -> Mapping[int, str]:
    """Tokens that have a meaning for the template: special ones, and added ones in brackets, such as <think>."""
    added = tokenizer.added_tokens_decoder.items()
    return {
        token: entry.content for token, entry in added if entry.special or re.fullmatch(r"[<\[].+[>\]]", entry.content)
    }


def _plain_ids(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of a text as plain text: it is cut where the tokenizer finds a mark."""
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(text) < 2 or _marks(tokenizer).keys().isdisjoint(ids):
        return ids
    return _plain_ids(text[:1], tokenizer) + _plain_ids(text[1:], tokenizer)
