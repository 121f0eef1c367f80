"""Compares what GroupRL computes with the model's own forward pass at loading, and chooses packed tokens or rows."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from grouprl.forward.attention import NAME, attention_layers, hidden_states, is_packed
from grouprl.forward.devices import traits_of
from grouprl.forward.head import output_head
from grouprl.forward.layouts import TreeLayout
from grouprl.forward.precision import autocast
from grouprl.forward.unpacked import picked_rows, read_on
from grouprl.types import Group, UserError

TOLERANCE = 1e-4
"""Largest difference of log-probs, as a part of their spread, that counts as rounding."""
_ROUNDED = 0.02  # the same in bfloat16
# Both computations round, each in another order. A fine-tuned SmolLM2-135M differs by 1.4e-4 where its own forward pass
# is 2.8e-4 from that in float64: after the token `<filename>`.
_OWN_ROUNDING = 4
_NO_ROUNDING = 1e-2  # so large a gap is a wrong forward pass, which no copy in float64 needs to show
# What layers raise that cannot take another attention; whatever else is wrong, is raised again with their own.
_OTHER_LAYERS = (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, UserError)
_TOKENS = 4  # of the prompt
_SMALL_WINDOW = 64  # a window up to this is filled, so that its effect is compared too


@dataclass(frozen=True)
class Gap:
    """A difference of log-probs to the model's own forward pass, and the largest that counts as rounding."""

    size: float
    most: float

    @property
    def fits(self) -> bool:
        """Whether rounding explains it."""
        return self.size <= self.most


def gap_to(
    model: PreTrainedModel, size: float, spread: float, plain_forward: Callable[[PreTrainedModel], Tensor]
) -> Gap:
    """The gap of a size to the log-probs that `plain_forward` computes with a model.

    It may be `TOLERANCE`, or what the model itself loses to rounding: how far its log-probs move in float64. Both are
    parts of the `spread`.
    """
    if size <= TOLERANCE or not size < _NO_ROUNDING or not traits_of(model.device.type).has_float64:
        return Gap(size, TOLERANCE)
    lost = (plain_forward(model) - plain_forward(copy.deepcopy(model).double())).abs().max()
    return Gap(size, max(TOLERANCE, _OWN_ROUNDING * float(lost) / spread))


@dataclass(frozen=True)
class _Probe:
    """A prompt with two completions, and what the model's own forward pass gives for their tokens."""

    ids: tuple[Tensor, Tensor, Tensor]  # of the prompt and the completions
    layout: TreeLayout
    own_SX: Tensor  # log-probs over the vocabulary; without an output embedding hidden states

    @property
    def spread(self) -> float:
        """Largest less smallest value; 1 where all are equal, as with weights of 0."""
        return float(self.own_SX.max() - self.own_SX.min()) or 1.0


def in_right_form(path: str, load: Callable[[str], PreTrainedModel]) -> PreTrainedModel:
    """The model on GroupRL's attention if packed tokens get the model's own log-probs, otherwise as it is, row by row.

    Args:
        path: of the model, for errors.
        load: loads it with an attention implementation.

    Raises:
        UserError: it cannot be loaded, or neither form gives the log-probs of the model's own forward pass.
    """
    if (packed := _packed(path, load)) is not None:
        return packed
    model = load("eager")
    probe = _probe(path, model)
    try:
        gap = _gap(path, model, probe, max(_size(model, probe), _state_size(model, probe)))
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise _unsupported(path, model, f"{type(error).__name__}: {reason}") from error
    if not gap.fits:
        raise _unsupported(path, model, f"a difference of {gap.size:.2g} of their spread")
    return model


def _packed(path: str, load: Callable[[str], PreTrainedModel]) -> PreTrainedModel | None:
    """The model on GroupRL's attention; None = it is wrong there, and its memory is free for the next attempt."""
    try:
        model = load(NAME)
        # Each model's own reference is "eager": scaled_dot_product_attention has no soft-cap.
        model.set_attn_implementation("eager")
        exchanged = not is_packed(model)
        probe = _probe(path, model)
        model.set_attn_implementation(NAME)
        if not (exchanged and _fit_the_cache(model)):
            return None
        is_right = _gap(path, model, probe, _size(model, probe)).fits and not _leaks(model, probe)
        return model if is_right else None
    except torch.OutOfMemoryError:
        raise
    except _OTHER_LAYERS:
        return None


