"""The values that flow through a run, frozen and small, and the legend of all tensor names.

Axes (suffixes of tensor names):

| letter | axis                                                          |
|--------|---------------------------------------------------------------|
| P      | problems in a step                                            |
| G      | completions of one problem                                    |
| N, n   | completions in a batch (P*G when even); n in a part of it     |
| T      | completion tokens, padded                                     |
| C      | completion tokens of a pack, without padding                  |
| L      | prompt tokens, padded                                         |
| F      | tokens that begin all prompts, read once                      |
| R      | tokens read of a completion: observations between its own     |
| S      | packed tokens: prompts and completions, no padding            |
| K      | candidates beside each other: keys of attention, experts of a |
|        | token, reasoning steps of a group                             |
| V, H   | vocabulary, hidden size                                       |
| D, E   | layers with experts, experts of a layer                       |

`rewards_PG` is a [P, G] tensor; `logprobs_NT` a [N, T] one. Log-probs are natural logarithms in float32.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # `record` and `report` import this module and must not load torch
    from torch import Tensor

Message = Mapping[str, str]
"""One chat turn: {"role": "user", "content": "..."}."""


class UserError(Exception):
    """An error that the user can fix. The text names what was expected, what was got and the remedy. Exit code 2."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in the place of a traceback."""
        return [f"UserError: {self}"]


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Imports a package that an extra of GroupRL installs.

    Raises:
        UserError: it is not installed; `purpose` says what needs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise UserError(
            f"{purpose}: expected the package {package}, got none: run pip install 'grouprl[{extra}]'"
        ) from error


_MANY_NAMES = 40


def nearest_name(got: str, candidates: Iterable[str]) -> str | None:
    """Returns the known name that a user may have meant: by its letters, whether capitals or dashes are right or not.

    >>> nearest_name("Dr-GRPO", ["dr_grpo", "grpo"])
    'dr_grpo'
    """
    plain = {name.lower().replace("-", "_"): name for name in candidates}
    near = difflib.get_close_matches(got.lower().replace("-", "_"), plain, n=1)
    return plain[near[0]] if near else None


def unknown_name(what: str, got: str, candidates: Iterable[str], *, listed_by: str = "") -> UserError:
    """Makes the error for a name that is not among the known names; it suggests the nearest known name.

    More than 40 names are not listed in the error; `listed_by` is the command that lists them.
    """
    names = sorted(candidates)
    near = nearest_name(got, names)
    if len(names) > _MANY_NAMES:
        hint = f"did you mean {near!r}? " if near else ""
        return UserError(f"{what}: {hint}expected one of {len(names)} names, got {got!r}: see {listed_by}")
    hint = f"did you mean {near!r}?" if near else "use one of these."
    return UserError(f"{what}: expected one of {', '.join(names)}, got {got!r}: {hint}")


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "held-out problem"), counted(1000, "step")
    ('1 held-out problem', '1,000 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class StopReason(StrEnum):
    """Why a completion ended."""

    END = "end"  # the policy wrote an end token; it is kept as the last token id and trained
    STOP_STRING = "stop_string"  # a configured stop string appeared; its tokens are kept
    LENGTH = "length"  # truncated: the policy wrote max_tokens without ending


@dataclass(frozen=True)
class Problem:
    """A prompt and its verifier's data.

    >>> Problem("train-17", "2 + 2 = ?", {"answer": "4"}).columns["answer"]
    '4'
    """

    id: str  # unique within the task; it keys the random numbers of the problem's completions
    prompt: str | tuple[Message, ...]  # plain text, or chat messages for the model's chat template
    columns: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))  # passed to rewards by name
    place: str = field(default="", compare=False)  # file and line that it was read from, for errors
    tools: tuple[Mapping[str, Any], ...] = ()  # JSON schemas of the tools that the chat template shows to the policy
    plain_from: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    """By message: the character from which on its content is an environment's text, which writes no control token."""

    @property
    def where(self) -> str:
        """Its name in an error: the id, and where it was read."""
        return f"problem {self.id!r}" + (f" ({self.place})" if self.place not in ("", self.id) else "")

    @property
    def prefill(self) -> str:
        """What the prompt has of the completions: the content of a last message of the assistant."""
        last = self.prompt[-1] if self.prompt and not isinstance(self.prompt, str) else {}
        return last["content"] if last.get("role") == "assistant" else ""

    @property
    def prompt_text(self) -> str:
        """The prompt as a person reads it, without template tokens."""
        if isinstance(self.prompt, str):
            return self.prompt
        return "\n".join(message["content"] for message in self.prompt)


