"""The configuration of a comparison: variants of one run, and seeds. It is a YAML file, or command-line arguments.

name: clipping
base: [demo]
seeds: [0, 1, 2]
variants:
  narrow: [algorithm.clip_high=0.2]
  wide: [algorithm.clip_high=0.28]
stages:
  cold start: [{sft: [abacus_sft, pairs.count=640]}, {train: [model=stage:1]}]
claims:
  clip_higher: {claim: Clipping higher keeps entropy up., source: DAPO, measure: entropy, expect: [wide > narrow]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import Field, model_validator

from grouprl.config.command_line import RECIPES, is_change, refuse_options, settings_file
from grouprl.config.files import load_config
from grouprl.config.run import RunConfig
from grouprl.config.section import Name, Place, Section, Text
from grouprl.config.yaml_text import read_yaml
from grouprl.files import MOST_YAML, read_needed
from grouprl.types import UserError, unknown_name

Label = Annotated[Text, Field(pattern=r"[A-Za-z0-9]")]
Change = Annotated[Text, Field(pattern=r"^[A-Za-z0-9_.]+=")]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


# One command with its files, recipes and changes.
Stage = Annotated[
    dict[Literal["train", "sft", "dpo", "reward-model"], Annotated[tuple[Text, ...], Field(strict=False)]],
    Field(min_length=1, max_length=1),
]
STAGE = re.compile(r"\bstage:([0-9]+)\b")
"""The folder of an earlier stage of a variant, by its number from 1."""
Expectation = Annotated[Text, Field(pattern=r"^.+ (>=|>|=) .+$")]


class Claim(Section):
    """What a text claims, as differences between variants; or the exact test that answers it; or neither yet."""

    claim: Text = Field(description="the claim in a sentence")
    source: Text = Field(description="the text that makes it")
    measure: Text = Field(
        "accuracy",
        description="accuracy = held-out, at the end; speed = its mean over the training; wrong_length; or a metric, "
        "of the last tenth of the steps",
    )
    at: Literal["tokens", "seconds", "steps"] = Field(
        "tokens", description="what both sides have spent equally when they are compared"
    )
    grows: bool = Field(False, description="the measure less its value in the first tenth of the steps")
    margin: float = Field(0.0, ge=0.0, description="largest difference that does not matter, in the measure's unit")
    expect: tuple[Expectation, ...] = Field(
        (), strict=False, description="such as `A > B`, `A = B` or `A >= B` of two variants, or `A > 0`"
    )
    exact: Text | None = Field(None, description="the command that answers it without a run")
    found: Text | None = Field(None, description="with exact: what it shows")
    holds: bool | None = Field(None, description="with exact: whether the claim holds")

    @property
    def pairs(self) -> tuple[tuple[str, str, str], ...]:
        """Left side, relation and right side of each expectation."""
        matches = (re.fullmatch(r"(.+) (>=|>|=) (.+)", text) for text in self.expect)
        return tuple((match[1], match[2], match[3]) for match in matches if match is not None)

    @property
    def variants(self) -> tuple[str, ...]:
        """The variants that the expectations name, each once."""
        return tuple(dict.fromkeys(side for pair in self.pairs for side in pair[::2] if side != "0"))

    @model_validator(mode="after")
    def _has_one_answer(self) -> Self:
        exact = [self.exact is not None, self.found is not None, self.holds is not None]
        if any(exact) and (not all(exact) or self.expect):
            raise UserError("expected `exact`, `found` and `holds` together and no `expect` with them: complete it")
        return self


class CompareConfig(Section):
    """Several variants of one run. All use the same seeds, hence the same problems in the same order."""

    name: Name = Field("comparison", description="folder of the comparison: letters, digits, '.', '_' and '-'")
    runs_dir: Place = Field("runs", description="parent of the comparison's folder")
    base: tuple[Text, ...] = Field((), strict=False, description="recipes and files that every run starts from")
    settings: tuple[Change, ...] = Field((), strict=False, description="changes of every run, such as steps=30")
    seeds: tuple[Seed, ...] = Field((0, 1, 2), strict=False, min_length=1, description="one run of each variant")
    variants: dict[Label, Annotated[tuple[Change, ...], Field(strict=False)]] = Field(
        {}, description="name: list of changes such as algorithm=rloo; at least two to compare, with `stages`"
    )
    stages: dict[Label, Annotated[tuple[Stage, ...], Field(strict=False)]] = Field(
        {},
        description="name of a variant: its commands in order, the last of them train; stage:1 is the folder of the "
        "first; base and settings begin those of train",
    )
    baseline: Text | None = Field(None, description="the variant that the others are compared with; null = the first")
    jobs: int = Field(
        1, ge=1, le=1024, description="runs at once; model.threads=N says how many CPU threads each takes"
    )

    claims: dict[Name, Claim] = Field({}, description="claims that the differences between the variants answer")
    only: tuple[Text, ...] = Field(
        (), strict=False, description="names of the claims to answer, with the variants that they need; empty = all"
    )
    quick: tuple[Change, ...] = Field((), strict=False, description="changes of `--quick`, such as steps=4")

    @model_validator(mode="after")
    def _stages_fit(self) -> Self:
        if twice := sorted(set(self.variants) & set(self.stages)):
            raise UserError(f"stages: expected other names than in `variants`, got {twice[0]!r} in both: rename one")
        if len(self.names) < (1 if self.claims else 2):  # a claim may be of one: `A > 0`
            raise UserError(f"variants: expected at least two with those of `stages`, got {len(self.names)}: add one")
        for name, stages in self.stages.items():
            if not stages or "train" not in stages[-1]:
                raise UserError(f"stages.{name}: expected `train` at the end, got none: add it")
            for number, stage in enumerate(stages, 1):
                for match in STAGE.finditer(" ".join(*stage.values())):
                    if not 1 <= int(match[1]) < number:
                        raise UserError(
                            f"stages.{name}: expected an earlier stage in stage {number}, got {match[0]}: the first "
                            "one is stage:1"
                        )
        return self

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        if self.baseline is not None and self.baseline not in self.names:
            names = ", ".join(self.names)
            raise UserError(f"baseline: expected one of the variants {names}, got {self.baseline!r}: name one of them")
        if len(set(self.seeds)) < len(self.seeds):
            raise UserError(f"seeds: expected every seed once, got {list(self.seeds)}: remove the repeated ones")
        for name, claim in self.claims.items():
            for variant in claim.variants:
                if variant not in self.names:
                    raise unknown_name(f"claims.{name}.expect", variant, self.names)
        for name in self.only:
            if name not in self.claims:
                raise unknown_name("only", name, self.claims)
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """All variants, those in stages last."""
        return (*self.variants, *self.stages)

    @property
    def first(self) -> str:
        """The variant that the others are compared with."""
        return self.baseline or self.names[0]

    def chosen(self) -> CompareConfig:
        """The comparison with the claims of `only` and the variants that these and the baseline need."""
        if not self.only:
            return self
        claims = {name: self.claims[name] for name in self.only}
        needed = {self.first, *(variant for claim in claims.values() for variant in claim.variants)}
        values = self.model_dump() | {"claims": claims}
        for key in ("variants", "stages"):
            values[key] = {name: setting for name, setting in values[key].items() if name in needed}
        return CompareConfig.model_validate(values)


def load_comparison(words: Sequence[str], vary: str | None, *, quick: bool = False) -> CompareConfig:
    """Reads a comparison from command-line arguments.

    Args:
        words: comparison files (with the key `variants` or `stages`), or folders of them; files and recipes that every
            run starts from; changes. A change of a `CompareConfig` key applies to the comparison, any other to every
            run: before the changes of a variant, but after those of a stage, which has the numbers of its own recipe.
        vary: "KEY=v1,v2" makes one variant for each value.
        quick: whether the changes of the key `quick` apply, before those of `words`.

    Raises:
        UserError: lists all errors.
    """
    refuse_options(RunConfig, words)
    # A path or the name of a recipe; a folder stands for its YAML files by name.
    names: dict[str, list[Path]] = {}
    for text in words:
        if not is_change(text):
            folders = (Path(text).expanduser(), RECIPES / text)
            listings = [sorted(folder.glob("*.yaml")) for folder in folders]
            names[text] = listings[0] or listings[1] or [settings_file(text)]
    comparisons = {name: files for name, files in names.items() if any(map(_has_variants, files))}
    changes = [text for text in words if is_change(text)]
    variants = []
    if vary is not None:
        if comparisons:
            raise UserError(f"--vary: expected no file with variants of its own, got {min(comparisons)}: remove one")
        variants.append(f"variants={json.dumps(varied(vary))}")
    if vary is None and not comparisons:
        raise UserError(
            "variants: expected at least two, got none: name a comparison file or recipe (one with `variants`), "
            "or add --vary KEY=VALUE,VALUE such as --vary algorithm=grpo,rloo"
        )
    files = [file for of_variant in comparisons.values() for file in of_variant]
    config = load_config(CompareConfig, files, [*filter(_is_own, changes), *variants])
    if quick and not config.quick:
        raise UserError("--quick: expected a comparison with the key `quick`, got one without: remove --quick")
    if quick:
        changes = [*config.quick, *changes]
        config = load_config(CompareConfig, files, [*filter(_is_own, changes), *variants])
    base = (*config.base, *(name for name in names if name not in comparisons))
    of_runs = tuple(text for text in changes if not _is_own(text))
    stages = {
        name: tuple(stage | ({"train": (*stage["train"], *of_runs)} if "train" in stage else {}) for stage in recipe)
        for name, recipe in config.stages.items()
    }
    changed = {"base": base, "settings": (*config.settings, *of_runs), "stages": stages}
    return CompareConfig.model_validate({**config.model_dump(), **changed}).chosen()


def _is_own(change: str) -> bool:
    return change.partition("=")[0].split(".")[0] in CompareConfig.model_fields


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
    variants = {}
    for value in values:
        name = value if isinstance(value, str) else f"{short}={json.dumps(value)}"
        written = value if isinstance(value, str) and read_yaml(value) == value else json.dumps(value)
        variants[name] = [f"{key}={written}"]
    return variants


def _has_variants(path: Path) -> bool:
    try:
        tree = read_yaml(read_needed(path, "expected a YAML file", most=MOST_YAML))
    except (UserError, yaml.YAMLError):
        return False  # reading it as a run's file reports the error
    return isinstance(tree, dict) and not tree.keys().isdisjoint(("variants", "stages"))
