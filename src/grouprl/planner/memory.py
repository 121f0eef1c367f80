"""Memory of a step, worked out from shapes before anything is loaded: what is held all the time, and what at its peaks.

Counted is what grows with the model or the batch. Predicted over measured bytes of the tensors that live at the peak of
an update: 0.97 to 1.02 in float32 and bfloat16 on a CPU, up to 1.05 and 1.18 with `recompute` (tests/planner).
For "cuda" what autograd keeps is held to the modules' own count; nothing was measured on a GPU. A process holds more:
about 400 MiB of torch and transformers, and what its allocator does not give back. Of the resident memory above the
imports, 337 and 939 MiB for 4.5 and 24 million parameters, this is 0.66 and 0.82 in float32, 0.52 and 0.67 in bfloat16
(`python benchmarks/vs_trl.py --only grouprl --shape small`, `wide`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from grouprl.models.packing import PACK_TOKENS, GroupSize, pack_groups
from grouprl.planner.shapes import ModelShape
from grouprl.types import UserError

Device = Literal["cpu", "cuda"]
Dtype = Literal["float32", "bfloat16"]

WEIGHT = 4  # bytes: weights, gradients and moments are float32 whatever the computation's dtype
_SIZES: Mapping[Dtype, int] = MappingProxyType({"float32": 4, "bfloat16": 2})
_NUMBERS = 4  # bytes of what norms, rotations and logits are computed in
_LOGITS = 1 << 25  # of a chunk of log-probs (models/logprobs.py)
_KEPT_LOGITS = 1 << 22  # a single chunk of so many is kept for the backward pass (models/kernels/functions.py)
_SLOTS = 4  # prompts in the cache for each that full groups would need (rollout/native.py)


@dataclass(frozen=True)
class Networks:
    """Which networks a run holds beside its policy, and whether an adapter alone learns."""

    reference: bool = True  # where there is a KL term
    critic: bool = False  # a trunk of its own, as large as the policy
    reward_model: bool = False  # as large as the policy
    lora_rank: int | None = None  # None = all weights learn


GRPO, PPO = Networks(), Networks(critic=True, reward_model=True)


@dataclass(frozen=True)
class StepShape:
    """The batch of a step, and how it is computed. Every prompt and every completion is counted at its longest.

    Raises UserError for a number that is out of range.
    """

    problems: int = 16
    group_size: int = 8
    prompt_tokens: int = 256
    completion_tokens: int = 512
    max_rows: int = 256  # completions decoded at once
    minibatches: int = 1
    micro_batch_tokens: int = 0  # packed tokens of a backward pass; 0 = by device and groups
    dtype: Dtype = "float32"  # of the computation
    device: Device = "cuda"
    recompute: bool = False  # layers run again in the backward pass

    def __post_init__(self) -> None:
        for name in ("problems", "group_size", "prompt_tokens", "completion_tokens", "max_rows", "minibatches"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}: expected 1 or more, got {getattr(self, name)}: nothing would be computed")
        if self.micro_batch_tokens < 0:
            raise UserError(
                f"micro_batch_tokens: expected a number of tokens, got {self.micro_batch_tokens}; 0 = by itself"
            )
        for name, known in (("dtype", _SIZES), ("device", PACK_TOKENS)):
            if getattr(self, name) not in known:
                raise UserError(f"{name}: expected one of {', '.join(known)}, got {getattr(self, name)!r}")

    @property
    def rows(self) -> int:
        """Completions decoded at once."""
        return min(self.max_rows, self.problems * self.group_size)

    @property
    def cached_prompts(self) -> int:
        """Prompts whose keys and values are held at once; a group larger than `max_rows` is several."""
        units = self.problems * -(-self.group_size // self.max_rows)
        return min(units, _SLOTS * max(1, self.max_rows // min(self.group_size, self.max_rows)))

    @property
    def packs(self) -> list[Pack]:
        """The packs that the learner makes of a minibatch of such groups."""
        own = self.completion_tokens - 1  # a completion's last token is predicted and not read
        group = GroupSize(self.prompt_tokens, (own,) * self.group_size)
        groups = -(-self.problems // min(self.minibatches, self.problems))
        packs = pack_groups([group] * groups, self.micro_batch_tokens, self.device)
        return [Pack(sum(unit.tokens for unit in pack), sum(len(unit.completions) for unit in pack)) for pack in packs]

    @property
    def largest_pack(self) -> Pack:
        """The pack with the most tokens: it decides the memory of an update."""
        return max(self.packs, key=lambda pack: pack.tokens)


@dataclass(frozen=True)
class Pack:
    """A micro-batch: prompts and completions that are learned from in one forward and backward pass."""

    tokens: int  # read, S
    completions: int


@dataclass(frozen=True)
class NetworkMemory:
    """Bytes of what is held from beginning to end; 0 = there is none."""

    policy: int
    adapter: int
    reference: int
    reward_model: int
    critic: int
    moments: int  # AdamW's two of each weight of the policy that learns
    critic_moments: int

    @property
    def total(self) -> int:
        """All of it."""
        networks = self.policy + self.adapter + self.reference + self.reward_model + self.critic
        return networks + self.moments + self.critic_moments


@dataclass(frozen=True)
class UpdateMemory:
    """Bytes that an update needs beside what is held."""

    gradients: int
    critic_gradients: int
    activations: int  # of the largest pack, that its forward pass keeps
    layer: int  # what the backward pass of one layer makes beside them, and with `recompute` its activations
    logits: int  # before that: a chunk of them, and the gradient of the output embedding

    @property
    def total(self) -> int:
        """At the peak; layers and logits are not there at once."""
        return self.gradients + self.critic_gradients + self.activations + max(self.layer, self.logits)


@dataclass(frozen=True)
class RolloutMemory:
    """Bytes that sampling needs beside what is held."""

    cache: int  # keys and values, of each prompt once
    drawing: int  # logits of the rows that are decoded at once
    cache_unshared: int  # what the cache would be if each completion had the prompt to itself; no part of any sum


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of a run, by what they are for."""

    networks: NetworkMemory
    update: UpdateMemory
    rollout: RolloutMemory
    rounded: int  # a copy of the weights of all linear layers, where the computation is in bfloat16
    device: Device
    pack: Pack

    @property
    def held(self) -> int:
        """From beginning to end. On a GPU the cache stays as well, because recordings know its place."""
        return self.networks.total + (self.rollout.cache if self.device == "cuda" else 0)

    @property
    def learning(self) -> int:
        """Peak of an update."""
        return self.held + self.update.total + self.rounded

    @property
    def sampling(self) -> int:
        """Peak of the rollout."""
        return self.held + self.rollout.drawing + self.rounded + (self.rollout.cache if self.device == "cpu" else 0)

    @property
    def peak(self) -> int:
        """The larger of the two."""
        return max(self.learning, self.sampling)


