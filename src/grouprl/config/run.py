"""The configuration of a run: small frozen models, composed, read from YAML files and dotted overrides.

A file names only the values that differ from the defaults. Unknown keys are errors; all errors come together.

    steps: 60
    algorithm: {name: grpo, kl_coef: 0.02}
    rollout: {problems_per_step: 16, group_size: 8}
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, ValidationInfo, model_validator

from grouprl.algorithms.named import NAMED
from grouprl.algorithms.spec import Algorithm
from grouprl.config.algorithm import OWN, as_tree, flat, from_file, own_parts, with_options
from grouprl.config.environment import EnvironmentConfig as EnvironmentConfig
from grouprl.config.files import dump_config as dump_config
from grouprl.config.files import load_config as load_config
from grouprl.config.learner import LearnerConfig as LearnerConfig
from grouprl.config.own_algorithm import is_in_file, load_algorithm
from grouprl.config.section import Arguments, Examples, Fraction, Name, Names, Place, Section, Text, Variable
from grouprl.config.trackers import TrackersConfig as TrackersConfig
from grouprl.files import DATA_KINDS, data_kind
from grouprl.forward.devices import check_device
from grouprl.models.names import ALL_LINEAR, QUESTION
from grouprl.types import Sampling, UserError, unknown_name

OWNED = "environment"
"""The task of an environment that owns its data."""
_NEXT_QUESTION = "\nQuestion:"  # where a base model goes on after its answer


class ModelConfig(Section):
    """A model, and how this machine computes it."""

    path: Place = Field("abacus", description="a built-in model, a hub id or a folder in Hugging Face layout")
    revision: Text | None = Field(None, description="branch, tag or commit of a hub id; null = its main branch")
    chat_template: Place | None = Field(
        None,
        description="null = the tokenizer's; plain, question (best with task.examples) or tools = for base models; "
        "or a file with a Jinja template",
    )
    chat_template_kwargs: dict[Variable, bool | int | float | str] = Field(
        {}, description="variables of the chat template, such as enable_thinking: false"
    )
    dtype: Literal["float32", "bfloat16", "auto"] = Field(
        "float32", description="dtype of the computation; auto = bfloat16 if its products are faster"
    )
    device: Annotated[str, AfterValidator(check_device)] = Field(
        "auto", description="auto, cpu, cuda, cuda:1, mps (Apple), xpu (Intel), or what torch calls another accelerator"
    )
    threads: int = Field(0, ge=0, le=1024, description="CPU threads; 0 = all cores")


class LoraConfig(Section):
    """A low-rank adapter of frozen weights: W + alpha / rank * B A, with B = 0 at the start (arXiv:2106.09685).

    It has no dropout, because sampler and learner must agree.
    """

    rank: int = Field(16, ge=1, le=65_536, description="rank of the adapter: columns of B, rows of A")
    alpha: int = Field(32, ge=1, le=10**6, description="the adapter's change is multiplied by alpha / rank")
    targets: Names = Field(
        (ALL_LINEAR,),
        strict=False,
        min_length=1,
        description="adapted layers, such as [q_proj, v_proj]; all-linear = all",
    )


class PolicyConfig(ModelConfig):
    """The model of reinforcement learning, which may train an adapter alone."""

    weights: Literal["float32", "bfloat16", "nf4"] = Field(
        "float32",
        description="bfloat16 = half the memory, with stochastic rounding; nf4 = 4 bits below an adapter (QLoRA)",
    )
    reference: Literal["device", "cpu"] = Field(
        "device", description="place of the frozen reference; cpu = it moves to the GPU for one pass a step"
    )
    lora: LoraConfig | None = Field(None, description="the adapter to train; null = train all weights")


class TaskConfig(Section):
    """The task that gives the problems. The task decides the values that are null."""

    name: Text = Field("word_problems", description="a built-in task, a data file, or hub:owner/name")
    path: Place | None = Field(None, description="data file or folder of tasks that read one")
    difficulty: int | None = Field(None, ge=1, le=10**6, description="level, for tasks with levels")
    train_problems: int | None = Field(
        None, ge=1, le=10**8, description="problems in the train split; null = the task's default"
    )
    eval_problems: int | None = Field(
        None,
        ge=1,
        le=10**8,
        description="problems in the validation split and in the test split; null = the task's default",
    )
    seed: int = Field(0, ge=0, lt=2**63, description="seed of procedural problems")
    system_prompt: Text | None = Field(
        None, description="replaces the task's system prompt; empty = no system prompt; null = the task's"
    )
    format: Literal["boxed", "think"] = Field(
        "boxed", description="form of the answer: boxed = \\boxed{}, think = DeepSeek-R1's tags"
    )
    examples: Examples = Field(
        0, description="worked examples before each prompt: this many train problems with solutions, or a data file"
    )
    arguments: Arguments = Field({}, description="further settings of this task; `grouprl tasks NAME` lists them")

    @model_validator(mode="before")
    @classmethod
    def _name_of_a_file(cls, values: Any) -> Any:
        """A data file or folder in place of a name is for the task `jsonl`, in place of the path that a recipe has."""
        if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
            return values
        name = values["name"]
        is_folder = "/" in name and Path(name).expanduser().is_dir()
        if name.startswith("hub:") or is_folder or data_kind(name) in DATA_KINDS:
            return {**values, "name": "jsonl", "path": name}
        return values


class RewardConfig(Section):
    """One reward function and its weight in the total."""

    name: Text = Field(description="name of the reward in the record")
    function: Text | None = Field(
        None, description="a built-in function, or one in the file `path`; null = the function called `name`"
    )
    weight: float = Field(1.0, description="factor in the sum of the rewards; may be negative")
    path: Place | None = Field(None, description="a Python file, or the folder of a trained reward model")
    arguments: Arguments = Field({}, description="arguments of the function")
    scope: Literal["group", "batch"] = Field(
        "group", description="completions in one call: one group, or the whole step"
    )


class ScoringConfig(Section):
    """Limits of reward functions, which run in worker processes, by default with one call per group."""

    workers: int = Field(0, ge=0, le=256, description="worker processes; 0 = one for each core")
    seconds: float = Field(10.0, gt=0.0, le=86_400.0, description="longest time of one call, in seconds")
    cpu_seconds: int = Field(
        20, ge=1, le=86_400, description="largest CPU time of one call in seconds, over all threads"
    )
    memory_mib: int = Field(2048, ge=64, le=2**20, description="most memory of a worker in MiB, imports excluded")
    max_invalid: float = Field(0.1, ge=0.0, le=1.0, description="share of invalid completions that stops the run")


class CurriculumConfig(Section):
    """The choice of a step's problems from the train split."""

    order: Literal["uniform", "edge"] = Field(
        "uniform", description="edge = prefer problems that the policy solves sometimes"
    )
    chosen: Place | None = Field(
        None, description="file of `grouprl check-data --write`: its problems alone are trained on; null = all"
    )
    floor: float = Field(0.2, gt=0.0, le=1.0, description="with edge: share of the problems in a fixed order")
    sharpness: float = Field(2.0, ge=0.0, le=16.0, description="with edge: strength of the preference; 0 = none")
    half_life: float = Field(
        1.0, gt=0.0, le=1e9, description="with edge: visits after which an earlier result counts half"
    )


