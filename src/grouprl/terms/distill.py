"""Distillation: what the teacher reads, and its KL from the policy on the policy's own completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.algorithms import has_signal, reverse_kl
from grouprl.algorithms.distillation import Distill
from grouprl.config.run import RunConfig
from grouprl.forward.devices import resolve_device
from grouprl.forward.head import output_head
from grouprl.forward.logprobs import ARRAYS, CHUNK_ELEMENTS, chunk_rows
from grouprl.forward.precision import autocast
from grouprl.learner.batch import UpdateInputs
from grouprl.learner.packs import Pack, Stats, pack_hidden
from grouprl.learner.runner import PackRunner
from grouprl.learner.terms import PackLoss, PackPass, Term
from grouprl.models.adapters import as_reference
from grouprl.models.load import context_length, load_model, load_tokenizer
from grouprl.models.names import check_name
from grouprl.models.prompts import prompt_token_ids
from grouprl.models.templates import is_rendered
from grouprl.tasks import Task
from grouprl.tasks.base import converses
from grouprl.types import Batch, Group, Problem, RewardOutcome, UserError


@dataclass(frozen=True)
class Teacher:
    """Makes the teacher's prompts: those of the policy, or the same with a solution in it."""

    part: Distill
    gold: Callable[[Problem], str | None]  # the task's solution of a problem
    tokenizer: PreTrainedTokenizerBase
    longest: int  # most tokens of a prompt
    model: PreTrainedModel | None = None  # another one than the policy and the reference

    def check(self, problem: Problem) -> None:
        """Raises UserError for a problem whose solution is missing, or leaves no place for a completion."""
        if self.part.reads == "solution":
            self._ids(problem, self._solution(problem))

    def prompts(
        self, groups: Sequence[Group], outcomes: Sequence[Sequence[RewardOutcome]]
    ) -> dict[int, tuple[int, ...]]:
        """Token ids of the teacher's prompt for each row of the batch that it teaches; outcomes are [P][G]."""
        prompt_ids_by_row, row = dict[int, tuple[int, ...]](), 0
        for group, outcomes_G in zip(groups, outcomes, strict=True):
            rows = range(row, row := row + len(group.completions))
            if self.part.distill_where == "all" or is_unsolved(outcomes_G):
                problem, reads_solution = group.problem, self.part.reads == "solution"
                ids = self._ids(problem, self._solution(problem)) if reads_solution else group.prompt_ids
                prompt_ids_by_row |= dict.fromkeys(rows, ids)
        return prompt_ids_by_row

    def _solution(self, problem: Problem) -> str:
        solution = self.gold(problem)
        if solution is None:
            raise UserError(
                f"algorithm.distill_reads: expected a task with solutions, got none for {problem.where}: name the "
                "column that holds them (task.arguments.gold_column), or set algorithm.distill=null"
            )
        return solution

    def _ids(self, problem: Problem, read: str) -> tuple[int, ...]:
        has_question = isinstance(problem.prompt, str) or any(message["role"] == "user" for message in problem.prompt)
        if not has_question or is_rendered(problem.prompt_text, self.tokenizer):
            raise UserError(
                f"algorithm.distill: expected plain text or messages with one of the user, got {problem.where}, whose "
                "prompt has none, or the chat template in it: give messages, or set algorithm.distill=null"
            )
        # What the teacher reads is in its prompt, or in its last message of the user.
        if isinstance(problem.prompt, str):
            taught_problem = replace(problem, prompt=self.part.prompt(problem.prompt, read))
        else:
            last = max(at for at, message in enumerate(problem.prompt) if message["role"] == "user")
            question = {"role": "user", "content": self.part.prompt(problem.prompt[last]["content"], read)}
            messages = (*problem.prompt[:last], question, *problem.prompt[last + 1 :])
            taught_problem = replace(problem, prompt=messages)
        return prompt_token_ids(taught_problem, self.tokenizer, longest=self.longest)


