"""Policy, reference and tokenizer: loading, packed forward passes, log-probs."""

from grouprl.models.attention import hidden_states
from grouprl.models.layouts import TreeLayout
from grouprl.models.load import (
    context_length,
    end_token_ids,
    fingerprint,
    frozen_copy,
    load_model,
    load_tokenizer,
    resolve_device,
)
from grouprl.models.logprobs import token_logprobs
from grouprl.models.prompts import authored_completion, prompt_token_ids

__all__ = [
    "TreeLayout",
    "authored_completion",
    "context_length",
    "end_token_ids",
    "fingerprint",
    "frozen_copy",
    "hidden_states",
    "load_model",
    "load_tokenizer",
    "prompt_token_ids",
    "resolve_device",
    "token_logprobs",
]
