"""The teacher of distillation: what it reads, and its KL from the policy on the policy's own completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.algorithms import has_signal, reverse_kl
from grouprl.algorithms.distillation import Distill
from grouprl.learner.packs import Pack
from grouprl.models.head import output_head
from grouprl.models.logprobs import ARRAYS, CHUNK_ELEMENTS
from grouprl.models.prompts import prompt_token_ids
from grouprl.models.templates import is_rendered
from grouprl.types import Batch, Group, Problem, RewardOutcome, Sampling, UserError


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
        if (found := self.gold(problem)) is None:
            raise UserError(
                f"algorithm.distill_reads: expected a task with solutions, got none for {problem.where}: name the "
                "column that holds them (task.arguments.gold_column), or set algorithm.distill=null"
            )
        return found

    def _ids(self, problem: Problem, read: str) -> tuple[int, ...]:
        asked = isinstance(problem.prompt, str) or any(one["role"] == "user" for one in problem.prompt)
        if not asked or is_rendered(problem.prompt_text, self.tokenizer):
            raise UserError(
                f"algorithm.distill: expected plain text or messages with one of the user, got {problem.where}, whose "
                "prompt has none, or the chat template in it: give messages, or set algorithm.distill=null"
            )
        return prompt_token_ids(self._with(problem, read), self.tokenizer, longest=self.longest)

    def _with(self, problem: Problem, read: str) -> Problem:
        """The problem whose prompt, or whose last message of the user, has what the teacher reads."""
        if isinstance(problem.prompt, str):
            return replace(problem, prompt=self.part.prompt(problem.prompt, read))
        last = max(at for at, one in enumerate(problem.prompt) if one["role"] == "user")
        asked = {"role": "user", "content": self.part.prompt(problem.prompt[last]["content"], read)}
        return replace(problem, prompt=(*problem.prompt[:last], asked, *problem.prompt[last + 1 :]))


def is_unsolved(outcomes_G: Sequence[RewardOutcome]) -> bool:
    """Whether a group has no signal and a completion that is not known to be correct."""
    totals_G = torch.tensor([outcome.total for outcome in outcomes_G], dtype=torch.float64)
    signal = bool(has_signal(totals_G, torch.zeros(len(totals_G))).any())
    return not signal and not all(outcome.correct for outcome in outcomes_G)


def as_read(batch: Batch) -> Batch:
    """The batch with the teacher's prompts, each once, in the place of the policy's; the completions are the same."""
    prompts = tuple(dict.fromkeys(batch.teacher_prompts.values()))
    places = {prompt: place for place, prompt in enumerate(prompts)}
    groups = (places.get(batch.teacher_prompts.get(row, ()), 0) for row in range(len(batch.group_of_N)))
    return replace(batch, prompts=prompts, group_of_N=tuple(groups))


def distillation(
    pack: Pack,
    hidden_CH: Tensor,
    weights_nT: Tensor,
    taught: Mapping[int, Tensor],
    models: tuple[PreTrainedModel, PreTrainedModel],
    sampling: Sampling,
) -> tuple[Tensor, Tensor, int]:
    """A pack's part in the loss: the sum of weight * KL(policy || teacher) over the tokens that the teacher teaches.

    Args:
        pack: a micro-batch.
        hidden_CH: the policy's hidden states that predict its C completion tokens.
        weights_nT: weights of its tokens in the loss.
        taught: by row of the batch, the teacher's hidden states of the row's tokens, [tokens, H].
        models: the policy and the teacher, of which the output heads are used.
        sampling: its temperature divides the logits of both.

    Returns:
        The sum, the mean KL in nats, and the number of these tokens, which may be 0.
    """
    if not (rows := [row for row in pack.rows if row in taught]):
        return (nothing := weights_nT.new_zeros(())), nothing, 0
    taught_n = torch.tensor([row in taught for row in pack.rows], device=pack.row_C.device)
    at_c = taught_n[pack.row_C].nonzero()[:, 0]
    teacher_cH = torch.cat([taught[row] for row in rows])
    policy_head, teacher_head = map(output_head, models)
    kl_c = token_kls(policy_head, hidden_CH[at_c], teacher_head, teacher_cH, sampling.temperature)
    weights_c = weights_nT[pack.row_C, pack.column_C][at_c]
    return (weights_c * kl_c).sum(), kl_c.detach().mean(), len(kl_c)


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
    vocabularies = [int(one.weight.shape[0]) for one in (head, teacher_head)]  # type: ignore[index]
    rows, size = max(1, chunk_elements // ARRAYS // max(vocabularies)), min(vocabularies)
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
