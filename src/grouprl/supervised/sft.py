"""Supervised fine-tuning on prompt/completion pairs: the cold start of a policy before reinforcement learning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.config.run import dump_config
from grouprl.forward.devices import resolve_device
from grouprl.learner.packs import Pack, pack_forward
from grouprl.leaves import find_leaf, leaf
from grouprl.models.load import context_length, load_model, load_tokenizer
from grouprl.models.prompts import authored_completion, prompt_token_ids
from grouprl.models.save import save_model
from grouprl.record.files import atomic_directory
from grouprl.record.write import RunRecord
from grouprl.rewards import completion_text
from grouprl.run.machine import with_dtype
from grouprl.supervised.preferences import refuse_longer
from grouprl.supervised.recorded import right_completions
from grouprl.supervised.scratch import new_model, new_tokenizer
from grouprl.supervised.settings import SftConfig
from grouprl.supervised.training import SupervisedLoss, fit, model_folder
from grouprl.tasks import load_task
from grouprl.tasks.base import converses, solution
from grouprl.tasks.files import Row, read_rows, text_or_messages
from grouprl.trainer.terminal import Terminal
from grouprl.types import Batch, Group, Problem, UserError, counted

_TOKENIZER_PAIRS = 5_000  # enough to contain every word of the built-in task


Pair = tuple[Problem, str | Sequence[Mapping[str, Any]]]
"""A prompt and the completion to imitate: a text, or messages with calls of tools and their results."""


def sft(config: SftConfig) -> Path:
    """Trains a model to write the completions of pairs; the loss is the mean over the completion tokens of a batch.

    Returns:
        The folder of the trained model, in Hugging Face layout.

    Raises:
        UserError: data is missing, a pair is longer than the context, or the run directory is in use.
    """
    config, out = with_dtype(config), model_folder(config)
    pairs = [] if config.pairs.run else load_pairs(config)
    torch.set_num_threads(config.model.threads or torch.get_num_threads())
    model, tokenizer = _model(config, pairs, resolve_device(config.model.device, config.model.dtype))
    terminal, source = Terminal(), config.pairs.path or config.pairs.run or f"the task {config.task.name}"
    with terminal.progress("encode pairs", len(pairs)) as advance:
        context = context_length(model)
        encoded = []
        for problem, text in pairs:
            if isinstance(text, str):
                completion = authored_completion(0, text, tokenizer)
            else:
                completion = leaf("environments.authored")(problem, text, tokenizer)
            prompt_ids = prompt_token_ids(problem, tokenizer, longest=context - len(completion))
            encoded.append(Group(problem, prompt_ids, (completion,)))
            advance(1)
    groups = right_completions(config.pairs, tokenizer) if config.pairs.run else encoded
    refuse_longer(groups, context_length(model))
    updates = config.epochs * -(-len(groups) // config.batch_pairs)
    terminal.say(
        f"{'A new model' if config.new_model else config.model.path} learns {counted(len(groups), 'pair')} of "
        f"{source}: {counted(updates, 'update')} of {counted(config.batch_pairs, 'pair')}, into {out}."
    )

    def metrics(batch: Batch, pack: Pack) -> dict[str, Tensor]:
        logprobs_C = pack_forward(model, pack, batch.sampling).logprobs_C
        return {"loss": -logprobs_C.sum() / batch.mask_NT.sum()}

    with RunRecord.create(Path(config.runs_dir) / config.name, dump_config(config)) as record:
        fit("sft", model, groups, SupervisedLoss(metrics, config, model), record, terminal)
        with atomic_directory(out) as folder:
            save_model(model, tokenizer, folder)
    return out


def load_pairs(config: SftConfig) -> Sequence[Pair]:
    """The pairs of a file (columns `prompt` and `completion`, text or chat messages), or of a task.

    `word_problems` makes as many as are asked for; other tasks give their first train problems and the solutions.
    """
    if config.pairs.path is not None:
        return [_of_row(row) for row in read_rows(config.pairs.path)]
    task = load_task(**config.task.model_dump())
    schemas = leaf("environments.schemas")(task) if converses(task) else ()
    word_problems = find_leaf("task.word_problems")
    pairs: Iterable[Pair]
    if word_problems is not None and isinstance(task, word_problems):
        pairs = leaf("cold_start")(task, config.pairs.count, config.pairs.worked_share, config.seed)
    else:
        config.pairs.refuse_beside(f"task.name={task.name}", "worked_share", section="pairs.")
        worked = getattr(task, "worked", lambda problem: solution(task, problem, "pairs.path"))
        pairs = [(problem, worked(problem)) for problem in task.problems("train")[: config.pairs.count]]
    return [(replace(problem, tools=schemas) if schemas else problem, written) for problem, written in pairs]


def _of_row(row: Row) -> Pair:
    """A row's pair; several messages are a conversation. `tools` has the schemas that its prompt shows."""
    written, tools = text_or_messages(row, "completion"), row[1].get("tools") or ()
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, Mapping) for tool in tools):
        raise UserError(
            f"{row[0]}: expected a list of JSON schemas in column 'tools', got {tools!r:.60}: write what "
            "transformers' get_json_schema gives"
        )
    problem = Problem(row[0], text_or_messages(row, "prompt"), tools=tuple(tools))
    return problem, completion_text(written) if isinstance(written, str) or len(written) == 1 else written


def _model(
    config: SftConfig, pairs: Sequence[Pair], device: torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if config.new_model is None:
        return load_model(config.model, device=device), load_tokenizer(config.model)
    texts = [text for problem, written in pairs[:_TOKENIZER_PAIRS] for text in (problem.prompt_text, str(written))]
    tokenizer = new_tokenizer(texts, config.new_model.vocabulary)
    return new_model(config.new_model, tokenizer, seed=config.seed).to(device), tokenizer
