"""Computes the memory of a step from shapes: what stays allocated for the whole run, and the peaks of a step.

It counts tensors that grow with the model or the batch. Predicted over measured bytes at the peak of an update: 0.97 to
1.02 in float32 and bfloat16 on a CPU, up to 1.05 and 1.18 with `recompute`; at the peak of sampling 0.96 to 1.03
(tests/tools). For a GPU, tests compare with the tensors that autograd keeps; nothing was measured on a GPU. A process
needs more: about 400 MiB for torch and transformers, and memory that its allocator keeps. Of the resident memory above
the imports, 337 and 939 MiB for 4.5 and 24 million parameters, the prediction is 0.66 and 0.82 in float32, 0.52 and
0.67 in bfloat16 (`python benchmarks/vs_trl.py --only grouprl --shape small`, `wide`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, replace
from types import MappingProxyType
from typing import Literal

from grouprl.forward.devices import GPU, DeviceTraits, traits_of
from grouprl.forward.logprobs import ARRAYS, KEPT_LOGITS, chunk_rows
from grouprl.forward.packing import GroupSize, pack_groups, workers_on_cpu
from grouprl.rollout.native import prompt_slots
from grouprl.tools.planner.shapes import ModelShape
from grouprl.types import UserError

Dtype = Literal["float32", "bfloat16"]
Weights = Literal["float32", "bfloat16", "nf4"]
Moments = Literal["float32", "bfloat16", "8bit"]

FLOAT32 = 4  # bytes of weights of adapters, value heads and reward models, of norms, rotations and logits
SIZES: Mapping[Dtype, int] = MappingProxyType({"float32": FLOAT32, "bfloat16": 2})
# Of a linear layer in NF4: 4 bits, for 64 weights a scale of 8 bits, for 256 of these one of 32 (arXiv:2305.14314).
_NF4 = 1 / 2 + (1 + 4 / 256) / 64
_BYTE = 1 + 4 / 256  # bytes of a number of a moment in 8bit: 256 share a scale (lean/library_adamw.py)
COMPARED = ("Qwen2.5-1.5B", "Qwen2.5-7B", "Qwen2.5-14B", "Llama-3.1-70B")
"""Models of four sizes for which GRPO is compared with PPO."""
BLOCKS: Mapping[str, str] = MappingProxyType(
    {"held": "held for the whole run", "learning": "peak of an update", "sampling": "peak of sampling"}
)
PARTS: Mapping[str, str] = MappingProxyType(
    {
        "policy": "weights of the policy",
        "adapter": "LoRA adapter",
        "reference": "weights of the frozen reference",
        "reward_model": "weights of the reward model",
        "teacher": "weights of the teacher",
        "critic": "weights of the critic",
        "moments": "AdamW's two moments",
        "critic_moments": "AdamW's two moments of the critic",
        "gradients": "gradients",
        "critic_gradients": "gradients of the critic",
        "teacher_states": "the teacher's hidden states of a minibatch",
        "activations": "activations of the largest pack",
        "layer": "backward pass of one layer",
        "logits": "log-probs: a chunk of logits",
        "cache": "cache of keys and values",
        "reading": "one layer of the prompts read at once",
        "drawing": "logits of the rows decoded at once",
        "copies": "bfloat16 copy of the weights, of CUDA graphs",
        "rounded": "bfloat16 copy of the weights",
    }
)
"""What the sums of a plan and their parts are called."""


@dataclass(frozen=True)
class Networks:
    """The networks of a run other than its policy, and whether an adapter alone learns."""

    reference: bool = True  # for a KL term
    critic: bool = False  # a trunk of its own, as large as the policy
    reward_model: bool = False  # as large as the policy
    teacher_hidden: int = 0  # hidden size of distillation's teacher; 0 = there is none
    teacher: int = 0  # parameters of a teacher other than the policy and the reference
    lora_rank: int | None = None  # None = all weights learn
    weights: Weights = "float32"  # of policy, reference and critic; vectors, which stay float32, count as matrices
    moments: Moments = "float32"
    paged: bool = False  # a GPU moves the moments to the machine's memory when it is full
    reference_on_cpu: bool = False  # visits a GPU when there are no gradients, which are as large


GRPO, PPO = Networks(), Networks(critic=True, reward_model=True)


@dataclass(frozen=True)
class StepShape:
    """The batch of a step and its computation. Every prompt and completion counts with its largest length.

    Raises UserError for a number that is out of range.
    """

    problems: int = 16
    group_size: int = 8
    prompt_tokens: int = 256
    completion_tokens: int = 512
    max_rows: int = 256  # completions decoded at once
    minibatches: int = 1
    micro_batch_tokens: int = 0  # packed tokens of a backward pass; 0 = by device and groups
    dtype: Dtype = "float32"  # dtype of the computation
    device: str = GPU  # torch's name of its type
    recompute: bool = False  # whether layers run again in the backward pass
    threads: int = 1  # on a CPU, where each works on a pack of its own
    shared_tokens: int = 0  # that begin every prompt and are read once for the whole batch
    episodes: bool = False  # of several turns: what the caches have room for is kept once more, until the next turn
    held_out: int = 0  # problems of an evaluation, each with a greedy completion; 0 = there is none
    samples: int = 0  # sampled completions of each after that

    def __post_init__(self) -> None:
        for name in ("problems", "group_size", "prompt_tokens", "completion_tokens", "max_rows", "minibatches"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}: expected 1 or more, got {getattr(self, name)}: raise it")
        if not 0 <= self.shared_tokens < self.prompt_tokens:
            raise UserError(f"shared_tokens: expected 0 to prompt_tokens - 1, got {self.shared_tokens}: lower it")
        if self.micro_batch_tokens < 0:
            raise UserError(
                f"micro_batch_tokens: expected 0 (automatic) or more tokens, got {self.micro_batch_tokens}: raise it"
            )
        if self.dtype not in SIZES:
            raise UserError(f"dtype: expected one of {', '.join(SIZES)}, got {self.dtype!r}")

    @property
    def rows(self) -> int:
        """The completions that are decoded at once."""
        return min(self.max_rows, self.problems * self.group_size)

    @property
    def cached_prompts(self) -> int:
        """The prompts whose keys and values are cached at once; a group larger than `max_rows` counts several times."""
        units = self.problems * -(-self.group_size // self.max_rows)
        return prompt_slots(units, self.max_rows, min(self.group_size, self.max_rows), episodes=self.episodes)

    def of_rank(self, ranks: int) -> StepShape:
        """The largest share of one of several ranks."""
        return replace(self, problems=-(-self.problems // ranks), held_out=-(-self.held_out // ranks))

    @property
    def calls(self) -> list[StepShape]:
        """What the engine samples at once: groups, and of an evaluation the greedy and the sampled completions."""
        groups = ((self.problems, self.group_size), (self.held_out, 1), (self.held_out, self.samples))
        return [replace(self, problems=count, group_size=size) for count, size in groups if count and size]

    @property
    def minibatch_problems(self) -> int:
        """The groups of a minibatch, which are whole; the last minibatch may have fewer."""
        return -(-self.problems // min(self.minibatches, self.problems))

    @property
    def packs(self) -> list[PackSize]:
        """The packs that the learner makes from a minibatch."""
        completion_tokens = self.completion_tokens - 1  # the model does not read a completion's last token
        group = GroupSize(self.prompt_tokens - self.shared_tokens, (completion_tokens,) * self.group_size)
        packs = pack_groups([group] * self.minibatch_problems, self.micro_batch_tokens, self.device)
        return [
            PackSize(sum(unit.tokens for unit in pack), sum(len(unit.completions) for unit in pack)) for pack in packs
        ]

    @property
    def largest_pack(self) -> PackSize:
        """The pack with the most tokens, which determines the memory of an update."""
        return max(self.packs, key=lambda pack: pack.tokens)


@dataclass(frozen=True)
class PackSize:
    """A micro-batch: prompts and completions of one forward and backward pass."""

    tokens: int  # tokens that the model reads, S
    completions: int


@dataclass(frozen=True)
class NetworkMemory:
    """Bytes that stay allocated for the whole run; 0 = there is none."""

    policy: int
    adapter: int
    reference: int
    reward_model: int
    teacher: int
    critic: int
    moments: int  # AdamW's two moments of each trained weight of the policy; 0 for paged ones of a GPU
    critic_moments: int

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(astuple(self))


@dataclass(frozen=True)
class UpdateMemory:
    """Bytes of an update, without the networks."""

    gradients: int
    critic_gradients: int
    teacher_states: int
    activations: int  # kept by the forward pass of the largest pack, or of all that run at once
    layer: int  # temporary tensors of one layer's backward pass, with `recompute` its activations too
    logits: int  # before that: a chunk of logits, and the gradient of the output embedding

    @property
    def total(self) -> int:
        """Bytes at the peak; layers and logits are never allocated together."""
        held = self.gradients + self.critic_gradients + self.teacher_states + self.activations
        return held + max(self.layer, self.logits)


@dataclass(frozen=True)
class RolloutMemory:
    """Bytes of sampling, without the networks."""

    cache: int  # keys and values, those of each prompt once
    reading: int  # temporary tensors of one layer, of all prompts that are read at once
    drawing: int  # logits of the rows that are decoded at once, on a GPU with the arrays that draw from them
    copies: int  # on a GPU, weights in bfloat16 that CUDA graphs read; they stay while the policy learns


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of a run by purpose."""

    networks: NetworkMemory
    update: UpdateMemory
    rollout: RolloutMemory
    rounded: int  # bfloat16 copy of the weights of all linear layers, for a computation in bfloat16
    device: str
    pack: PackSize

    @property
    def held(self) -> int:
        """Bytes for the whole run; with cache and copies where CUDA graphs keep their addresses."""
        return self.networks.total + (self.rollout.cache + self.rollout.copies if self._has_graphs else 0)

    @property
    def _has_graphs(self) -> bool:
        return traits_of(self.device).has_graphs

    @property
    def learning(self) -> int:
        """Bytes at the peak of an update."""
        return self.held + self.update.total + self.rounded

    @property
    def sampling(self) -> int:
        """Bytes at the peak of the rollout."""
        step = max(self.rollout.reading, self.rollout.drawing)
        return self.held + step + (0 if self._has_graphs else self.rollout.cache + self.rounded)

    @property
    def peak(self) -> int:
        """The larger of the two peaks."""
        return max(self.learning, self.sampling)

    @property
    def sums(self) -> dict[str, int]:
        """What is held, and the peaks."""
        return {name: getattr(self, name) for name in ("held", "learning", "sampling", "peak")}

    @property
    def blocks(self) -> dict[str, dict[str, int]]:
        """The parts (see `PARTS`) that make up what is held and what each peak adds to it."""
        rounded = {"rounded": self.rounded}
        graphs = {"cache": self.rollout.cache, "copies": self.rollout.copies}
        drawing = {"reading": self.rollout.reading, "drawing": self.rollout.drawing}
        blocks = {
            "held": asdict(self.networks) | (graphs if self._has_graphs else {}),
            "learning": asdict(self.update) | rounded,
            "sampling": drawing if self._has_graphs else graphs | drawing | rounded,
        }
        return {name: {part: size for part, size in parts.items() if size} for name, parts in blocks.items()}