def moved(path: str, model: PreTrainedModel, device: torch.device, *, rounded: bool) -> PreTrainedModel:
    """The model on its device; from the CPU to one that nobody has tried only if its log-probs stay what they are.

    `rounded`: whether weights are, so that the computation is in bfloat16.

    Raises:
        UserError: the device computes other log-probs than the CPU.
    """
    if model.device == device or not traits_of(device.type).compares:
        return model.to(device)
    dtype, most = ("bfloat16", _ROUNDED) if rounded else ("float32", TOLERANCE)
    packed = is_packed(model)
    model.set_attn_implementation("eager")
    with autocast(model.device, dtype):
        probe = _probe(path, model)
    if packed:
        model.set_attn_implementation(NAME)
    prompt, first, second = (ids.to(device) for ids in probe.ids)
    there = _Probe((prompt, first, second), replace(probe.layout, device=device), probe.own_SX.to(device))
    model = model.to(device)
    with autocast(device, dtype):
        size = _size(model, there)
    # Rounding is measured in float64, which the device may lack.
    gap = Gap(size, most) if rounded or size <= most else _gap(path, model.to(torch.device("cpu")), probe, size)
    if not gap.fits:
        raise UserError(
            f"model.device: expected log-probs on {device} within {gap.most:.1g} of the CPU's, as a part of their "
            f"spread, got {size:.2g} for {path}: this device computes something else; set model.device=cpu"
        )
    return model.to(device)


def _fit_the_cache(model: PreTrainedModel) -> bool:
    """Whether all layers have keys and values of one size, and ask for the window of the model's own mask.

    The configuration does not decide: of its `sliding_window` many architectures read nothing.
    """
    layers, config = attention_layers(model), model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    alike = len({layer[:3] for layer in layers}) == 1 and all(layer.key_size == layer.value_size for layer in layers)
    as_masked = all(layer.masked == (layer.window or math.inf) for layer in layers)
    return alike and kinds <= {"full_attention", "sliding_attention"} and as_masked


def gap_to_own(path: str, model: PreTrainedModel, prompt_tokens: int = 0) -> Gap:
    """The largest difference to the model's own log-probs, as a part of their spread.

    The prompt has at least `prompt_tokens` tokens.
    """
    packed = is_packed(model)
    model.set_attn_implementation("eager")
    probe = _probe(path, model, prompt_tokens)
    if packed:
        model.set_attn_implementation(NAME)
    return _gap(path, model, probe, _size(model, probe))


def _gap(path: str, model: PreTrainedModel, probe: _Probe, size: float) -> Gap:
    def plain_forward(model: PreTrainedModel) -> Tensor:
        chosen = NAME if is_packed(model) else "eager"
        model.set_attn_implementation("eager")
        try:
            return _probe(path, model, len(probe.ids[0])).own_SX
        finally:
            model.set_attn_implementation(chosen)

    return gap_to(model, size, probe.spread, plain_forward)


@torch.no_grad()
def _probe(path: str, model: PreTrainedModel, least: int = 0) -> _Probe:
    embedding: Any = model.get_input_embeddings()
    device, most = embedding.weight.device, min(64, embedding.weight.shape[0])
    config: Any = model.config.get_text_config()
    windows = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    fill = max((window for window in windows if window is not None and window <= _SMALL_WINDOW), default=0)
    prompt = torch.tensor([(3 + 2 * at) % most for at in range(max(_TOKENS + fill, least))], device=device)
    branches = [torch.tensor(ids, device=device) % most for ids in ([4, 6, 8], [2, 1])]
    layout = TreeLayout((len(prompt),), ((3, 2),), device)
    try:
        rows = []
        for branch in branches:
            ids = torch.cat([prompt, branch])[None]
            if model.get_output_embeddings() is None:
                rows.append(model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0].float())
            else:
                rows.append(torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0].float(), dim=-1))
    except Exception as error:
        raise _unsupported(path, model, f"{type(error).__name__} in its own forward pass") from error
    return _Probe((prompt, *branches), layout, torch.cat([rows[0], rows[1][len(prompt) :]]))


