"""The configuration of supervised training: fine-tuning on completions, DPO, reward models."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from grouprl.config.learner import UpdateConfig
from grouprl.config.run import ModelConfig, TaskConfig
from grouprl.config.section import Fraction, Name, Names, Place, Section
from grouprl.types import UserError


class PairsLearnerConfig(UpdateConfig):
    """The learner of supervised training."""

    schedule: Literal["constant", "linear", "cosine"] = Field(
        "cosine", description="course of the learning rate after the warm-up, up to the last update"
    )


class SftLearnerConfig(PairsLearnerConfig):
    """The learner of supervised fine-tuning."""

    learning_rate: float = Field(3e-3, ge=0.0, description="learning rate after the warm-up")


class RewardModelLearnerConfig(PairsLearnerConfig):
    """The learner of a reward model, whose head has new weights."""

    learning_rate: float = Field(1e-5, ge=0.0, description="learning rate after the warm-up")


class NewModelConfig(Section):
    """A new Llama model with random weights, and a tokenizer trained on the pairs."""

    hidden_size: int = Field(128, ge=8, le=2**16, description="width; a multiple of twice the heads")
    intermediate_size: int = Field(384, ge=8, le=2**18, description="width of the MLP")
    layers: int = Field(5, ge=1, le=1024, description="decoder layers")
    heads: int = Field(4, ge=1, le=1024, description="attention heads")
    vocabulary: int = Field(1024, ge=300, le=2**20, description="largest size of the tokenizer")
    context: int = Field(512, ge=16, le=2**20, description="longest sequence, prompt and completion")


class RecordedConfig(Section):
    """The steps of a recorded run whose completions are training data."""

    _section: ClassVar[str]
    first_step: int = Field(0, ge=0, le=10**9, description="first step of the run to use; 0 = its first")
    last_step: int = Field(0, ge=0, le=10**9, description="last step of the run to use; 0 = its last")

    @model_validator(mode="after")
    def _steps_in_order(self) -> Self:
        if 0 < self.last_step < self.first_step:
            raise UserError(
                f"{self._section}last_step: expected {self._section}first_step={self.first_step} or more, got "
                f"{self.last_step}: give a larger one, or 0 for the run's last"
            )
        return self


class PairsConfig(RecordedConfig):
    """The source of the pairs: a file, a run's right completions, or the task's worked solutions and guesses."""

    _section = "pairs."
    path: Place | None = Field(None, description="file of pairs; null = the run or the task gives them")
    run: Place | None = Field(None, description="run directory, such as runs/demo: its right completions")
    count: int = Field(100_000, ge=1, le=10**8, description="most pairs the task makes, or has solutions of")
    worked_share: float = Field(0.3, ge=0.0, le=1.0, description="share of worked solutions among those it makes")

    @model_validator(mode="after")
    def _file_or_task(self) -> Self:
        of_task = ("count", "worked_share")
        if self.path is not None:
            self.refuse_beside("pairs.path", "run", "first_step", "last_step", *of_task, section="pairs.")
        if self.run is not None:
            self.refuse_beside("pairs.run", *of_task, section="pairs.")
        return self


class PreferencesConfig(RecordedConfig):
    """The source of the preference pairs: the groups of a recorded run, or a file."""

    _section = "preferences."
    run: Place | None = Field(None, description="run directory, such as runs/demo")
    path: Place | None = Field(None, description="file with the columns prompt, chosen and rejected")
    per_group: int = Field(
        1, ge=1, le=10**5, description="pairs of a group: best and worst, second best and second worst, ..."
    )
    rank: Literal["reward", "correct"] = Field(
        "reward", description="what ranks a group: its rewards, or the verifier where a learned reward trained the run"
    )
    older: Names = Field((), strict=False, description="earlier runs, some of whose pairs are learned again")
    older_share: Fraction = Field(0.1, description="share of their pairs among all, if they have as many")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.run is None) == (self.path is None):
            got = "neither" if self.run is None else "both"
            raise UserError(
                f"preferences.run: expected either preferences.run or preferences.path, got {got}: "
                "give preferences.run=runs/NAME or preferences.path=FILE.jsonl, and null for the other"
            )
        if self.path is not None:
            of_a_run = ("per_group", "first_step", "last_step", "rank", "older", "older_share")
            self.refuse_beside("preferences.path", *of_a_run, section="preferences.")
        return self


class SupervisedConfig(Section):
    """The settings that all supervised training shares."""

    name: Name = Field("pairs", description="folder of the run: letters, digits, '.', '_' and '-'")
    runs_dir: Place = Field("runs", description="parent of the runs' folders")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of new weights and of the order of pairs")
    model: ModelConfig = ModelConfig()
    epochs: int = Field(1, ge=1, le=10**6, description="passes over the pairs")
    batch_pairs: int = Field(64, ge=1, le=10**6, description="pairs in one update")
    learner: PairsLearnerConfig = PairsLearnerConfig()
    out: Place | None = Field(None, description="folder of the trained model; null = a folder inside the run's")


class SftConfig(SupervisedConfig):
    """Supervised fine-tuning on prompt/completion pairs: the cold start before reinforcement learning."""

    name: Name = Field("sft", description="folder of the run: letters, digits, '.', '_' and '-'")
    learner: SftLearnerConfig = SftLearnerConfig()
    new_model: NewModelConfig | None = Field(None, description="start from random weights instead of model.path")
    task: TaskConfig = TaskConfig()
    pairs: PairsConfig = PairsConfig()

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        if self.new_model is not None:
            self.model.refuse_beside("new_model", "path", section="model.")
            self.pairs.refuse_beside("new_model, whose tokenizer comes from texts", "run", section="pairs.")
        return self


class PreferenceLearningConfig(SupervisedConfig):
    """The settings that DPO and reward models share."""

    preferences: PreferencesConfig = Field(
        description="the pairs: preferences.run=runs/NAME or preferences.path=FILE.jsonl"
    )
    eval_share: float = Field(0.1, gt=0.0, lt=1.0, description="share of the prompts that is held out for evaluation")


class DpoConfig(PreferenceLearningConfig):
    """Direct preference optimization: a policy learns from pairs, without sampling and without a reward model."""

    name: Name = Field("dpo", description="folder of the run: letters, digits, '.', '_' and '-'")
    beta: float = Field(0.1, gt=0.0, description="a larger beta keeps the policy closer to its start model")


class RewardModelConfig(PreferenceLearningConfig):
    """A reward model: the policy's decoder with a score that is higher for chosen than for rejected completions."""

    name: Name = Field("reward-model", description="folder of the run: letters, digits, '.', '_' and '-'")
    learner: RewardModelLearnerConfig = RewardModelLearnerConfig()
