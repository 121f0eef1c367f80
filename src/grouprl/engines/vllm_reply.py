"""Checks what a vLLM server replied and makes completions of it; nothing that is missing is replaced."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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
    choices = choices if isinstance(choices, list) and all(isinstance(choice, dict) for choice in choices) else []
    if sorted(str(choice.get("index")) for choice in choices) != sorted(map(str, range(expected.count))):
        got = [choice.get("index") for choice in choices]
        raise wrong(f"{expected.count} completions of a group, numbered from 0", f"the numbers {got}", _LOOK)
    if any(choice.get("finish_reason") == "abort" for choice in choices):
        raise StaleReplyError("abort")
    return [
        _completion(choice, expected, tokenizer, wrong)
        for choice in sorted(choices, key=lambda choice: int(choice["index"]))
    ]


def _completion(
    choice: Mapping[str, Any], expected: ReplyForm, tokenizer: PreTrainedTokenizerBase, wrong: Wrong
) -> Completion:
    ids, sampling = choice.get("token_ids"), expected.sampling
    are_ids = isinstance(ids, list) and all(type(token) is int and 0 <= token < expected.vocabulary for token in ids)
    if not are_ids or not isinstance(ids, list) or not 1 <= len(ids) <= sampling.max_tokens:
        raise wrong(f"1 to {sampling.max_tokens} token ids below {expected.vocabulary}", f"{ids!r:.80}", _LOOK)
    spans = choice.get("weight_versions")
    versions = [span for span in spans if isinstance(span, dict)] if isinstance(spans, list) else []
    if [(span.get("version"), span.get("start"), span.get("end")) for span in versions] != [
        (expected.label, 0, len(ids))
    ]:
        raise StaleReplyError(", then ".join(str(span.get("version")) for span in versions) or "none")
    match choice.get("logprobs"):
        case {"content": list(content)} if all(isinstance(entry, dict) for entry in content):
            pass
        case _:
            content = []
    if [entry.get("token_id") for entry in content] != list(ids):
        raise wrong(f"log-probs of these {len(ids)} token ids", f"{len(content)} or those of other ids", _LOOK)
    values = [entry.get("logprob") for entry in content]
    for index, value in enumerate(values):
        if type(value) not in (int, float) or not _IMPOSSIBLE < value <= _ROUNDING:  # NaN too
            raise wrong(
                "a finite log-prob of each token", f"{value!r:.40} for token {index}",
                "start the server with --logprobs-mode processed_logprobs, and look at its weights and its dtype",
            )  # fmt: skip
    reported = tuple(map(float, values))
    (text,) = completion_texts([ids], tokenizer)
    # Why it ended, by the rules of the native engine, with which the server must agree.
    finish, is_full, has_end = choice.get("finish_reason"), len(ids) == sampling.max_tokens, ids[-1] in expected.ends
    # The server may hold back bytes that are not yet a letter, and see a stop text one token late.
    has_stop = any(stop in text for stop in sampling.stop) and (finish == "stop" or is_full)
    if has_end:
        reason = StopReason.END if finish == "stop" else None
    elif has_stop:
        reason = StopReason.STOP_STRING
    else:
        reason = StopReason.LENGTH if is_full and finish == "length" else None
    if reason is None or not expected.ends.isdisjoint(ids[:-1]):
        raise wrong(
            f"a completion that ends with its first end token, with a stop text, or after {sampling.max_tokens} tokens",
            f"one of {len(ids)} tokens with finish_reason {finish!r}, stop_reason {choice.get('stop_reason')!r}",
            "look at the server's --model, --tokenizer and --max-model-len, and its output",
        )
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
