"""Hints for settings of TRL and verl that a user writes here, from the importer's tables."""

from __future__ import annotations

import re

from grouprl.tools.imported.keys import NOT_NEEDED, OTHER_NAMES, RENAMED, TRL, VERL

_SETTING = re.compile(
    r"(algorithm|checkpoint|cluster|distributed|epochs|evaluation|learner|model|name|rewards|rollout|runs_dir|seed|steps|"
    r"task|trackers)\b"
)


def hint(name: str) -> str:
    """What a setting of TRL or verl, by the last part of its name, is here; empty for another name."""
    name = RENAMED.get(name, name)
    of_verl = {key.rpartition(".")[2]: entry.here for key, entry in [*VERL.items()][::-1]}
    short = {key for key in of_verl if "_" not in key} - {"n", "lr", "betas", "logger", "tokenizer"}
    idle = {pattern.rpartition(".")[2]: why for pattern, why in NOT_NEEDED.items() if "*" not in pattern}
    meanings = {**idle, **of_verl, **{key: entry.here for key, entry in TRL.items()}, **OTHER_NAMES}
    here = "" if name in short - TRL.keys() else meanings.get(name, "")
    return (
        f"TRL's or verl's {name} {'is here' if _SETTING.match(here) else 'has no setting here:'} {here}" if here else ""
    )
