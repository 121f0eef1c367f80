"""The configuration of a comparison: variants of one run, and seeds. It is a YAML file, or command-line arguments.

name: clipping
base: [demo]
seeds: [0, 1, 2]
variants:
  narrow: [algorithm.clip_high=0.2]
  wide: [algorithm.clip_high=0.28]
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import Field, model_validator

from grouprl.config.command_line import refuse_options, settings_file
from grouprl.config.files import load_config
from grouprl.config.run import RunConfig
from grouprl.config.section import Name, Place, Section, Text
from grouprl.config.yaml_text import read_yaml
from grouprl.files import MOST_YAML, read_needed
from grouprl.types import UserError

Label = Annotated[Text, Field(pattern=r"[A-Za-z0-9]")]
Change = Annotated[Text, Field(pattern=r"^[A-Za-z0-9_.]+=")]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class CompareConfig(Section):
    """Several variants of one run. All use the same seeds, hence the same problems in the same order."""

    name: Name = Field("comparison", description="folder of the comparison: letters, digits, '.', '_' and '-'")
    runs_dir: Place = Field("runs", description="parent of the comparison's folder")
    base: tuple[Text, ...] = Field((), strict=False, description="recipes and files that every run starts from")
    settings: tuple[Change, ...] = Field((), strict=False, description="changes of every run, such as steps=30")
    seeds: tuple[Seed, ...] = Field((0, 1, 2), strict=False, min_length=1, description="one run of each variant")
    variants: dict[Label, Annotated[tuple[Change, ...], Field(strict=False)]] = Field(
        min_length=2, description="name: list of changes such as algorithm=rloo; at least two to compare"
    )
    baseline: Text | None = Field(None, description="the variant that the others are compared with; null = the first")
    jobs: int = Field(
        1, ge=1, le=1024, description="runs at once; model.threads=N says how many CPU threads each takes"
    )

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        if self.baseline is not None and self.baseline not in self.variants:
            known = ", ".join(self.variants)
            raise UserError(f"baseline: expected one of the variants {known}, got {self.baseline!r}: name one of them")
        if len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"seeds: expected every seed once, got {list(self.seeds)}: remove the repeated ones")
        return self

    @property
    def first(self) -> str:
        """The variant that the others are compared with."""
        return self.baseline or next(iter(self.variants))


def load_comparison(given: Sequence[str], vary: str | None) -> CompareConfig:
    """Reads a comparison from command-line arguments.

    Args:
        given: comparison files (with the key `variants`); files and recipes that every run starts from; changes.
            A change of a `CompareConfig` key applies to the comparison, any other change to every run.
        vary: "KEY=v1,v2" makes one variant for each value.

    Raises:
        UserError: lists all errors.
    """
    refuse_options(RunConfig, given)
    names = [text for text in given if "=" not in text]
    comparisons = [name for name in names if _has_variants(settings_file(name))]
    changes = [text for text in given if "=" in text]
    own = [text for text in changes if text.partition("=")[0].split(".")[0] in CompareConfig.model_fields]
    if vary is not None:
        if comparisons:
            raise UserError(f"--vary: expected no file with variants of its own, got {comparisons[0]}: remove one")
        own.append(f"variants={json.dumps(varied(vary))}")
    if vary is None and not comparisons:
        raise UserError(
            "variants: expected at least two, got none: name a comparison file or recipe (one with `variants`), "
            "or add --vary KEY=VALUE,VALUE such as --vary algorithm=grpo,rloo"
        )
    config = load_config(CompareConfig, [settings_file(name) for name in comparisons], own)
    base = (*config.base, *(name for name in names if name not in comparisons))
    settings = (*config.settings, *(text for text in changes if text not in own))
    return CompareConfig.model_validate({**config.model_dump(), "base": base, "settings": settings})


def varied(text: str) -> dict[str, list[str]]:
    """Parses `KEY=v1,v2` into one variant per value, named after the value; a number's name includes the key.

    Raises:
        UserError: the text does not have that form.

    >>> varied("rollout.group_size=2,4")
    {'group_size=2': ['rollout.group_size=2'], 'group_size=4': ['rollout.group_size=4']}
    >>> varied("algorithm=grpo,rloo")
    {'grpo': ['algorithm=grpo'], 'rloo': ['algorithm=rloo']}
    """
    key, equals, listed = text.partition("=")
    try:
        values = read_yaml(f"[{listed}]") if equals and key else []
    except yaml.YAMLError:
        values = []
    if len(values) < 2:
        raise UserError(f"--vary: expected KEY=VALUE,VALUE such as rollout.group_size=4,8, got {text!r}: fix it")
    short = key.rpartition(".")[2]
    names = [value if isinstance(value, str) else f"{short}={json.dumps(value)}" for value in values]
    return {name: [f"{key}={_written(value)}"] for name, value in zip(names, values, strict=True)}


def _written(value: object) -> str:
    plain = isinstance(value, str) and read_yaml(value) == value
    return str(value) if plain else json.dumps(value)


def _has_variants(path: Path) -> bool:
    try:
        tree = read_yaml(read_needed(path, "expected a YAML file", most=MOST_YAML))
    except (UserError, yaml.YAMLError):
        return False  # reading it as a run's file reports the error
    return isinstance(tree, dict) and "variants" in tree
