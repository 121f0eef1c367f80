"""Completions that match a regular expression: the tokens that may follow, for each state of an automaton.

The automaton reads bytes, as tokens are parts of UTF-8 text. A token is allowed where it leads to a state from which
the end can still be reached; an end token is allowed where the text so far matches the whole expression. Sampler and
learner read the same table (Willard, Louf: Efficient Guided Generation for Large Language Models, arXiv:2307.09702,
section 3).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from grouprl.engines.byte_automaton import NONE, byte_automaton
from grouprl.models.load import end_token_ids
from grouprl.types import Sampling, UserError

KEY = "rollout.regex"
LARGEST = 1 << 30  # bytes of a table


@dataclass(frozen=True)
class Vocabulary:
    """What the tokens of a model write."""

    tokens: tuple[bytes, ...]  # of each token id; empty = writes no text, such as a control token
    ends: tuple[int, ...]  # end tokens
    strips: bool = False  # whether a space before everything is not part of the text, as in Llama 2


@dataclass(frozen=True, eq=False)
class TokenAutomaton:
    """The automaton of a regular expression over a model's tokens. State 0 is before the first token."""

    regex: str
    vocabulary: Vocabulary
    next_XV: Tensor  # [states, V] the state after a token; -1 = not allowed
    _copies: dict[torch.device, Tensor] = field(default_factory=dict, repr=False)

    def __reduce__(self) -> tuple[Callable[..., TokenAutomaton], tuple[Any, ...]]:
        """Another process builds the table again: it is larger than what it is built from."""
        return structure_of, (self.regex, self.vocabulary)

    def restrict(self, logits_NV: Tensor, states_N: Tensor) -> Tensor:
        """[N, V] logits with -inf for the tokens that are not allowed in [N] states."""
        return logits_NV.masked_fill(self._on(logits_NV.device)[states_N] == NONE, -torch.inf)

    def after(self, states_N: Tensor, tokens_N: Tensor) -> Tensor:
        """[N] states after [N] allowed tokens; an end token changes no state."""
        return self._on(tokens_N.device)[states_N, tokens_N].long()

    def before(self, token_ids_NT: Tensor, mask_NT: Tensor) -> Tensor:
        """[N, T] states before each token of whole completions, 0 outside them.

        Raises:
            UserError: a token is not allowed where it stands, so that another engine or expression sampled it.
        """
        states_NT = torch.zeros_like(token_ids_NT)
        nothing_N, next_XV = states_NT[:, 0].clone(), self._on(token_ids_NT.device)
        states_N = nothing_N
        for at, (ids_N, live_N) in enumerate(zip(token_ids_NT.T, mask_NT.T, strict=True)):
            states_NT[:, at] = states_N.where(live_N, nothing_N)
            states_N = next_XV[states_NT[:, at], ids_N].long().where(live_N, nothing_N)
            if (states_N == NONE).any():
                row = int((states_N == NONE).nonzero()[0])
                raise UserError(
                    f"{KEY}: expected completions that match {self.regex!r}, got token {int(ids_N[row])} as token "
                    f"{at + 1} of completion {row}: learn from completions that were sampled with this setting"
                )
        return states_NT

    def _on(self, device: torch.device) -> Tensor:
        if device not in self._copies:
            self._copies[device] = self.next_XV.to(device)
        return self._copies[device]