class Structure(Protocol):
    """An automaton that says which tokens may follow; `grouprl.engines.structure` makes one of a regular expression."""

    def restrict(self, logits_NV: Tensor, states_N: Tensor) -> Tensor:
        """Sets the logits of tokens that are not allowed in [N] states to -inf; state 0 is before the first token."""
        ...

    def after(self, states_N: Tensor, tokens_N: Tensor) -> Tensor:
        """Gives the [N] states after allowed tokens."""
        ...

    def before(self, token_ids_NT: Tensor, mask_NT: Tensor) -> Tensor:
        """Gives the [N, T] states before each token of whole completions."""
        ...


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters: softmax(logits / temperature), restricted to top_k, top_p, min_p in turn, renormalized.

    Before the temperature, the repetition penalty changes the logits of tokens that stand in the prompt or earlier in
    the completion: it divides positive ones and multiplies negative ones (CTRL, arXiv:1909.05858, section 4.1, which
    divides all; the sign as in transformers and vLLM). A structure then leaves only the tokens that it allows.
    """

    max_tokens: int = 128
    temperature: float = 1.0  # 0 = greedy
    top_p: float = 1.0  # 1 = off
    top_k: int = 0  # 0 = off
    min_p: float = 0.0  # 0 = off; keeps tokens with probability >= min_p * the largest one
    stop: tuple[str, ...] = ()
    repetition_penalty: float = 1.0  # 1 = off; above 1 makes repetition less likely
    structure: Structure | None = None  # of the regular expression that completions match
    sampled_in_process: bool = (
        True  # whether the learner's modules draw; the log-probs of another program are not theirs
    )
    is_stale: bool = False  # whether weights of earlier steps draw

    def __post_init__(self) -> None:
        for name, value, ok in (
            ("max_tokens", self.max_tokens, self.max_tokens >= 1),
            ("temperature", self.temperature, 0.0 <= self.temperature < math.inf),
            ("top_p", self.top_p, 0.0 < self.top_p <= 1.0),
            ("top_k", self.top_k, self.top_k >= 0),
            ("min_p", self.min_p, 0.0 <= self.min_p < 1.0),
            ("stop", self.stop, all(self.stop)),
            ("repetition_penalty", self.repetition_penalty, 0.0 < self.repetition_penalty < math.inf),
        ):
            if not ok:
                raise UserError(f"sampling.{name}: {value!r} is out of range (see grouprl.types.Sampling)")

    def plain(self, temperature: float = 1.0) -> Sampling:
        """Sampling from the plain softmax of texts that end and are structured in the same way; 0 = greedy."""
        return Sampling(self.max_tokens, temperature, stop=self.stop, structure=self.structure)

    @property
    def truncates(self) -> bool:
        """Whether top_p, top_k or min_p removes tokens before drawing."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0

    @property
    def penalizes(self) -> bool:
        """Whether there is a repetition penalty."""
        return self.repetition_penalty != 1.0

    @property
    def only_scales(self) -> bool:
        """Whether the temperature alone changes the logits, which compiled kernels need."""
        return not self.truncates and not self.penalizes and self.structure is None