def make_teacher(
    config: RunConfig, task: Task | None, tokenizer: PreTrainedTokenizerBase, policy: PreTrainedModel
) -> Teacher:
    """Makes the teacher of a run with distillation, and loads it when it is another model.

    A teacher that reads no solutions needs no task.
    """
    part = config.algorithm.distill
    assert part is not None, "an algorithm with distillation"
    if task is not None and converses(task):
        raise UserError(
            f"algorithm.distill: expected a task with one turn, got {task.name}, which has tools or an environment: "
            "set algorithm.distill=null, or remove them"
        )
    gold = (lambda _: None) if task is None else task.gold
    room = context_length(policy) - config.rollout.max_tokens
    if part.path is None:
        return Teacher(part, gold, tokenizer, room)
    check_name(part.path, "algorithm.distill_teacher: model")
    vocabulary, teacher_vocabulary = tokenizer.get_vocab(), load_tokenizer(part.path).get_vocab()
    if missing := sorted(token for token, number in vocabulary.items() if teacher_vocabulary.get(token) != number):
        raise UserError(
            f"algorithm.distill_teacher: expected a model with the policy's tokenizer, got {part.path}, whose "
            f"vocabulary differs in {len(missing):,} of {len(vocabulary):,} tokens, such as {missing[0]!r}: give one "
            "of the same family"
        )
    device, weights = resolve_device(config.model.device), config.model.weights
    model = load_model(part.path, device=device, weights=weights).requires_grad_(False)
    room = min(room, context_length(model) - config.rollout.max_tokens)
    return Teacher(part, gold, tokenizer, room, model)


def is_unsolved(outcomes_G: Sequence[RewardOutcome]) -> bool:
    """Whether a group has no signal and a completion that is not known to be correct."""
    totals_G = torch.tensor([outcome.total for outcome in outcomes_G], dtype=torch.float64)
    signal = bool(has_signal(totals_G, torch.zeros(len(totals_G))).any())
    return not signal and not all(outcome.correct for outcome in outcomes_G)


def as_read(batch: Batch) -> Batch:
    """The batch with the teacher's prompts, each once, in the place of the policy's; the completions are the same."""
    prompts = tuple(dict.fromkeys(batch.teacher_prompts.values()))
    index_of = {prompt: index for index, prompt in enumerate(prompts)}
    groups = (index_of.get(batch.teacher_prompts.get(row, ()), 0) for row in range(len(batch.group_of_N)))
    return replace(batch, prompts=prompts, group_of_N=tuple(groups))