def structured_sampling(
    sampling: Sampling, regex: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> Sampling:
    """The sampling parameters with the automaton of a regular expression for a model's tokens.

    Raises:
        UserError: see `structure_of` and `token_bytes`.
    """
    tokens, strips = token_bytes(tokenizer, len(model.get_input_embeddings().weight))
    vocabulary = Vocabulary(tokens, end_token_ids(model, tokenizer), strips)
    return replace(sampling, structure=structure_of(regex, vocabulary))


def token_bytes(tokenizer: PreTrainedTokenizerBase, count: int) -> tuple[tuple[bytes, ...], bool]:
    """The bytes that each of `count` token ids writes, and whether a space before everything is removed.

    Special tokens, and ids beyond the tokenizer's, write nothing.

    Raises:
        UserError: the tokenizer is neither byte-level BPE nor SentencePiece.
    """
    decoder = json.dumps(json.loads(tokenizer.backend_tokenizer.to_str())["decoder"], ensure_ascii=False)
    if "ByteLevel" not in decoder and "▁" not in decoder:
        raise UserError(
            f"{KEY}: expected a byte-level or SentencePiece tokenizer, got the decoder {decoder:.80}: remove the "
            "setting, or give another model"
        )
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    tokens, added = [b""] * count, tokenizer.added_tokens_decoder
    for piece, token in tokenizer.get_vocab().items():
        if token in added:
            tokens[token] = b"" if added[token].special else piece.encode()  # written as it is, such as <think>
        elif "ByteLevel" in decoder:
            tokens[token] = bytes(byte_of[letter] for letter in piece)
        elif len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            tokens[token] = bytes([int(piece[3:5], 16)])
        else:
            tokens[token] = piece.replace("▁", " ").encode()
    return tuple(tokens), "Strip" in decoder or ("Metaspace" in decoder and '"never"' not in decoder)


@lru_cache(maxsize=4)
def structure_of(regex: str, vocabulary: Vocabulary) -> TokenAutomaton:
    """The automaton of a regular expression for a model's tokens.

    Args:
        regex: see `byte_automaton`; it matches the whole completion without its end token.
        vocabulary: of the model.

    Raises:
        UserError: the expression cannot be read, needs too large a table, or no completion of these tokens matches it.
    """
    next_XB, accepting = byte_automaton(regex, KEY)
    if vocabulary.strips:  # another state before the first: the text loses one space before everything
        next_XB = np.where(next_XB == NONE, NONE, next_XB + 1)
        first_B = next_XB[0].copy()
        first_B[ord(" ")] = 1
        next_XB, accepting = np.concatenate([first_B[None], next_XB]), np.concatenate([accepting[:1], accepting])
    tokens, states = vocabulary.tokens, len(next_XB)
    size = states * len(tokens) * 2
    if size > LARGEST:
        raise UserError(
            f"{KEY}: expected a table of at most {LARGEST >> 20} MiB, got {states} states of {len(tokens)} tokens, "
            f"{size >> 20} MiB: use smaller counts in {{n,m}}, or [^x]* in place of .* before an x"
        )
    table_XV = np.full((states, len(tokens)), NONE, np.int16)  # MOST_STATES fit
    lengths = np.array([len(token) for token in tokens])
    longer = [np.flatnonzero(lengths > at) for at in range(lengths.max())]
    columns = [np.array([tokens[token][at] for token in longer_v]) for at, longer_v in enumerate(longer)]
    next_XB = np.concatenate([next_XB, np.full((1, 256), NONE, np.int32)])  # the last row is that of -1
    for state, row_V in enumerate(table_XV):
        row_V[lengths > 0] = state
        for longer_v, bytes_v in zip(longer, columns, strict=True):
            row_V[longer_v] = next_XB[row_V[longer_v], bytes_v]
    for end in vocabulary.ends:
        table_XV[:, end] = np.where(accepting, np.arange(states), NONE)
    sources: list[set[int]] = [set() for _ in table_XV]
    for state, row in enumerate(table_XV):
        for target in np.unique(row[row != NONE]):
            sources[target].add(state)
    alive, waiting = accepting.copy(), [*map(int, np.flatnonzero(accepting))]
    while waiting:
        for source in sources[waiting.pop()]:
            if not alive[source]:
                alive[source] = True
                waiting.append(source)
    if not alive[0]:
        raise UserError(f"{KEY}: expected an expression that this model's tokens can match, got {regex!r}: change it")
    table_XV[~np.append(alive, False)[table_XV]] = NONE  # -1 is the appended False
    return TokenAutomaton(regex, vocabulary, torch.from_numpy(table_XV))
