"""Reward models: a decoder with one score at the last token of a completion (Hugging Face's classifier with 1 label).

A completion has the same score in a packed group as in transformers' own padded row.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from grouprl.forward.attention import hidden_states
from grouprl.forward.layouts import TreeLayout
from grouprl.models.load import hide_warnings, load_pretrained, located
from grouprl.models.names import ModelSource
from grouprl.models.verify import in_right_form
from grouprl.types import UserError

_HEAD = "score.weight"


def new_reward_model(
    source: str | ModelSource, tokenizer: PreTrainedTokenizerBase, *, seed: int, device: torch.device
) -> PreTrainedModel:
    """The decoder of a model with a score on top; a checkpoint that is already a reward model keeps its head.

    A new head is drawn from `seed`, small enough that every pair starts with a margin near 0. The padding token of the
    model and of `tokenizer` becomes another token than the end token. Otherwise transformers would skip the end of a
    completion, because it reads the score at the last token that is not padding.

    Raises:
        UserError: there is no such model, it cannot score, or the tokenizer has no token to pad with.
    """
    path, revision = located(source)
    candidates = (tokenizer.pad_token_id, *tokenizer.all_special_ids)
    padding = next((int(token) for token in candidates if token not in (None, tokenizer.eos_token_id)), None)
    if padding is None:
        raise UserError(
            f"model {path!r}: expected a tokenizer with a special token for padding, beside its end token, got none: "
            "add a pad_token to it"
        )
    model, missing = _classifier(path, device, {"num_labels": 1, "revision": revision})
    if _HEAD in missing:
        weight = model.score.weight
        noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            weight.copy_(noise / (1 + weight.shape[1]))
    model.config.get_text_config().pad_token_id = padding
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(padding)
    return model


def load_reward_model(path: str, *, device: torch.device) -> PreTrainedModel:
    """A trained reward model with float32 weights, in eval mode, without gradients.

    Raises:
        UserError: there is no such model, or it has no trained head of one label.
    """
    model, missing = _classifier(path, device)
    labels = model.config.num_labels
    if missing or labels != 1:
        got = f"no weights for {', '.join(sorted(missing))}" if missing else f"{labels} labels"
        raise UserError(
            f"reward model {path!r}: expected a classifier with one trained score, got {got}: "
            f"train one with grouprl reward-model --model {path}"
        )
    return model.requires_grad_(False)


def _classifier(
    path: str, device: torch.device, options: Mapping[str, Any] = MappingProxyType({})
) -> tuple[PreTrainedModel, set[str]]:
    missing: set[str] = set()

    def load(attention: str) -> PreTrainedModel:
        with hide_warnings():  # transformers warns about a missing head, which is expected
            model, lacks = load_pretrained(
                AutoModelForSequenceClassification,
                path,
                "a model with a sequence classifier in safetensors",
                attention,
                options,
                heads={_HEAD, "lm_head.weight"},
            )
        missing.update(lacks)
        if not isinstance(getattr(model, "score", None), nn.Linear):
            raise UserError(
                f"model {path!r}: expected a decoder with a classifier in transformers, got {type(model).__name__} "
                "(without a head named score): choose another model"
            )
        return model.to(device).eval()

    return in_right_form(path, load), missing


def completion_scores(model: PreTrainedModel, input_ids_S: Tensor, layout: TreeLayout) -> Tensor:
    """[N] float32 scores of the completions of packed groups, in packed order."""
    starts, lengths = layout.tree
    last_PG = (starts + lengths - 1)[:, 1:]
    members_P = torch.tensor([len(lengths) for lengths in layout.completion_lengths])
    last_N = last_PG[torch.arange(last_PG.shape[1]) < members_P[:, None]].to(layout.device)
    hidden_SH = hidden_states(model, input_ids_S, layout.position_ids_S, layout)
    # In bfloat16 the scores of a group would tie, which makes a group without signal.
    with torch.autocast(layout.device.type, enabled=False):
        scores_N: Tensor = model.score(hidden_SH.index_select(0, last_N).to(model.score.weight.dtype))[:, 0].float()
    return scores_N
