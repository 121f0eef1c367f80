"""What learning from pairs is: fine-tuning on completions to imitate, on preferences, and reward models."""

from __future__ import annotations

from pydantic import Field

from grouprl.config import LearnerConfig, ModelConfig, Name, Section, TaskConfig, Text


class SftLearnerConfig(LearnerConfig):
    """The learner's settings with a rate for supervised learning."""

    learning_rate: float = Field(3e-3, ge=0.0, description="after the warm-up; constant")


class NewModelConfig(Section):
    """A new Llama model with random weights and a tokenizer of its own, learned from the pairs."""

    hidden_size: int = Field(128, ge=8, description="width; a multiple of twice the heads")
    intermediate_size: int = Field(384, ge=8, description="width of the MLP")
    layers: int = Field(5, ge=1, description="decoder layers")
    heads: int = Field(4, ge=1, description="attention heads")
    vocabulary: int = Field(1024, ge=300, description="largest size of the tokenizer")
    context: int = Field(512, ge=16, description="longest sequence, prompt and completion")


class PairsConfig(Section):
    """Where the prompt/completion pairs come from: a file, or the task's worked solutions and guesses."""

    path: Text | None = Field(None, description="file of pairs; without one the task makes them")
    count: int = Field(100_000, ge=1, description="pairs the task makes")
    worked_share: float = Field(0.3, ge=0.0, le=1.0, description="share of worked solutions among them")


class SftConfig(Section):
    """Supervised fine-tuning on prompt/completion pairs: the cold start before reinforcement learning."""

    name: Name = Field("sft", description="folder of the run: letters, digits, '.', '_' and '-'")
    runs_dir: Text = Field("runs", description="where the folders of runs are")
    seed: int = Field(0, ge=0, lt=2**63, description="of the initial weights and of the order of pairs")
    threads: int = Field(0, ge=0, description="CPU threads; 0 = all cores")
    model: ModelConfig = ModelConfig()
    new_model: NewModelConfig | None = Field(None, description="start from random weights instead of model.path")
    task: TaskConfig = TaskConfig()
    pairs: PairsConfig = PairsConfig()
    epochs: int = Field(1, ge=1, description="times every pair is seen")
    batch_pairs: int = Field(64, ge=1, description="pairs in one update")
    learner: SftLearnerConfig = SftLearnerConfig()
    out: Text | None = Field(None, description="folder of the finished model; without one it is in the run's")