@dataclass(frozen=True)
class ObservedTokens:
    """Tokens that the policy was shown between two of its turns: they are read, and nothing is learned of them.

    Where a chat template rewrites what was said, such as by dropping thoughts, the next turn reads another beginning:
    the episode forks there, into stretches that are read apart.
    """

    after: int  # tokens of the completion before it
    token_ids: tuple[int, ...]
    kept: int | None = None  # of the tokens read so far, prompt included, those that stay before these; None = all


@dataclass(frozen=True)
class ToolCall:
    """A call that the policy wrote, and what came of it, for the record."""

    turn: int  # 0, 1, ... of the policy's turns
    tool: str
    arguments: str  # JSON, or what the policy wrote where it is none
    result: str  # as the policy was shown it
    seconds: float
    fault: str = ""  # empty = it succeeded


@dataclass(frozen=True)
class Episode:
    """The turns of a completion that used tools or talked with an environment."""

    observations: tuple[ObservedTokens, ...]  # in order; none after the last turn
    messages: tuple[Mapping[str, Any], ...]  # after the prompt, in the form of chat templates
    calls: tuple[ToolCall, ...] = ()
    ends: tuple[int, ...] = ()  # index of each turn's last token
    turn_rewards: tuple[float | None, ...] = ()  # of each turn; None = the environment gave none
    reward: float | None = None  # the environment's verdict; None = unscored
    ended: str = "finished"  # why it ended
    invalid: str = ""  # why the completion is invalid; empty = it is valid
    attributes: Mapping[str, Any] = field(default_factory=dict)  # plain ones of the environment's object, at the end
    held: str | None = field(default=None, compare=False, repr=False)  # that object, packed, for rewards; not recorded

    @property
    def forks(self) -> int:
        """How often the policy read another beginning than before."""
        return sum(observation.kept is not None for observation in self.observations)

    @property
    def transcript(self) -> list[dict[str, Any]]:
        """The messages up to the policy's last turn: rewards read the last message as the policy's own."""
        last = max((at for at, message in enumerate(self.messages) if message["role"] == "assistant"), default=-1)
        return [dict(message) for message in self.messages[: last + 1]]

    @staticmethod
    def of(contents: Mapping[str, Any]) -> Episode:
        """Makes an episode of its JSON. Raises KeyError, TypeError or AttributeError where it is damaged."""
        parts: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in contents.items()
        }
        parts["observations"] = tuple(
            ObservedTokens(row["after"], tuple(row["token_ids"]), row["kept"]) for row in contents["observations"]
        )
        return Episode(**parts | {"calls": tuple(ToolCall(**call) for call in contents["calls"])})


@dataclass(frozen=True)
class Completion:
    """Text that the policy wrote for a problem. Token ids are the record; `text` is only for people and rewards.

    `logprobs[t]` is the log-prob of `token_ids[t]` under the behavior policy, with `Sampling` applied.
    `plain_logprobs[t]` is its log-prob under the plain softmax. Of an episode these are the tokens of all its turns;
    what stood between them is in `episode.observations`.
    """

    index: int  # 0..G-1 within its group
    token_ids: tuple[int, ...]  # end token included when stop_reason is END
    logprobs: tuple[float, ...]
    plain_logprobs: tuple[float, ...]
    text: str  # decoded without special tokens
    stop_reason: StopReason
    weights_version: int  # updates made before these weights sampled the completion
    episode: Episode | None = None  # None = a single turn

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def observations(self) -> tuple[ObservedTokens, ...]:
        """What the policy was shown between its turns."""
        return () if self.episode is None else self.episode.observations


@dataclass(frozen=True)
class Group:
    """The completions of one problem: the unit of computation."""

    problem: Problem
    prompt_ids: tuple[int, ...]
    completions: tuple[Completion, ...]


@dataclass(frozen=True)
class StepReward:
    """The reward of one reasoning step."""

    end: int  # index of the step's last token
    reward: float  # weighted


