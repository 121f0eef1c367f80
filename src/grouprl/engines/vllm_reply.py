"""Checks what a vLLM server replied and makes completions of it; nothing that is missing is replaced."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from grouprl.models.prompts import completion_texts
from grouprl.types import Completion, Sampling, StopReason, UserError

_IMPOSSIBLE = -9999.0  # vLLM's clamp: it writes this for NaN and for minus infinity
_ROUNDING = 1e-4  # log-probs of certain tokens are above 0 by rounding
_LOOK = "look at the server's output, and start it again as docs/scale.md says"


class StaleReplyError(Exception):
    """The server sampled from other weights than those of this step, which the text names, or aborted a completion."""


@dataclass(frozen=True)
class ReplyForm:
    """What a reply must hold."""

    count: int  # completions
    first: int  # index of the first within its group
    model: str  # the name that the server gives the model or the adapter
    label: str  # of the published weights
    version: int
    vocabulary: int
    sampling: Sampling
    ends: frozenset[int]  # end tokens


Wrong = Callable[[str, str, str], UserError]


def completions_of(
    reply: Mapping[str, Any], expected: ReplyForm, tokenizer: PreTrainedTokenizerBase, wrong: Wrong
) -> list[Completion]:
    """Makes the completions of one reply of `/inference/v1/generate`.

    Args:
        reply: the parsed reply.
        expected: what it must hold.
        tokenizer: decodes the texts.
        wrong: makes an error of what was expected, what was got and the remedy.

    Raises:
        UserError: something is missing or impossible.
        StaleReplyError: a token was sampled from other weights, or the server aborted.
    """
    if reply.get("model") != expected.model:
        raise wrong(f"completions of the model {expected.model}", f"completions of {reply.get('model')!r}", _LOOK)
    choices = reply.get("choices")
    choices = choices if isinstance(choices, list) and all(isinstance(one, dict) for one in choices) else []
    if sorted(str(one.get("index")) for one in choices) != sorted(map(str, range(expected.count))):
        got = [one.get("index") for one in choices]
        raise wrong(f"{expected.count} completions of a group, numbered from 0", f"the numbers {got}", _LOOK)
    if any(one.get("finish_reason") == "abort" for one in choices):
        raise StaleReplyError("abort")
    return [
        _completion(one, expected, tokenizer, wrong) for one in sorted(choices, key=lambda choice: int(choice["index"]))
    ]


def _completion(
    choice: Mapping[str, Any], expected: ReplyForm, tokenizer: PreTrainedTokenizerBase, wrong: Wrong
) -> Completion:
    ids, sampling = choice.get("token_ids"), expected.sampling
    known = isinstance(ids, list) and all(type(one) is int and 0 <= one < expected.vocabulary for one in ids)
    if not known or not isinstance(ids, list) or not 1 <= len(ids) <= sampling.max_tokens:
        raise wrong(f"1 to {sampling.max_tokens} token ids below {expected.vocabulary}", f"{ids!r:.80}", _LOOK)
    spans = choice.get("weight_versions")
    found = [span for span in spans if isinstance(span, dict)] if isinstance(spans, list) else []
    if [(span.get("version"), span.get("start"), span.get("end")) for span in found] != [(expected.label, 0, len(ids))]:
        raise StaleReplyError(", then ".join(str(span.get("version")) for span in found) or "none")
    match choice.get("logprobs"):
        case {"content": list(content)} if all(isinstance(one, dict) for one in content):
            pass
        case _:
            content = []
    if [one.get("token_id") for one in content] != list(ids):
        raise wrong(f"log-probs of these {len(ids)} token ids", f"{len(content)} or those of other ids", _LOOK)
    values = [one.get("logprob") for one in content]
    for place, value in enumerate(values):
        if type(value) not in (int, float) or not _IMPOSSIBLE < value <= _ROUNDING:  # NaN too
            raise wrong(
                "a finite log-prob of each token", f"{value!r:.40} for token {place}",
                "start the server with --logprobs-mode processed_logprobs, and look at its weights and its dtype",
            )  # fmt: skip
    reported = tuple(map(float, values))
    (text,) = completion_texts([ids], tokenizer)
    reason = _stop_reason(choice, ids, text, expected, wrong)
    greedy, unchanged = sampling.temperature == 0.0, sampling.temperature == 1.0 and sampling.only_scales
    return Completion(
        index=expected.first + int(choice["index"]),
        token_ids=tuple(ids),
        logprobs=(0.0,) * len(ids) if greedy else reported,
        # The server knows one distribution, the one it drew from; the plain softmax is unknown where that is another.
        plain_logprobs=reported if greedy or unchanged else (math.nan,) * len(ids),
        text=text,
        stop_reason=reason,
        weights_version=expected.version,
    )


def _stop_reason(
    choice: Mapping[str, Any], ids: Sequence[int], text: str, expected: ReplyForm, wrong: Wrong
) -> StopReason:
    """Decides why a completion ended, by the rules of the native engine, and checks that the server agrees."""
    finish, sampling = choice.get("finish_reason"), expected.sampling
    whole, ended = len(ids) == sampling.max_tokens, ids[-1] in expected.ends
    if expected.ends.isdisjoint(ids[:-1]):
        if ended and finish == "stop":
            return StopReason.END
        # The server may hold back bytes that are not yet a letter, and see a stop text one token late.
        if not ended and any(stop in text for stop in sampling.stop) and (finish == "stop" or whole):
            return StopReason.STOP_STRING
        if not ended and whole and finish == "length":
            return StopReason.LENGTH
    raise wrong(
        f"a completion that ends with its first end token, with a stop text, or after {sampling.max_tokens} tokens",
        f"one of {len(ids)} tokens with finish_reason {finish!r}, stop_reason {choice.get('stop_reason')!r}",
        "look at the server's --model, --tokenizer and --max-model-len, and its output",
    )