def plan_memory(shape: ModelShape, networks: Networks = GRPO, step: StepShape = StepShape()) -> MemoryPlan:
    """Bytes that a run of this shape holds, by part.

    Counted from what the code keeps: weights, gradients and moments in float32; of a forward pass what autograd holds
    for the backward pass, layer by layer; log-probs in chunks of 2^25 logits; keys and values of a prompt once for its
    group.

    Raises:
        UserError: an adapter's rank below 1.
    """
    rank, pack = networks.lora_rank, step.largest_pack
    if rank is not None and rank < 1:
        raise UserError(f"lora_rank: expected 1 or more, got {rank}: leave it out to train all weights")
    adapter = 0 if rank is None else WEIGHT * shape.lora_parameters(rank)
    value_head = WEIGHT * (shape.hidden + 1)
    trunk = WEIGHT * shape.decoder_parameters if rank is None else adapter  # frozen weights are the policy's own
    learning = WEIGHT * shape.parameters if rank is None else adapter
    critic = trunk + value_head if networks.critic else 0
    token = 2 * shape.layers * shape.kv_heads * shape.head_size * _SIZES[step.dtype]  # keys and values
    own = step.rows * step.completion_tokens
    activations, layer = _activations(shape, step, pack)
    return MemoryPlan(
        networks=NetworkMemory(
            policy=WEIGHT * shape.parameters,
            adapter=adapter,
            # With an adapter, the reference is the policy without it.
            reference=WEIGHT * shape.parameters if networks.reference and rank is None else 0,
            reward_model=WEIGHT * (shape.decoder_parameters + shape.hidden) if networks.reward_model else 0,
            critic=critic,
            moments=2 * learning,
            critic_moments=2 * critic,
        ),
        update=UpdateMemory(
            gradients=learning,
            critic_gradients=critic,
            activations=activations,
            layer=layer,
            logits=_logits(shape, step, pack.completions * step.completion_tokens, rank is None),
        ),
        rollout=RolloutMemory(
            cache=token * (step.cached_prompts * step.prompt_tokens + own),
            drawing=_NUMBERS * step.rows * shape.vocabulary,
            cache_unshared=token * (step.rows * step.prompt_tokens + own),
        ),
        rounded=_rounded(shape) if step.dtype == "bfloat16" else 0,
        device=step.device,
        pack=pack,
    )


