"""The protocol of rollout engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.forward.prefix import shared_tokens
from grouprl.leaves import leaf
from grouprl.models.prompts import prompt_token_ids
from grouprl.types import Group, Problem, Sampling


@dataclass(frozen=True)
class Request:
    """A group to sample: one problem and the number of its completions."""

    problem: Problem
    prompt_ids: tuple[int, ...]
    completions: int
    stream: str = ""  # part of the key of the random numbers: another stream gives other completions
    before: int = 0  # tokens that begin the prompts of all requests made with it, whoever samples which of them


def make_requests(
    visits: Sequence[tuple[Problem, str]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    completions: int,
    longest_prompt: int,
    opened: Callable[[Problem], Problem] | None = None,
) -> list[Request]:
    """One request for each visit, with the prompt tokens of its problem and its random stream.

    `opened` adds to a problem what an environment shows before the first turn.

    Raises:
        UserError: a prompt has more than `longest_prompt` tokens.
    """
    visits = visits if opened is None else [(opened(problem), stream) for problem, stream in visits]
    requests = [
        Request(problem, prompt_token_ids(problem, tokenizer, longest=longest_prompt), completions, stream)
        for problem, stream in visits
    ]
    before = shared_tokens(request.prompt_ids for request in requests)
    return [replace(request, before=before) for request in requests]


def structured_sampling(
    sampling: Sampling, regex: str | None, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> Sampling:
    """The sampling parameters with what a regular expression allows of a model's tokens; None = everything.

    Raises:
        UserError: the expression cannot be read, needs too large a table, or no completion of these tokens matches it.
    """
    structured: Callable[..., Sampling] | None = None if regex is None else leaf("rollout.regex")
    return sampling if structured is None else structured(sampling, regex, model, tokenizer)


class Engine(Protocol):
    """Samples groups of completions from the policy."""

    def generate(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        on_finished: Callable[[int], None] | None = None,
        on_group: Callable[[int, Group], None] | None = None,
    ) -> list[Group]:
        """Samples one group per request, in the order of the requests.

        Args:
            requests: the groups to sample.
            sampling: the sampling parameters.
            on_finished: called with the number of completions that just finished, for progress bars.
            on_group: called once for each group when its last completion finishes, with the index of its request.
        """
        ...

    def load_weights(self, version: int) -> None:
        """Makes the engine sample from the policy's weights after `version` updates."""
        ...


@runtime_checkable
class EarlyEngine(Engine, Protocol):
    """An engine that samples elsewhere, so that groups can start before `generate` asks for them."""

    def begin(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Starts to sample groups from the present weights, for a later `generate`; groups started before stay."""
        ...

    def restore(self, requests: Sequence[Request], sampling: Sampling, groups: Sequence[Group]) -> None:
        """Takes groups that were sampled before, for a later `generate`."""
        ...