Address = Annotated[str, Field(pattern=r"^https?://[^/?#@:\s]+(:[0-9]{1,5})?/?$")]


class EngineConfig(Section):
    """What samples the completions: GroupRL's own engine on the learner's weights, or a vLLM server (docs/scale.md)."""

    name: Literal["native", "vllm"] = Field("native", description="native shares the learner's weights in memory")
    address: Address | None = Field(
        None, description="with vllm: its address, such as http://127.0.0.1:8000, for all ranks"
    )
    addresses: tuple[Address, ...] = Field(
        (), strict=False, description="with vllm: one server for each rank in turn, instead of address"
    )
    token_env: Text | None = Field(None, description="with vllm: name of the environment variable that holds its token")
    seconds: float = Field(
        600.0, gt=0.0, le=86_400.0, description="with vllm: longest time of one call in seconds, retries included"
    )

    @model_validator(mode="after")
    def _fits_its_name(self) -> Self:
        for field in ("address", "addresses", "token_env"):
            if self.name == "native" and getattr(self, field):
                raise UserError(f"rollout.engine.{field}: expected name=vllm with it, got native: set it, or remove it")
        if self.token_env is not None and not re.fullmatch("[A-Z][A-Z0-9_]*", self.token_env):
            raise UserError(
                "rollout.engine.token_env: expected the NAME of an environment variable in capitals, such as "
                "VLLM_API_KEY, got something else (not shown, it may be the token): export the token and name it"
            )
        return self