def _activations(shape: ModelShape, step: StepShape, pack: Pack) -> tuple[int, int]:
    """What a forward pass keeps for the backward pass, and what the backward pass of one layer holds beside it."""
    dtype, half = _SIZES[step.dtype], step.dtype == "bfloat16"
    hidden, queries, keys = shape.hidden, shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    if step.device == "cpu":
        # The compiled kernels: both sums before a norm and its inverse; both norms, queries, keys, values, what
        # attention gives, gate, up and their product.
        layer = _NUMBERS * (2 * hidden + 2) + dtype * (2 * hidden + 2 * queries + 2 * keys + 3 * shape.intermediate)
        between = (_NUMBERS + dtype) * hidden  # of two layers: a sum, and what is still to be added
        around = _NUMBERS * (hidden + 2 * shape.head_size + 1)
    else:
        # transformers' modules: norms keep the normed values as well, SwiGLU keeps silu(gate), attention its result in
        # two layouts and a number for each head. In bfloat16 each product rounds its input for itself.
        layer = _NUMBERS * (4 * hidden + 2 + shape.heads) + dtype * (
            (5 if half else 2) * hidden + 3 * queries + 2 * keys + 4 * shape.intermediate
        )
        between = _NUMBERS * hidden
        around = _NUMBERS * (2 * hidden + 2 * shape.head_size + 1)
    backward = _NUMBERS * 2 * hidden + dtype * 2 * shape.intermediate
    kept, beside = (between, layer + backward) if step.recompute else (layer, backward)
    predicting = pack.completions * step.completion_tokens * hidden * (_NUMBERS + (dtype if half else 0))
    return pack.tokens * (shape.layers * kept + around) + predicting, pack.tokens * beside


def _logits(shape: ModelShape, step: StepShape, predicted: int, head_learns: bool) -> int:
    """A chunk of logits and what is made of it; the gradients of its inputs and, unless frozen, of the embedding."""
    dtype, chunk = _SIZES[step.dtype], max(1, _LOGITS // shape.vocabulary)
    if step.device == "cpu":
        kept = predicted <= chunk and predicted * shape.vocabulary <= _KEPT_LOGITS
        logits = dtype * min(predicted, chunk) * shape.vocabulary * (2 if kept else 1)
    else:
        copies = 8  # of the logits, that torch holds at once (models/logprobs.py)
        logits = _NUMBERS * min(predicted, max(1, chunk // copies)) * shape.vocabulary * copies
    weights = shape.embedding_parameters if head_learns else 0
    return logits + dtype * (predicted * shape.hidden + weights)


def _rounded(shape: ModelShape) -> int:
    linears = shape.layers * sum(inputs * outputs for inputs, outputs in shape.linears)
    return _SIZES["bfloat16"] * (linears + shape.embedding_parameters)