def plan_memory(
    shape: ModelShape, networks: Networks = GRPO, step: StepShape = StepShape(), *, sharded: bool = False
) -> MemoryPlan:
    """Computes the bytes of a run by part.

    It counts what the code keeps: weights, gradients and moments in their dtypes; activations of autograd for the
    backward pass, layer by layer; log-probs in chunks of 2^25 logits; keys and values once for all that share them.
    Of a `sharded` model only the activations differ: on a CPU its hooks keep the compiled kernels out.

    Raises:
        UserError: an adapter's rank is below 1.
    """
    rank, pack, half = networks.lora_rank, step.largest_pack, step.dtype == "bfloat16"
    if rank is not None and rank < 1:
        raise UserError(f"lora_rank: expected 1 or more, got {rank}: set lora_rank=None to train all weights")
    small = networks.weights == "nf4"
    weight = SIZES["bfloat16" if networks.weights == "nf4" else networks.weights]
    policy = weight * shape.parameters - int((weight - _NF4) * shape.linear_parameters if small else 0)
    widened = weight * shape.hidden * shape.intermediate if small else 0  # one matrix at a time
    adapter = 0 if rank is None else FLOAT32 * shape.lora_parameters(rank)
    trunk = weight * shape.decoder_parameters if rank is None else adapter  # it shares the policy's frozen weights
    learning = weight * shape.parameters if rank is None else adapter
    numbers, embedded = (shape.parameters, shape.embedding_parameters) if rank is None else (adapter // FLOAT32, 0)
    valued = (shape.decoder_parameters if rank is None else numbers) + shape.hidden + 1
    critic = trunk + FLOAT32 * (shape.hidden + 1) if networks.critic else 0
    token = shape.cached_numbers * SIZES[step.dtype]
    own_prompt = step.prompt_tokens - step.shared_tokens
    cached = max(call.cached_prompts * own_prompt + call.rows * step.completion_tokens for call in step.calls)
    rows = max(call.rows for call in step.calls)
    read = max(step.shared_tokens, max(max(1, call.rows // call.group_size) * own_prompt for call in step.calls))
    activations, before, layer = _activations(shape, step, pack, sharded)
    on_gpu, traits = step.device != "cpu", traits_of(step.device)
    away = networks.reference_on_cpu and not traits.shares_memory
    # Each pack that runs beside others holds a gradient until it is added.
    at_once = 1 if on_gpu else max(1, workers_on_cpu(shape.parameters, len(step.packs), step.threads))
    gradients = 1 if at_once == 1 else 1 + at_once
    shared = FLOAT32 * shape.cached_numbers * step.shared_tokens  # float32 keys and values, or their gradients
    rounds = half and networks.weights == "float32"
    copies = rounded = SIZES[step.dtype] * (shape.linear_parameters + shape.embedding_parameters) if rounds else 0
    # Autocast keeps no frozen weights: those of one layer live at once.
    if rounds and rank is not None and step.recompute:
        rounded -= SIZES[step.dtype] * shape.linear_parameters * (shape.layers - 1) // shape.layers
    predicted = pack.completions * step.completion_tokens
    dtype, chunk = SIZES[step.dtype], chunk_rows(shape.vocabulary)
    if step.device == "cpu":
        kept = predicted <= chunk and predicted * shape.vocabulary <= KEPT_LOGITS
        logits = dtype * min(predicted, chunk) * shape.vocabulary * (2 if kept else 1)
    else:
        logits = FLOAT32 * min(predicted, chunk_rows(shape.vocabulary, arrays=ARRAYS)) * shape.vocabulary * ARRAYS
    weights = shape.embedding_parameters if rank is None else 0
    minibatch_tokens = step.minibatch_problems * step.group_size * step.completion_tokens
    return MemoryPlan(
        networks=NetworkMemory(
            policy=policy,
            adapter=adapter,
            # With an adapter, the reference is the policy without the adapter.
            reference=policy if networks.reference and rank is None and not away else 0,
            reward_model=FLOAT32 * (shape.decoder_parameters + shape.hidden) if networks.reward_model else 0,
            teacher=weight * networks.teacher,
            critic=critic,
            moments=_moments(networks, numbers, embedded, traits),
            critic_moments=_moments(networks, valued, embedded, traits) if critic else 0,
        ),
        update=UpdateMemory(
            gradients=gradients * learning,
            critic_gradients=gradients * critic,
            teacher_states=SIZES[step.dtype] * networks.teacher_hidden * minibatch_tokens,
            activations=at_once * activations + before + (gradients + half) * shared,
            layer=at_once * (layer + widened),
            logits=at_once * (logits + dtype * (predicted * shape.hidden + weights)),
        ),
        rollout=RolloutMemory(
            cache=token * step.shared_tokens + (1 + step.episodes) * (shared + token * cached),
            reading=read
            * (
                FLOAT32 * 2 * shape.hidden
                + SIZES[step.dtype] * (3 * (shape.hidden + shape.keys + shape.intermediate) + shape.queries)
            ),
            # sampler.draw has logits, log-probs and two float64 arrays at once; the kernel of the CPU has none.
            drawing=(24 + (2 if half else 0) if on_gpu else FLOAT32) * rows * shape.vocabulary,
            copies=copies if traits.has_graphs else 0,
        ),
        rounded=rounded,
        device=step.device,
        pack=pack,
    )


def _moments(networks: Networks, numbers: int, embedded: int, traits: DeviceTraits) -> int:
    """Bytes of two moments of `numbers` weights, `embedded` of which are embeddings: never in 8 bits."""
    if networks.paged and traits.has_paging:
        return 0
    if networks.moments == "8bit":
        return int(2 * (_BYTE * (numbers - embedded) + FLOAT32 * embedded))
    return 2 * SIZES[networks.moments] * numbers


def _activations(shape: ModelShape, step: StepShape, pack: PackSize, sharded: bool) -> tuple[int, int, int]:
    """Bytes that a forward pass keeps for the backward pass, of a pack and of the shared tokens, which stay for all.

    Then further bytes of one layer's backward pass.
    """
    dtype, half = SIZES[step.dtype], step.dtype == "bfloat16"
    hidden, queries, keys = shape.hidden, shape.queries, shape.keys
    if step.device == "cpu" and not sharded and shape.layer_norms == 2:
        # The compiled kernels keep both sums before a norm and its inverse; both norms, queries, keys, values, the
        # output of attention, gate, up and their product.
        layer = FLOAT32 * (2 * hidden + 2) + dtype * (2 * hidden + 2 * queries + 2 * keys + 3 * shape.intermediate)
        between = (FLOAT32 + dtype) * hidden  # between two layers: a sum, and the next summand
        around = FLOAT32 * (hidden + 2 * shape.head_size + 1)
    else:
        # transformers' modules: norms also keep the normalized values, SwiGLU keeps silu(gate), attention its output in
        # two layouts and a number for each head. In bfloat16 each product makes its own rounded copy of its input.
        layer = FLOAT32 * (2 * shape.layer_norms * hidden + 2 + shape.heads) + dtype * (
            (5 if half else 2) * hidden + 3 * queries + 2 * keys + 4 * shape.intermediate
        )
        between = FLOAT32 * hidden
        around = FLOAT32 * (2 * hidden + 2 * shape.head_size + 1)
    backward = FLOAT32 * 2 * hidden + dtype * 2 * shape.intermediate
    # Attention under dense masks, in torch alone, keeps its weights twice.
    if sharded if step.device == "cpu" else not traits_of(step.device).has_flex:
        read_tokens = pack.completions * (step.completion_tokens - 1)
        seen = step.prompt_tokens + step.completion_tokens - 1
        layer += dtype * 2 * shape.heads * seen * read_tokens // pack.tokens
    kept, beside = (between, layer + backward) if step.recompute else (layer, backward)
    predicting = pack.completions * step.completion_tokens * hidden * (FLOAT32 + (dtype if half else 0))
    last = FLOAT32 * (hidden + 1) + dtype * (hidden + 2 * keys)  # layer, of which keys and values alone are used
    shared = step.shared_tokens * ((shape.layers - 1) * kept + last + around)
    return pack.tokens * (shape.layers * kept + around) + predicting, shared, pack.tokens * beside
