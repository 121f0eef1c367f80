"""Reads the settings that made a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from grouprl.algorithms.named import NAMED
from grouprl.algorithms.spec import Algorithm
from grouprl.config.algorithm import from_file, with_options
from grouprl.config.own_algorithm import is_in_file
from grouprl.config.yaml_text import read_yaml
from grouprl.files import read_file, refuse_depth
from grouprl.leaves import find_leaf
from grouprl.record.layout import RunDirectory
from grouprl.types import UserError


def read_config(folder: Path) -> dict[str, Any]:
    """The run's config.yaml.

    Raises:
        UserError: it is missing, no mapping in YAML, or `steps` is no number.
    """
    path = RunDirectory(folder).config
    text = read_file(path)
    if text is None:
        raise UserError(f"{path}: expected the settings of the run, found no such file: restore it")
    try:
        values = read_yaml(text.decode("utf-8", "replace"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: expected YAML ({type(error).__name__}: {error}): restore the file") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected settings, got {str(values)[:60]!r}: restore the file")
    refuse_depth(values, path)
    steps = values.get("steps")
    if steps is not None and type(steps) is not int:
        raise UserError(f"{path}: steps: expected a whole number, got {steps!r:.60}: restore the file")
    return values


def run_algorithm(config: Mapping[str, Any]) -> Algorithm:
    """The algorithm in a run's config.yaml; GRPO where it says nothing.

    Raises:
        UserError: it says something else.
    """
    section = config.get("algorithm", {})
    try:
        if is_in_file(name := section.get("name", "grpo")):
            trust = find_leaf("received.trust")
            if trust is not None:
                trust.load_known_algorithm(name)
            return from_file(name, section)
        return with_options(NAMED.get(name, NAMED["grpo"]), section)
    except (AttributeError, TypeError, UserError) as error:
        raise UserError(
            f"config.yaml: expected the options of an algorithm under `algorithm`, got {str(section)[:60]!r} "
            f"({error}): restore the file"
        ) from None
