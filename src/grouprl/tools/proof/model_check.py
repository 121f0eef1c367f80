"""Whether a checkpoint can be trained here, before a run: forward passes, lengths, template, tokens, memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from grouprl.config.run import RunConfig
from grouprl.forward.attention import attention_layers, is_packed
from grouprl.forward.devices import resolve_device
from grouprl.models.adapters import linear_layers
from grouprl.models.load import check_tokens, context_length, end_token_ids, load_model, load_tokenizer
from grouprl.models.names import ALL_LINEAR
from grouprl.models.prompts import prompt_token_ids
from grouprl.models.templates import folds_system, hidden_tags
from grouprl.models.verify import Gap, gap_to_own
from grouprl.rollout import NativeEngine
from grouprl.rollout.verify import MOST_SAMPLED, sampler_gap
from grouprl.tools.planner.machine import total_memory
from grouprl.tools.planner.memory import plan_memory
from grouprl.tools.planner.screen import networks_of, step_of
from grouprl.tools.planner.shapes import shape_of
from grouprl.types import Message, Problem, UserError, counted

_QUESTION: Message = {"role": "user", "content": "What is 2 + 3?"}
_SYSTEM: Message = {"role": "system", "content": "Answer with a number."}


@dataclass(frozen=True)
class ModelLine:
    """One line about a model; a problem has a remedy."""

    name: str
    found: str
    remedy: str = ""
    stops: bool = False  # whether a run under these settings would be refused or wrong


def check_model(config: RunConfig) -> Iterator[ModelLine]:
    """Yields what there is to know about the model of a configuration.

    Raises:
        UserError: the model or its tokenizer cannot be loaded, or its forward pass cannot be reproduced.
    """
    # In float32, whatever model.weights says: rounding would hide a wrong forward pass.
    model = load_model(config.model, device=resolve_device(config.model.device))
    tokenizer, text, context = load_tokenizer(config.model), model.config.get_text_config(), context_length(model)
    learned = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    frozen = sum(weight.numel() for weight in model.parameters()) - learned
    beside = f", {frozen:,} frozen ones beside the text tower" if frozen else ""
    yield ModelLine("model", f"{type(model).__name__}, {learned:,} weights{beside}")
    rows = "rows: one row per completion; slower, with more memory (docs/models.md)"
    yield ModelLine("form", "packed: a prompt is read once for its group" if is_packed(model) else rows)
    question = str(_QUESTION["content"]) if tokenizer.chat_template is None else (_QUESTION,)
    prompt = prompt_token_ids(Problem("check", question), tokenizer, longest=1 << 30)
    named = [getattr(text, name, None) or 0 for name in ("sliding_window", "attention_chunk_size")]
    used = {layer.window for layer in attention_layers(model)} - {None} if is_packed(model) else {*named} - {0}
    # A text longer than any window, used or not: a cache or a mask may follow a key that the model ignores.
    longest = max(len(prompt), min(max(named) + 1, context - MOST_SAMPLED))
    long_prompt = (prompt * (longest // len(prompt) + 1))[:longest]
    yield _gap("learner", gap_to_own(config.model.path, model, longest))
    yield _gap("sampler", sampler_gap(NativeEngine(model, tokenizer, seed=0, max_rows=2), model, long_prompt))
    sequence = len(prompt) + config.rollout.max_tokens
    said = f"{context:,} tokens" if context < 1 << 30 else "not limited"
    if sequence <= context:
        yield ModelLine("context", f"{said}, for a short prompt and rollout.max_tokens={config.rollout.max_tokens}")
    else:
        yield ModelLine("context", said, f"expected at least {sequence:,}: lower rollout.max_tokens", stops=True)
    shortest = min(filter(None, used), default=0)
    window = f"{shortest:,} tokens{', shorter than a sequence' * (sequence > shortest)}"
    ignored = f"; the model ignores the {max(named):,} of its configuration" * bool(max(named))
    yield ModelLine("window", window if shortest else f"none{ignored}")
    embeddings, refusal = model.get_input_embeddings().weight.shape[0], ""
    try:
        check_tokens(model, tokenizer)
    except UserError as error:
        refusal = str(error)
    vocabulary = f"{len(tokenizer):,} tokens, {embeddings:,} embeddings"
    yield ModelLine("vocabulary", vocabulary, refusal, stops=bool(refusal))
    yield ModelLine(
        "end tokens", ", ".join(map(repr, tokenizer.convert_ids_to_tokens(end_token_ids(model, tokenizer))))
    )
    yield from _template(tokenizer)
    if hidden := hidden_tags(tokenizer):
        yield ModelLine("tags", f"{', '.join(hidden)}: special tokens, which the text of completions keeps")
    yield ModelLine("LoRA targets", ", ".join(linear_layers(model, (ALL_LINEAR,))[0]))
    try:
        shape = shape_of(config.model.path)
    except UserError as error:
        yield ModelLine("memory", f"not planned ({error})")
        return
    step = step_of(config, len(prompt))
    peak, memory = plan_memory(shape, networks_of(config), step).peak, total_memory(step.device)
    sizes = f"{peak / 2**30:.1f} GiB for a step of these settings, of {memory / 2**30:.1f} GiB"
    yield ModelLine("memory", sizes, "" if peak <= memory else "see grouprl plan", stops=peak > memory)


def _gap(name: str, gap: Gap) -> ModelLine:
    size = f"{gap.size:.1e} of the spread of log-probs from the model's own forward pass"
    refusal = "" if gap.fits else f"expected at most {gap.most:.1g}: choose another model"
    return ModelLine(f"{name} gap", size, refusal, stops=not gap.fits)


def _template(tokenizer: PreTrainedTokenizerBase) -> Iterator[ModelLine]:
    if tokenizer.chat_template is None:
        yield ModelLine("chat template", "none: prompts are plain text")
        return
    for name, messages in (("chat template", (_QUESTION,)), ("system role", (_SYSTEM, _QUESTION))):
        try:
            ids = prompt_token_ids(Problem("check", messages), tokenizer, longest=1 << 30)
        except UserError as error:
            yield ModelLine(name, "fails", str(error), stops=name == "chat template")
            continue
        text: Any = tokenizer.decode(ids)
        lost = [message["content"] for message in messages if str(message["content"]) not in text]
        prefix = "" if name == "chat template" or not folds_system(tokenizer) else "in the first user message, "
        yield ModelLine(
            name,
            f"{prefix}renders {counted(len(ids), 'token')}",
            f"drops {lost[0]!r}" if lost else "",
            stops=bool(lost),
        )
