"""Supervised fine-tuning on prompt/completion pairs: the cold start that gives a policy something to reinforce."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.config import dump_config
from grouprl.config_supervised import SftConfig
from grouprl.lab.record import RunRecord, atomic_directory
from grouprl.lab.terminal import Terminal
from grouprl.learner import Optimizer
from grouprl.learner.batch import padded
from grouprl.learner.forward import pack_logprobs
from grouprl.learner.packs import make_packs, targets
from grouprl.models import load_model, load_tokenizer, prompt_token_ids, resolve_device
from grouprl.models.load import context_length
from grouprl.models.precision import autocast
from grouprl.models.save import save_model
from grouprl.models.scratch import new_model, new_tokenizer
from grouprl.rewards import completion_text
from grouprl.tasks import WordProblems, load_task
from grouprl.tasks.files import Row, column, read_rows
from grouprl.tasks.word_problems import cold_start_pairs
from grouprl.types import Batch, Message, Problem, Sampling, UserError

_TOKENIZER_PAIRS = 5_000  # enough to meet every word of the bundled task


@dataclass(frozen=True)
class Pair:
    """A prompt and the completion to imitate."""

    problem: Problem
    completion: str


def sft(config: SftConfig) -> Path:
    """Trains a model to write the completions of pairs; the loss is the mean over completion tokens of a batch.

    Returns:
        The folder of the trained model, in Hugging Face layout.

    Raises:
        UserError: missing data, a pair longer than the context, or a run directory that is in use.
    """
    out = Path(config.out) if config.out else Path(config.runs_dir) / config.name / "model"
    _refuse_other_contents(out)
    pairs = load_pairs(config)
    torch.set_num_threads(config.threads or torch.get_num_threads())
    device = resolve_device(config.model.device)
    model, tokenizer = _model(config, pairs, device)
    terminal = Terminal()
    with terminal.progress("encode pairs", len(pairs)) as advance:
        encoded = _encode(pairs, tokenizer, context_length(model), advance)
    orders = list(_batches(len(encoded), config))
    optimizer = Optimizer(model, config.learner, total_updates=len(orders))
    with (
        RunRecord.create(Path(config.runs_dir) / config.name, dump_config(config)) as record,
        terminal.progress("sft", len(orders)) as advance,
    ):
        smooth = 0.0
        for step, order in enumerate(orders, 1):
            rate = optimizer.learning_rate
            loss = _update(model, optimizer, [encoded[index] for index in order], config, device)
            smooth = loss if step == 1 else 0.98 * smooth + 0.02 * loss
            record.step(step, {"loss": loss, "learning_rate": rate}, [], [], [])
            advance(1, f"sft, loss {smooth:.3f}")
        with atomic_directory(out) as folder:
            save_model(model, tokenizer, folder)
    return out


def _refuse_other_contents(out: Path) -> None:
    """The finished model replaces the folder `out`, which must therefore be new, empty or a model."""
    if out.exists() and not (out / "config.json").is_file() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"out: expected a new or empty folder, or a model to replace, got {out}: choose another one")


def load_pairs(config: SftConfig) -> Sequence[Pair]:
    """The pairs of a file (columns `prompt` and `completion`, text or chat messages), or those that the task makes."""
    if config.pairs.path is not None:
        return [_pair(row) for row in read_rows(Path(config.pairs.path))]
    task = load_task(**config.task.model_dump())
    if not isinstance(task, WordProblems):
        raise UserError(f"task {task.name}: makes no pairs to imitate: give a file with pairs.path=FILE.jsonl")
    made = cold_start_pairs(task, config.pairs.count, config.pairs.worked_share, config.seed)
    return [Pair(problem, completion) for problem, completion in made]


def _pair(row: Row) -> Pair:
    completion = completion_text(_text_or_messages(row, "completion"))
    return Pair(Problem(row[0], _text_or_messages(row, "prompt")), completion)


def _text_or_messages(row: Row, name: str) -> str | tuple[Message, ...]:
    value = row[1].get(name)
    if isinstance(value, list) and value and all(map(_is_message, value)):
        return tuple(value)
    return column(row, name)


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in ("role", "content"))


def _model(
    config: SftConfig, pairs: Sequence[Pair], device: torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if config.new_model is None:
        return load_model(config.model.path, device=device), load_tokenizer(config.model.path)
    texts = [text for pair in pairs[:_TOKENIZER_PAIRS] for text in (pair.problem.prompt_text, pair.completion)]
    tokenizer = new_tokenizer(texts, config.new_model.vocabulary)
    return new_model(config.new_model, tokenizer, seed=config.seed).to(device), tokenizer


def _encode(
    pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerBase, context: int, advance: Callable[[int], None]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Token ids of prompts and completions; the end token is part of what is learned."""
    encoded = []
    for pair in pairs:
        completion = (*tokenizer(pair.completion, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)
        encoded.append((prompt_token_ids(pair.problem, tokenizer, longest=context - len(completion)), completion))
        advance(1)
    return encoded


def _batches(count: int, config: SftConfig) -> Iterator[list[int]]:
    for epoch in range(config.epochs):
        order = list(range(count))
        random.Random(f"{config.seed}/{epoch}").shuffle(order)
        yield from (order[at : at + config.batch_pairs] for at in range(0, count, config.batch_pairs))


def _update(
    model: PreTrainedModel,
    optimizer: Optimizer,
    pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    config: SftConfig,
    device: torch.device,
) -> float:
    lengths_N = torch.tensor([len(completion) for _, completion in pairs])
    mask_NT = torch.arange(int(lengths_N.max())) < lengths_N[:, None]
    batch = Batch(
        prompts=tuple(prompt for prompt, _ in pairs),
        group_of_N=tuple(range(len(pairs))),
        token_ids_NT=padded([completion for _, completion in pairs], mask_NT, torch.long),
        mask_NT=mask_NT,
        trained_NT=mask_NT,
        old_logprobs_NT=torch.zeros(mask_NT.shape),
        sampling=Sampling(),
    )
    total = 0.0
    for pack in make_packs(batch, range(len(pairs)), config.learner.micro_batch_tokens, device):
        with autocast(device, config.model.dtype):
            logprobs_C, _ = pack_logprobs(model, pack, targets(batch, pack), batch.sampling)
        loss = -logprobs_C.sum() / mask_NT.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    optimizer.step()
    return total
