"""What becomes of a foreign key: the values that are given, the rules that judge them, and the verdicts.

The keys of a library are in a YAML file beside this one, a row for each: the default there, what the key is here, and
the name of its rule with its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from grouprl.config.yaml_text import read_yaml

TaskVerdict = Literal["equal", "changed", "not needed", "unsupported"]


@dataclass(frozen=True)
class Unknown:
    """A value that the file does not decide, as it is written there."""

    text: str


class UndecidedValue(Exception):
    """A rule asked for a value that the file does not decide; its text says which and why."""


@dataclass(frozen=True)
class Given:
    """The values of a foreign configuration by key: those that it names, over the defaults there."""

    named: Mapping[str, Any]  # `Unknown` where the file does not decide a value
    defaults: Mapping[str, Any]
    world: int = 1  # processes that train
    asked: list[str] = field(default_factory=list)  # the keys that the current rule has read

    def __getitem__(self, key: str) -> Any:
        self.asked.append(key)
        value = self.named[key] if key in self.named else self.defaults[key]
        if isinstance(value, Unknown):
            raise UndecidedValue(f"depends on {key}, which {undecided(key, value)}")
        return value


@dataclass(frozen=True)
class Outcome:
    """The verdict on a value, the settings here that it becomes, by dotted key, and a few words."""

    verdict: TaskVerdict
    ours: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""


Rule = Callable[[Given, Any], Outcome]
"""From all values, and the value of the key itself, to what becomes of it."""


@dataclass(frozen=True)
class Entry:
    """A key that is known: its default there, what it is here, and its rule."""

    default: Any
    here: str
    rule: Rule


# Rules of single keys: from the first two columns of a row and the arguments of the rule.


def same(_: Any, key: str, *off: Any) -> Rule:
    """A key with the same meaning and unit here; null, and other values that are `off`, = the default here."""
    return lambda _, value: Outcome("equal", {} if value in (None, *off) else {key: value})


def also_learned(default: Any, key: str) -> Rule:
    """A setting that other libraries apply to sampling alone."""

    def rule(_: Given, value: Any) -> Outcome:
        if value == default:
            return Outcome("equal")
        return Outcome("changed", {key: value}, "TRL and verl apply it to sampling only; here the learner has it too")

    return rule


def idle(_: Any, why: str) -> Rule:
    """A key that nothing here depends on."""
    return lambda _, value: Outcome("not needed", words=why)


def only(default: Any, why: str, *others: Any) -> Rule:
    """A key whose default is what happens here, whatever the recipe; any other value is unsupported."""

    def rule(_: Given, value: Any) -> Outcome:
        if any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in (default, *others)):
            return Outcome("equal", words=why)
        return Outcome("unsupported", words=why)

    return rule


def in_random_order(_: Any, why: str) -> Rule:
    """Whether the data is shuffled, which is so here in any case."""
    return lambda _, value: (
        Outcome("equal") if value else changed("the order of the file", {}, "a random order, from seed")
    )


def choice(_: Any, here: str, known: Mapping[Any, Mapping[str, Any]]) -> Rule:
    """A key with a few values, each with its settings here."""

    def rule(_: Given, value: Any) -> Outcome:
        found = [ours for theirs, ours in known.items() if theirs == value and type(theirs) is type(value)]
        return Outcome("equal", found[0]) if found else unsupported(f"expected one of {listed(known)}")

    return rule


def sets(_: Any, here: str, ours: Mapping[str, Any]) -> Rule:
    """A switch with its settings here."""
    return lambda _, is_on: Outcome("equal", ours if is_on else {})


def noted(_: Any, here: str, words: str) -> Rule:
    """A key whose meaning another key carries."""
    return lambda _, value: Outcome("equal", words=words if value else "")


def differs(_: Any, here: str, why: str) -> Rule:
    """A key for which something else happens here, unless it is null."""
    return lambda _, value: Outcome("equal") if value is None else changed(value, {}, why)


def refuses(_: Any, here: str, words: str) -> Rule:
    """A key that only null is supported of."""
    return lambda _, value: Outcome("equal") if value is None else unsupported(words)


_MAKERS = {
    make.__name__: make
    for make in (same, also_learned, idle, only, in_random_order, choice, sets, noted, differs, refuses)
}


def read_table(name: str, rules: Mapping[str, Any]) -> dict[str, Entry]:
    """The entries of a YAML file of this folder by key, with the library's own `rules` by name."""
    entries = {}
    for key, row in read_yaml((Path(__file__).parent / name).read_bytes()).items():
        if isinstance(row, list):
            default, here, rule, *arguments = row
            made = _MAKERS[rule](default, here, *arguments) if rule in _MAKERS else partial(rules[rule], *arguments)
            entries[key] = Entry(default, here, made)
        else:
            defaults = row if isinstance(row, dict) else dict.fromkeys(row.split())
            entries |= {one: Entry(default, key, idle(default, key)) for one, default in defaults.items()}
    return entries


def undecided(key: str, value: Unknown) -> str:
    """Says why a value cannot be decided and what to do."""
    if variables := re.findall(r"\$(?:\{oc\.env:|\{)?([A-Za-z_]\w*)(?![\w.])", value.text):
        names = " and ".join(f"${name}" for name in dict.fromkeys(variables))
        return f"cannot be decided: it needs the variable {names}, which is not read: pass {key}=VALUE with its value"
    return f"cannot be decided: the file does not define it; write the value into the file, or pass {key}=VALUE"


def unsupported(words: str) -> Outcome:
    """The outcome of a value that has no counterpart here."""
    return Outcome("unsupported", words=words)


def changed(theirs: object, ours: Mapping[str, Any], why: str) -> Outcome:
    """The outcome of a value that another value stands for; the words have both."""
    return Outcome("changed", ours, f"{theirs} -> {f'{listed(ours.values())}: ' if ours else ''}{why}")


def folder_name(name: str) -> str:
    """A name for the run's folder: other characters become -."""
    return "".join(one if (one.isalnum() and one.isascii()) or one in "._-" else "-" for one in name).lstrip("._-")


def listed(values: Collection[Any]) -> str:
    """Several values as text."""
    return ", ".join(map(str, values))


def tracker_names(value: Any) -> tuple[list[str], list[str]]:
    """The trackers among the names in a foreign configuration, and the other names."""
    names = [value] if isinstance(value, str) else list(value or [])
    known = [name for name in names if name in ("tensorboard", "wandb", "trackio", "mlflow")]
    return known, [name for name in names if name not in known]
