"""A checkpoint with many end tokens for the engines to sample from, and what they must agree on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grouprl.models.load import load_model, load_tokenizer
from grouprl.rollout import NativeEngine, Request
from grouprl.types import Completion, Group, Problem, Sampling
from oracles import own_model

PROMPTS = (
    "John has 15 apples.",
    "4",
    "There are 4 boxes with 6 pens each. How many pens are there, and how many are left?",
    "I think",
    "3 + 5 = ",
)
# With one end token in 320 nearly no completion of a random model would end: these take about 8 % of the draws.
ENDS = [1, *range(20, 44)]


@dataclass(frozen=True)
class Setting:
    """A checkpoint with many end tokens, on GroupRL and in transformers' own hands."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    own: PreTrainedModel

    def engine(self, max_rows: int = 64, *, seed: int = 0) -> NativeEngine:
        return NativeEngine(self.model, self.tokenizer, seed=seed, max_rows=max_rows)

    def request(self, number: int, completions: int, stream: str = "") -> Request:
        ids = tuple(self.tokenizer(PROMPTS[number])["input_ids"])
        return Request(Problem(f"problem-{number}", PROMPTS[number]), ids, completions, stream)

    def requests(self) -> list[Request]:
        """22 completions in groups of 7, 1, 4, 2 and 8."""
        return [self.request(number, count) for number, count in enumerate((7, 1, 4, 2, 8))]


def setting_of(folder: Path) -> Setting:
    model = load_model(str(folder), device=torch.device("cpu"))
    model.generation_config.eos_token_id = ENDS
    return Setting(model, load_tokenizer(str(folder)), own_model(folder))


def assert_same(got: Sequence[Group], expected: Sequence[Group]) -> None:
    """The same completions; log-probs to rounding, which does depend on what is computed together."""
    for ours, theirs in zip(got, expected, strict=True):
        assert (ours.problem, ours.prompt_ids) == (theirs.problem, theirs.prompt_ids)
        for one, other in zip(ours.completions, theirs.completions, strict=True):
            assert (one.index, one.token_ids, one.text, one.stop_reason) == (
                other.index,
                other.token_ids,
                other.text,
                other.stop_reason,
            )
            assert one.logprobs == pytest.approx(other.logprobs, abs=2e-5)  # 1.3e-5 with vectors of 4 floats
            assert one.plain_logprobs == pytest.approx(other.plain_logprobs, abs=2e-5)


DRAWN = Sampling(max_tokens=24)


def all_of(groups: Sequence[Group]) -> list[Completion]:
    return [completion for group in groups for completion in group.completions]