SOFT_OVERLONG = "soft_overlong"
"""The component of a reward that is its length penalty, from -1 to 0; the algorithm adds it, with a weight of 1."""


@dataclass(frozen=True)
class RewardOutcome:
    """The reward of one completion and its components.

    >>> RewardOutcome(1.5, {"correct": 1.0, "boxed": 0.5}).valid
    True
    >>> RewardOutcome(1.5, {"correct": 1.0, "boxed": 0.5, "soft_overlong": -0.25}).total
    1.25
    >>> RewardOutcome(math.nan, {"correct": None}, reason="correct returned None").valid
    False
    """

    earned: float  # weighted sum of the reward functions that apply; NaN = invalid (never 0)
    components: Mapping[str, float | None]  # unweighted, by reward name; None = does not apply to this problem
    reason: str = ""  # why it is invalid
    steps: tuple[StepReward, ...] = ()  # process rewards of its reasoning steps; not part of the total
    correct: bool | None = None  # the verdict of the task's verifier; None = it failed, or the task has none
    extra: Mapping[str, Any] = field(default_factory=dict)  # what rewards logged, by REWARD/COLUMN

    @property
    def total(self) -> float:
        """The reward from which the advantage is computed; NaN = invalid."""
        return self.earned + (self.components.get(SOFT_OVERLONG) or 0.0)

    @property
    def valid(self) -> bool:
        """Whether the group's statistics include the completion."""
        return not math.isnan(self.earned)


@dataclass(frozen=True)
class TokenTrace:
    """Numbers of a completion's tokens from the learner's forward passes, for the record alone; None = no pass."""

    logprobs: tuple[float, ...] | None = None  # log-probs under the policy in the last pass over the batch
    entropies: tuple[float, ...] | None = None  # entropies of the policy in that pass, in nats
    reference: tuple[float, ...] | None = None  # log-probs under the reference
    updated: tuple[float, ...] | None = None  # log-probs under the policy after the step's last update
    old: tuple[float, ...] | None = None  # log-probs below the ratio, where the learner computed them; None = sampler's


@dataclass(frozen=True)
class Batch:
    """The N completions of a step as padded tensors, before the learner packs them.

    Worked example: two prompts with two completions each is N = 4, group_of_N = [0, 0, 1, 1], and prompts holds the
    two prompts once.
    """

    prompts: tuple[tuple[int, ...], ...]  # token ids of P prompts
    group_of_N: tuple[int, ...]  # index into prompts
    token_ids_NT: Tensor  # int64, padded with 0
    mask_NT: Tensor  # bool, tokens that exist
    trained_NT: Tensor  # bool, tokens that the loss includes
    old_logprobs_NT: Tensor  # float32, log-probs under the behavior policy
    sampling: Sampling  # the sampling parameters under which log-probs are computed
    observations: Mapping[int, tuple[ObservedTokens, ...]] = field(default_factory=dict)  # of rows with several turns
    teacher_prompts: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # of rows that a teacher teaches

    @cached_property
    def states_NT(self) -> Tensor:
        """The states of the structure's automaton before each token, [N, T] int64; 0 without a structure."""
        if self.sampling.structure is None:
            return self.token_ids_NT.new_zeros(self.token_ids_NT.shape)
        return self.sampling.structure.before(self.token_ids_NT, self.mask_NT)


@dataclass(frozen=True)
class StepRecord:
    """One GRPO step for the record. It includes the groups that the filter dropped, with advantages of 0."""

    step: int  # 1, 2, ...
    metrics: Mapping[str, float]
    groups: Sequence[Group]  # [P]
    outcomes: Sequence[Sequence[RewardOutcome]]  # [P][G]
    token_advantages: Sequence[Sequence[Sequence[float]]]  # [P][G][tokens]
    traces: Sequence[Sequence[TokenTrace]] | None = None  # [P][G]
    kept: Sequence[bool] | None = None  # [P] whether the group entered the loss; None = all of them
    stages: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  # JSON values of the watched group