def _found(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    if model.get_output_embeddings() is None:
        return hidden.float()
    return torch.log_softmax(output_head(model)(hidden).float(), dim=-1)


@torch.no_grad()
def _size(model: PreTrainedModel, probe: _Probe) -> float:
    hidden_SH = hidden_states(model, torch.cat(probe.ids), probe.layout.position_ids_S, probe.layout)
    return float((_found(model, hidden_SH) - probe.own_SX).abs().max()) / probe.spread


def _leaks(model: PreTrainedModel, probe: _Probe) -> bool:
    """Whether a token depends on one that it must not see: by gradients, which are 0 only without any dependence.

    Convolutions and states of little effect would pass a comparison of numbers.
    """
    embedded: list[Tensor] = []

    def catch(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[0]

    prompt, first, _ = map(len, probe.ids)
    handle = model.get_input_embeddings().register_forward_hook(catch)
    try:
        with torch.enable_grad():
            hidden_SH = hidden_states(model, torch.cat(probe.ids), probe.layout.position_ids_S, probe.layout)
            weights_H = torch.linspace(0.5, 1.5, hidden_SH.shape[1], device=hidden_SH.device)  # a norm fixes plain sums
            seen = [
                torch.autograd.grad((hidden_SH[part] * weights_H).sum(), embedded[0], retain_graph=True)[0]
                for part in (slice(prompt), slice(prompt, prompt + first), slice(prompt + first, None))
            ]
    finally:
        handle.remove()
    after, between = seen[0][0, prompt:], (seen[1][0, prompt + first :], seen[2][0, prompt : prompt + first])
    return any(bool(gradient.any()) for gradient in (after, *between))


@torch.no_grad()
def _state_size(model: PreTrainedModel, probe: _Probe) -> float:
    """The same of a sampler that reads the prompt, copies its state, and reads the completions token by token."""
    decoder, (prompt, *branches) = model.get_decoder(), probe.ids
    _, state = read_on(decoder, prompt[None])
    state = picked_rows(state, torch.zeros(2, dtype=torch.long, device=prompt.device))
    ids_NT, at, worst = torch.stack([branch[:2] for branch in branches]), len(prompt), 0.0
    starts = torch.tensor([at, at + len(branches[0])], device=prompt.device)
    for step in range(2):
        hidden_NH, state = read_on(decoder, ids_NT[:, step : step + 1], state)
        worst = max(worst, float((_found(model, hidden_NH) - probe.own_SX[starts + step]).abs().max()))
    return worst / probe.spread


def plain_logprobs(model: PreTrainedModel, groups: Sequence[Group]) -> list[Tensor]:
    """Log-probs of each completion's tokens: one padded row for each completion, transformers' own forward pass."""
    rows = [(group.prompt_ids, completion.token_ids) for group in groups for completion in group.completions]
    ends = [len(prompt) + len(ids_T) for prompt, ids_T in rows]
    mask = (torch.arange(max(ends)) < torch.tensor(ends)[:, None]).long().to(model.device)
    ids = pad_sequence([torch.tensor([*prompt, *ids_T]) for prompt, ids_T in rows], True).to(model.device)
    chosen = NAME if is_packed(model) else "eager"
    model.set_attn_implementation("eager")  # each model's own reference
    try:
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits.float().log_softmax(-1)
    finally:
        model.set_attn_implementation(chosen)
    logprobs = logits[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
    return [row[len(prompt) - 1 : end - 1] for row, (prompt, _), end in zip(logprobs, rows, ends, strict=True)]


def _unsupported(path: str, model: PreTrainedModel, got: str) -> UserError:
    return UserError(
        f"model {path!r}: expected the log-probs of the model's own forward pass, got {got}: GroupRL does not support "
        f"{type(model).__name__}; choose another model"
    )