class RolloutConfig(Section):
    """The groups of a step: their problems, the sampling parameters, and the limits of scoring."""

    problems_per_step: int = Field(16, ge=1, le=10**6, description="groups in a step")
    group_size: int = Field(8, ge=1, le=10**5, description="completions of one problem")
    max_rows: int = Field(256, ge=1, le=10**6, description="completions decoded at once")
    max_tokens: int = Field(128, ge=1, le=10**7, description="longest completion, in tokens")
    temperature: float = Field(
        1.0, gt=0.0, le=1e6, description="sampling temperature, above 0: greedy completions of a group would be equal"
    )
    top_p: float = Field(
        1.0, gt=0.0, le=1.0, description="sample from the smallest set of tokens with this probability; 1 = off"
    )
    top_k: int = Field(0, ge=0, le=10**9, description="sample from this many most probable tokens; 0 = off")
    min_p: Fraction = Field(0.0, description="least probability of a token, relative to the largest; 0 = off")
    repetition_penalty: float = Field(
        1.0,
        gt=0.0,
        le=1e3,
        description="divides the positive logits of earlier tokens and multiplies their negative ones; 1 = off",
    )
    stop: tuple[Text, ...] = Field((), strict=False, description="texts that end a completion")
    regex: Text | None = Field(
        None, description="regular expression that completions match; null = any text; the native engine alone"
    )
    curriculum: CurriculumConfig = CurriculumConfig()
    scoring: ScoringConfig = ScoringConfig()
    engine: EngineConfig = EngineConfig()

    @model_validator(mode="after")
    def _regex_fits_the_engine(self) -> Self:
        if self.regex is not None and self.engine.name == "vllm":
            raise UserError(
                "rollout.regex: expected rollout.engine.name=native with it, got vllm: set it, or remove it"
            )
        return self

    @property
    def sampling(self) -> Sampling:
        """The sampling parameters of training."""
        return Sampling(
            self.max_tokens,
            self.temperature,
            self.top_p,
            self.top_k,
            self.min_p,
            self.stop,
            self.repetition_penalty,
            sampled_in_process=self.engine.name == "native",
        )


class EvaluationConfig(Section):
    """The evaluations of the policy on held-out problems."""

    every: int = Field(0, ge=0, le=10**9, description="steps between evaluations; 0 = only before and after")
    problems: int = Field(500, ge=0, le=10**8, description="held-out problems in an evaluation; 0 = no evaluations")
    judge: bool = Field(
        False, description="whether judge models score held-out completions too; each is a request that may cost money"
    )
    samples: int = Field(
        8,
        ge=0,
        le=10**5,
        description="sampled completions of each problem for mean rewards and pass@k; 0 = the greedy one only",
    )
    split: Literal["train", "validation", "test"] = Field("test", description="split of the task that is evaluated")


# Options that every algorithm has.
_REQUIRED = {"credit", "baseline", "surrogate", "ratio", "aggregate", "passes", "minibatches"}


def _algorithm(value: object, info: ValidationInfo) -> Algorithm:
    """Builds an algorithm from its name and changed options; `context` may contain further names."""
    if isinstance(value, Algorithm):
        return value
    settings = {"name": value} if isinstance(value, str) else value
    if not isinstance(settings, Mapping):
        raise UserError(f"algorithm: expected a name or a section with keys of its own, got {settings!r:.60}")
    algorithms = {**NAMED, **(info.context or {})}
    name = settings.get("name", "grpo")
    if is_in_file(name):
        name = os.path.expanduser(name)
        if info.context is None:  # a program names it, and no record
            load_algorithm(name)
        return from_file(name, settings)
    # An algorithm that a program defined, read back from a run directory, where all options are written.
    has_all_options = isinstance(name, str) and flat(settings).keys() >= _REQUIRED
    if name not in algorithms and not has_all_options:
        raise unknown_name("algorithm" if info.context is None else "algorithm.name", str(name)[:60], algorithms)
    algorithm = with_options(algorithms.get(name, NAMED["grpo"]), settings)
    classes = settings.get(OWN)
    if classes is None or classes == own_parts(algorithm):
        return algorithm
    if not isinstance(classes, Mapping) or not all(isinstance(text, str) for pair in classes.items() for text in pair):
        raise UserError(f"algorithm.{OWN}: expected the classes of parts as a run recorded them, got {classes!r:.60}")
    return replace(algorithm, missing=tuple(classes.items()))


AlgorithmSection = Annotated[Algorithm, PlainValidator(_algorithm), PlainSerializer(as_tree)]


