"""The score of a trained reward model as a reward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.forward.layouts import TreeLayout
from grouprl.forward.precision import autocast
from grouprl.models.load import context_length, load_tokenizer
from grouprl.models.names import check_name
from grouprl.models.prompts import completion_texts, conversation_token_ids, prompt_token_ids
from grouprl.models.reward_model import completion_scores, load_reward_model
from grouprl.record.layout import model_at
from grouprl.rewards.calls import Invalid
from grouprl.rewards.rules import Ids, Texts
from grouprl.types import Problem

_Row = tuple[tuple[int, ...], tuple[int, ...]]  # prompt and completion


@dataclass(frozen=True)
class LearnedReward:
    """Scores a prompt with its completion; a reward function in TRL's form.

    It reads the token ids that were sampled, or, with a tokenizer of its own, the conversation as its own chat template
    and tokenizer give it. The model shares no weights with a policy, gets no gradient and applies no dropout.
    """

    in_process: ClassVar[bool] = True  # its weights are in this process, on its device

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    dtype: str
    micro_batch_tokens: int  # packed tokens in one forward pass
    own_tokens: bool = False  # the policy's token ids mean nothing to it

    def __call__(
        self, prompts: Texts, completions: Texts, completion_ids: Ids, **columns: Any
    ) -> list[float | Invalid]:
        """Returns the score of each completion: any number; only differences for the same prompt have a meaning.

        With a tokenizer of its own: `Invalid` where the conversation is longer than its context, which nobody can know
        before the completion is written.

        Raises:
            UserError: a prompt with its completion is longer than the model's context, or its template fails.
        """
        if self.own_tokens:
            rows = list(self._retold(prompts, completions))
        else:
            rows = list(self._rows(prompts, completions, completion_ids))
        fitting = [row for row in rows if row is not None]
        scores: list[float] = []
        with torch.no_grad(), autocast(self.device, self.dtype):
            for pack in _packs(fitting, self.micro_batch_tokens):
                groups = [(ids, [row[1] for row in members]) for ids, members in groupby(pack, key=lambda row: row[0])]
                lengths = tuple(tuple(map(len, members)) for _, members in groups)
                layout = TreeLayout(tuple(len(ids) for ids, _ in groups), lengths, self.device)
                tokens = [token for ids, members in groups for span in (ids, *members) for token in span]
                scores += completion_scores(self.model, torch.tensor(tokens, device=self.device), layout).tolist()
        too_long = Invalid(f"is longer than the reward model's context of {context_length(self.model)} tokens")
        remaining = iter(scores)
        return [too_long if row is None else next(remaining) for row in rows]

    @property
    def mib(self) -> float:
        """The memory of the model's weights, in MiB."""
        weights: list[torch.Tensor] = list(self.model.parameters())
        return sum(weight.numel() * weight.element_size() for weight in weights) / (1 << 20)

    def _rows(self, prompts: Texts, completions: Texts, completion_ids: Ids) -> Iterator[_Row | None]:
        rows = zip(prompts, completions, completion_ids, strict=True)
        for prompt, members in groupby(rows, key=lambda row: row[0]):
            texts, ids = zip(*((text, tuple(token_ids)) for _, text, token_ids in members), strict=True)
            messages = prompt if isinstance(prompt, str) else tuple(prompt)
            if not isinstance(messages, str):  # the assistant's last message of the prompt begins the completions
                first_text = completion_texts(ids[:1], self.tokenizer)[0]
                prefill = str(texts[0][-1]["content"]).removesuffix(first_text)
                messages = (*messages, {"role": "assistant", "content": prefill}) if prefill else messages
            problem = Problem("of the reward model", messages)
            longest = context_length(self.model) - max(map(len, ids))
            prompt_ids = prompt_token_ids(problem, self.tokenizer, longest=longest)
            yield from ((prompt_ids, completion) for completion in ids)

    def _retold(self, prompts: Texts, completions: Texts) -> Iterator[_Row | None]:
        """The rows in the reward model's own tokens; what a prompt's rows begin with in common is computed once."""
        for _, members in groupby(zip(prompts, completions, strict=True), key=lambda member: member[0]):
            told = [conversation_token_ids(prompt, text, self.tokenizer) for prompt, text in members]
            fits = [1 < len(ids) <= context_length(self.model) for ids in told]
            fitting = [ids for ids, fit in zip(told, fits, strict=True) if fit]
            common = 0  # tokens that all rows begin with, at most all but one of the shortest
            if fitting:
                first, last = min(fitting), max(fitting)  # in order, so what these two begin with, all do
                pairs, shortest = enumerate(zip(first, last, strict=False)), min(map(len, fitting)) - 1
                common = next((i for i, (a, b) in pairs if a != b or i == shortest), shortest)
            # Nothing in common: each row by itself, without its last token, where the score is read.
            yield from (
                (ids[: common or -1], ids[common or -1 :]) if fit else None for ids, fit in zip(told, fits, strict=True)
            )


def learned_reward(
    path: str,
    *,
    policy: str,
    device: torch.device,
    dtype: str = "float32",
    micro_batch_tokens: int = 16384,
) -> LearnedReward:
    """Loads the reward function of a trained reward model.

    Args:
        path: folder or run that `grouprl reward-model` wrote, or any sequence classifier with one label.
        policy: the model whose completions are scored: built-in name, folder or hub id.
        device, dtype: device and dtype of the computation.
        micro_batch_tokens: packed tokens in one forward pass; affects memory, not results.

    A reward model whose vocabulary is not the policy's reads the text in its own tokens.

    Raises:
        UserError: there is no such model, or its score is not trained.
    """
    path = model_at(path)
    check_name(path, "reward model")
    tokenizer = load_tokenizer(path)
    own_tokens = tokenizer.get_vocab() != load_tokenizer(policy).get_vocab()
    model = load_reward_model(path, device=device)
    return LearnedReward(model, tokenizer, device, dtype, micro_batch_tokens, own_tokens)


def _packs(rows: Sequence[_Row], budget: int) -> list[list[_Row]]:
    """Divides the rows, in order, into packs; a prompt counts once for its consecutive completions."""
    packs: list[list[_Row]] = []
    room = 0
    for prompt, completion in rows:
        is_same_prompt = bool(packs) and packs[-1][-1][0] == prompt
        cost = len(completion) + (0 if is_same_prompt else len(prompt))
        if not packs or cost > room:
            packs.append([])
            room, cost = budget, len(prompt) + len(completion)
        packs[-1].append((prompt, completion))
        room -= cost
    return packs
