"""Every key of a configuration of TRL 1.16 and of verl: its default, older names, and keys that have no effect here."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType

from grouprl.config.yaml_text import read_yaml
from grouprl.tools.imported import trl_rules, verl_rules
from grouprl.tools.imported.table import Entry, Outcome, read_table

TRL: Mapping[str, Entry] = MappingProxyType(read_table("trl.yaml", vars(trl_rules)))
"""Key -> entry. A key that is missing is unsupported."""

_NAMES = read_yaml((Path(__file__).parent / "names.yaml").read_bytes())
RENAMED: Mapping[str, str] = MappingProxyType(_NAMES["renamed"])
"""The older name of a key, or open-r1's, -> the name that TRL has now."""

OTHER_NAMES: Mapping[str, str] = MappingProxyType(_NAMES["others"])
"""Names that no table has: of other libraries, and those that people use -> what they are here."""

TRL_FIELDS: Mapping[str, str] = MappingProxyType(
    {name: kind for kind, names in _NAMES["fields"].items() for name in names.split()}
)
"""The fields of TRL's GRPOConfig that it adds to transformers' TrainingArguments or changes there -> type."""

LORA: Mapping[str, str] = MappingProxyType(_NAMES["lora"])
"""A setting of PEFT's LoraConfig -> the key of TRL."""

BITS: Mapping[str, str] = MappingProxyType(_NAMES["bits"])
"""A setting of transformers' BitsAndBytesConfig -> the key of TRL."""

_SAME_ROWS = "does not change which rows are trained"

VERL: Mapping[str, Entry] = MappingProxyType(read_table("verl.yaml", vars(verl_rules)))
"""Dotted key -> entry. A key that is missing here and in `NOT_NEEDED` is unsupported."""

NOT_NEEDED: Mapping[str, str] = MappingProxyType(
    {
        f"{section}.{end}": why
        for section, reasons in read_yaml((Path(__file__).parent / "verl_idle.yaml").read_bytes()).items()
        for why, ends in reasons.items()
        for end in ends.split()
    }
)
"""Patterns of keys that nothing here depends on, and why."""


def verl_needs_not(key: str) -> Outcome | None:
    """The outcome of a key of verl that nothing here depends on; None where no pattern names it."""
    why = next((why for pattern, why in NOT_NEEDED.items() if fnmatchcase(key, pattern)), "")
    return Outcome("equal" if why == _SAME_ROWS else "not needed", words=why) if why else None