class CheckpointConfig(Section):
    """When the run is saved."""

    every: int = Field(50, ge=0, le=10**9, description="steps between checkpoints; 0 = only at the end")
    keep: int = Field(2, ge=1, le=10**6, description="number of newest checkpoints to keep")


class DistributedConfig(Section):
    """The ranks of the learner: the processes that torchrun starts. A single process ignores `seconds`."""

    exact: bool = Field(False, description="bit-identical results on 1, 2, 4 and 8 ranks, at the cost of memory")
    shard: bool = Field(False, description="each rank keeps a part of weights, gradients and optimizer (FSDP2)")
    seconds: float = Field(1500.0, gt=0.0, le=86_400.0, description="longest wait of a rank for the others, in seconds")


class ClusterConfig(Section):
    """Where groups are sampled and scored: in this process, or by the actors of a Ray cluster (docs/scale.md)."""

    backend: Literal["none", "ray"] = Field("none", description="ray = samplers and scorers are Ray actors")
    address: Text | None = Field(None, description="HOST:PORT of an existing cluster; null = start one here")
    samplers: int = Field(1, ge=1, le=4096, description="actors that sample groups")
    scorers: int = Field(0, ge=0, le=4096, description="actors that call rewards; 0 = the run's own workers do")
    cpus: int = Field(1, ge=1, le=1024, description="CPU cores of an actor")
    gpus: float = Field(0.0, ge=0.0, le=64.0, description="GPUs of a sampler")
    seconds: float = Field(
        600.0, gt=0.0, le=86_400.0, description="seconds after which an actor that does not answer is replaced"
    )
    max_staleness: int = Field(
        0, ge=0, le=64, description="steps that samplers are ahead of the learner; 0 = on-policy"
    )

    @model_validator(mode="after")
    def _fits_its_backend(self) -> Self:
        usual = type(self).model_fields
        changed = [name for name in sorted(self.model_fields_set) if getattr(self, name) != usual[name].default]
        if self.backend == "none" and changed:
            raise UserError(f"cluster.{changed[0]}: expected backend=ray with it, got none: set it, or remove this")
        return self


class RunConfig(Section):
    """A reinforcement-learning run: what it computes, and where. No rewards means the task's own."""

    name: Name = Field("run", description="folder of the run: letters, digits, '.', '_' and '-'")
    runs_dir: Place = Field("runs", description="folder of all runs")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of the sampling and of the order of problems")
    steps: int = Field(100, ge=1, le=10**9, description="steps of training, each with one batch of completions")
    model: PolicyConfig = PolicyConfig()
    task: TaskConfig = TaskConfig()
    rewards: tuple[RewardConfig, ...] = Field(
        (), strict=False, max_length=100, description="one entry for each reward function"
    )
    algorithm: AlgorithmSection = Algorithm()
    rollout: RolloutConfig = RolloutConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    learner: LearnerConfig = LearnerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    epochs: float | None = Field(
        None, gt=0.0, le=1e6, description="passes over the train problems, instead of steps; null = use steps"
    )
    distributed: DistributedConfig = DistributedConfig()
    cluster: ClusterConfig = ClusterConfig()
    trackers: TrackersConfig = TrackersConfig()

    @model_validator(mode="before")
    @classmethod
    def _ends_before_the_next_question(cls, values: Any) -> Any:
        parts: list[Any] = (
            [values.get(name, {}) for name in ("model", "rollout")] if isinstance(values, Mapping) else [None]
        )
        if not all(isinstance(part, Mapping | Section) for part in parts):
            return values  # which is refused elsewhere
        model, rollout = dict(parts[0]), dict(parts[1])
        if model.get("chat_template") != QUESTION or rollout.get("stop"):
            return values
        return {**values, "rollout": {**rollout, "stop": (_NEXT_QUESTION,)}}

    @model_validator(mode="after")
    def _environment_owns_the_data(self) -> Self:
        if self.environment.owns_data and "name" not in self.task.model_fields_set:  # as in TRL
            object.__setattr__(self, "task", self.task.model_copy(update={"name": OWNED}))
        if self.task.name == OWNED and self.epochs is not None:
            raise UserError(
                f"epochs: expected steps where the environment owns the data, got {self.epochs:g}: set steps"
            )
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.epochs is not None:
            self.refuse_beside("epochs", "steps")
        names = [reward.name for reward in self.rewards]
        if len(set(names)) < len(names):
            raise UserError(
                f"rewards: expected every name once, got {', '.join(names)}; merge or rename the repeated ones"
            )
        return self
