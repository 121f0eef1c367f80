"""Models load policy, reference, critic, reward model and tokenizer, and compute hidden states and log-probs.

In: a checkpoint's name, packed tokens. Out: modules and tensors. They never sample or update.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `models.packing` is read without torch, by the planner
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

_MODULES = {
    "TreeLayout": "layouts",
    "hidden_states": "attention",
    "token_logprobs": "logprobs",
    "authored_completion": "prompts",
    "prompt_token_ids": "prompts",
}


def __getattr__(name: str) -> Any:
    """Imports a module on first use, so that torch and transformers load only when they are needed."""
    if name not in __all__:
        raise AttributeError(f"module 'grouprl.models' has no attribute {name!r}")
    return getattr(import_module(f"grouprl.models.{_MODULES.get(name, 'load')}"), name)
