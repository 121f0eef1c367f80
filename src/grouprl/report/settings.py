"""Reads the settings of a run as plain values: another version's run may have some that this one does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from grouprl.config.yaml_text import read_yaml
from grouprl.record.layout import RunDirectory
from grouprl.record.strict import read_file, refuse_depth
from grouprl.types import UserError


def read_config(folder: Path) -> dict[str, Any]:
    """The run's config.yaml.

    Raises:
        UserError: it is no mapping in the YAML of `config_yaml`, or `steps` is no number.
    """
    path = RunDirectory(folder).config
    text = read_file(path)
    if text is None:
        raise UserError(f"{path}: expected the settings of the run, found no such file: restore it")
    return parse_config(text.decode("utf-8", "replace"), path)


def parse_config(text: str, place: object) -> dict[str, Any]:
    """The settings in the text of a config.yaml; `place` is what an error begins with.

    Raises:
        UserError: as `read_config`.
    """
    try:
        found = read_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{place}: expected YAML ({type(error).__name__}: {error}): restore the file") from None
    if not isinstance(found, dict):
        raise UserError(f"{place}: expected settings, got {str(found)[:60]!r}: restore the file")
    refuse_depth(found, place)
    steps = found.get("steps")
    if steps is not None and type(steps) is not int:
        raise UserError(f"{place}: steps: expected a whole number, got {steps!r:.60}: restore the file")
    return found
