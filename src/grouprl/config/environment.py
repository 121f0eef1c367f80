"""The configuration of tools and environments, with which a completion has many turns."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from grouprl.config.section import Names, Place, Section, Text
from grouprl.types import UserError

_USUAL_TOKENS = 1024
OnFault = Literal["tell", "end", "invalid"]


class EnvironmentConfig(Section):
    """What the policy may call or talk with, and the limits of an episode (docs/tasks.md)."""

    tools: Names = Field((), strict=False, description="functions that the policy may call, each as FILE.py:NAME")
    factory: Place | None = Field(
        None, description="FILE.py:CLASS of an environment, whose methods are tools (TRL's environment_factory)"
    )
    game: Place | None = Field(
        None, description="FILE.py:CLASS of a text game with reset and step, which answers what the policy writes"
    )
    agent: Place | None = Field(
        None, description="FILE.py:FUNCTION that runs an agent with its own loop, which asks the policy over HTTP"
    )
    url: Text | None = Field(None, description="address of an OpenEnv 0.10 server, such as http://localhost:8000")
    max_tokens: int | None = Field(
        None,
        ge=1,
        le=10**7,
        description="longest episode after its prompt, in tokens, those of tools included; its last turn has what is "
        "left; null = 1,024, or what the prompt leaves of the model's context",
    )
    turns: int = Field(8, ge=1, le=10_000, description="most turns that the policy writes in an episode")
    calls: int = Field(16, ge=1, le=10_000, description="most tool calls of an episode")
    tool_seconds: float = Field(10.0, gt=0.0, le=86_400.0, description="longest time of a tool call, in seconds")
    episode_seconds: float = Field(600.0, gt=0.0, le=86_400.0, description="longest time of an episode, in seconds")
    result_characters: int = Field(
        2000, ge=1, le=10**7, description="longest result of a tool; the rest is cut, with a visible mark"
    )
    memory_mib: int = Field(1024, ge=64, le=2**20, description="most memory of a tool's process, imports excluded")
    mistakes: OnFault = Field(
        "tell",
        description="a call that cannot be read, or that a tool refuses or fails on: tell = the policy reads the "
        "error, end = the episode ends, invalid = its completion does not count",
    )
    failures: OnFault = Field("tell", description="the same for a tool that hangs or whose process dies")

    @property
    def given(self) -> bool:
        """Whether the configuration names tools or an environment; else a task may have its own."""
        return bool(self.tools) or self.owns_data

    @property
    def owns_data(self) -> bool:
        """Whether it names an environment, which gives the prompts of a run without a task."""
        return bool(self.factory or self.game or self.agent or self.url)

    def longest(self, turn: int) -> int:
        """Most tokens of an episode whose turns have at most `turn`, where the model's context leaves them."""
        return max(turn, _USUAL_TOKENS) if self.max_tokens is None else self.max_tokens

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [name for name in ("game", "agent", "url", "tools", "factory") if getattr(self, name)]
        if kinds[1:] and kinds[0] in ("game", "agent", "url"):
            raise UserError(f"environment.{kinds[0]}: expected it alone, got environment.{kinds[1]}, too: remove one")
        return self