@dataclass(frozen=True)
class DistillTerm(Term):
    """Adds `distill_coef` times the sum of weight * KL(policy || teacher) over the tokens that the teacher teaches."""

    teacher: Teacher
    policy: PreTrainedModel
    reference: PreTrainedModel | None

    def check(self, problem: Problem) -> None:
        """Raises UserError for a problem whose solution is missing, or leaves no room for a completion."""
        self.teacher.check(problem)

    def with_inputs(self, batch: Batch, groups: Sequence[Group], outcomes: Sequence[Sequence[RewardOutcome]]) -> Batch:
        """The batch with the teacher's prompts."""
        return replace(batch, teacher_prompts=self.teacher.prompts(groups, outcomes))

    def metrics(self, inputs: UpdateInputs) -> dict[str, float]:
        """The share of the tokens in the loss that the teacher teaches."""
        trained_NT = inputs.batch.trained_NT
        return {"distill_share": float(trained_NT[inputs.has_teacher_N].sum() / trained_NT.sum().clamp(min=1))}

    def moves(self, inputs: UpdateInputs, rows: Sequence[int], weights_NT: Tensor) -> Tensor:
        """The rows with a teacher."""
        return (weights_NT > 0).any(1) & inputs.has_teacher_N

    def prepare(
        self, runner: PackRunner, inputs: UpdateInputs, packs: Sequence[Pack], rows: Sequence[int], weights_NT: Tensor
    ) -> PackLoss:
        """Reads the taught completions with the teacher, once for an update: hidden states [tokens, H] by row."""
        batch, hidden_by_row = inputs.batch, dict[int, Tensor]()
        model, is_reference = self._model, self.teacher.part.distill_teacher == "reference"
        if batch.teacher_prompts:
            as_teacher, read_packs = as_read(batch), list[Pack]()
            # From each pack packs of its own: with `exact` what a rank computes does not depend on its other packs.
            for index in runner.ranks.own([pack.tokens for pack in packs]):
                taught_rows = [row for row in packs[index].rows if row in batch.teacher_prompts]
                read_packs += runner.packs(as_teacher, taught_rows)
            with as_reference(model, self.policy) if is_reference else nullcontext():
                for pack, hidden_CH in runner.each(read_packs, lambda pack: pack_hidden(model, pack)):
                    hidden_by_row |= zip(pack.rows, torch.split(hidden_CH, list(pack.lengths)), strict=True)

        def pack_loss(forward: PackPass) -> tuple[Tensor, Stats]:
            # The weighted sum of the pack's KLs, their mean in nats, and the number of their tokens, which may be 0.
            pack, weights_nT = forward.pack, forward.tokens.weights_NT
            has_teacher_n = [row in hidden_by_row for row in pack.rows]
            if not any(has_teacher_n):
                no_loss = weights_nT.new_zeros(())
                return no_loss, {"distill_kl": (no_loss, 0)}
            with autocast(runner.device, runner.dtype):
                is_taught_C = torch.tensor(has_teacher_n).repeat_interleave(torch.tensor(pack.lengths))
                at_c = is_taught_C.nonzero()[:, 0].to(pack.row_C.device)
                teacher_cH = torch.cat([hidden_by_row[row] for row in pack.rows if row in hidden_by_row])
                hidden_cH, temperature = forward.output.hidden_CH[at_c], batch.sampling.temperature
                kl_c = token_kls(output_head(self.policy), hidden_cH, output_head(model), teacher_cH, temperature)
                cost = (weights_nT[pack.row_C, pack.column_C][at_c] * kl_c).sum()
            return self.teacher.part.distill_coef * cost, {"distill_kl": (kl_c.detach().mean(), len(kl_c))}

        return pack_loss

    @property
    def _model(self) -> PreTrainedModel:
        if self.teacher.model is not None:
            return self.teacher.model
        by_reference = self.teacher.part.distill_teacher == "reference" and self.reference is not None
        return self.reference if by_reference else self.policy


def token_kls(
    head: nn.Module,
    hidden_SH: Tensor,
    teacher_head: nn.Module,
    teacher_SH: Tensor,
    temperature: float,
    *,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> Tensor:
    """KL(policy || teacher) of each token over the vocabulary, from hidden states: [S] float32, in nats.

    Larger models of a family have more padding behind equal vocabularies: rows of one head alone do not count.

    Logits are in memory in chunks of tokens, and computed again in the backward pass, as in `token_logprobs`. The
    gradient flows to `hidden_SH` and `head` alone; see `reverse_kl`.
    """
    vocabularies = [int(linear.weight.shape[0]) for linear in (head, teacher_head)]  # type: ignore[index]
    rows, size = chunk_rows(max(vocabularies), chunk_elements, arrays=ARRAYS), min(vocabularies)
    parts = [
        checkpoint(_chunk_kls, head, part_SH, teacher_head, of_teacher_SH, temperature, size, use_reentrant=False)
        for part_SH, of_teacher_SH in zip(torch.split(hidden_SH, rows), torch.split(teacher_SH, rows), strict=True)
    ]
    return torch.cat(parts)


def _chunk_kls(
    head: nn.Module, hidden_SH: Tensor, teacher_head: nn.Module, teacher_SH: Tensor, temperature: float, size: int
) -> Tensor:
    with torch.no_grad():
        teacher_SV = torch.log_softmax(teacher_head(teacher_SH)[:, :size].float() / temperature, dim=-1)
    return reverse_kl(head(hidden_SH)[:, :size].float() / temperature, teacher_SV)
