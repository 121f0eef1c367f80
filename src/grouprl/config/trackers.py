"""The section of the trackers, which a list of names can stand for: `trackers: [wandb]`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from grouprl.config.section import Section, Text

TrackerName = Literal["tensorboard", "wandb", "trackio", "mlflow"]


class TrackersConfig(Section):
    """What shows the run elsewhere (docs/run_directory.md). `trackers: [wandb]` is short for its names."""

    names: Annotated[
        tuple[TrackerName, ...], BeforeValidator(lambda names: (names,) if isinstance(names, str) else names)
    ] = Field((), strict=False, description="trackers that follow the run; each is an extra of its name")
    project: Text = Field("grouprl", description="project, or experiment, in which they show the run")
    completions_every: int = Field(10, ge=0, le=10**9, description="steps between tables of completions; 0 = none")

    @model_validator(mode="before")
    @classmethod
    def _names_alone(cls, value: Any) -> Any:
        return {"names": value} if isinstance(value, str | list | tuple) else value
