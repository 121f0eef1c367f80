"""What becomes of a foreign key: the values of a configuration, the rules that judge them, and the verdicts.

The keys of a library are in a YAML file beside this one, a row for each: the default there, what the key is here, then
the name of its rule with arguments, or cases. The first case whose conditions hold has the verdict:

    {if: {KEY: TEST}, VERDICT: settings here or words, words: said beside it}

KEY may be `value`, the key's own, or a function of the library's rules. TEST is a value, a list of values, `set` or
`unset` (as Python's truth), {not: a value or values}, {above: number} or {below: number}; `named: KEY` asks whether the
file names a key. `=KEY` is the value of a key, {KEY} is that in a text. `because` with a changed setting gives "theirs
-> ours: why", where `theirs` is the value unless the case says it. `rule` hands on to a rule. No case = equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

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
    entries: Mapping[str, Entry]
    world: int = 1  # processes that train
    asked: list[str] = field(default_factory=list)  # the keys that the current rule has read

    def __getitem__(self, key: str) -> Any:
        self.asked.append(key)
        value = self.named[key] if key in self.named else self.entries[key].default
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


# Rules by name: from the first two columns of a row and the arguments of the rule.


def same(default: Any, key: str, *off: Any) -> Rule:
    """A key with the same meaning and unit here; values that are `off`, and null if it is usual, = the default here."""

    def rule(_: Given, value: Any) -> Outcome:
        if value is None and default is not None:
            raise TypeError
        return Outcome("equal", {} if value in (None, *off) else {key: value})

    return rule


def number(_: Any, key: str) -> Rule:
    """A key with the same meaning here, where it is no whole number."""
    return lambda _, value: Outcome("equal", {key: float(value)})


def every(_: Any, here: str, key: str) -> Rule:
    """A count; below 1 there are none."""
    return lambda _, value: Outcome("equal", {key: max(0, value)})


def also_learned(default: Any, key: str) -> Rule:
    """A setting that other libraries apply to sampling alone."""
    words = "TRL and verl apply it to sampling only; here the learner has it too"
    return lambda _, value: Outcome("equal") if value == default else Outcome("changed", {key: value}, words)


def idle(_: Any, why: str) -> Rule:
    """A key that nothing here depends on."""
    return lambda _, value: Outcome("not needed", words=why)


def only(default: Any, why: str, *others: Any) -> Rule:
    """A key whose default is what happens here, whatever the recipe; any other value is unsupported."""

    def rule(_: Given, value: Any) -> Outcome:
        fits = any(
            value == usual and isinstance(value, bool) == isinstance(usual, bool) for usual in (default, *others)
        )
        return Outcome("equal" if fits else "unsupported", words=why)

    return rule


def choice(_: Any, here: str, settings: Mapping[Any, Mapping[str, Any]]) -> Rule:
    """A key with a few values, each with its settings here."""

    def rule(_: Given, value: Any) -> Outcome:
        ours = next((ours for theirs, ours in settings.items() if theirs == value), None)
        return Outcome("equal", ours) if ours is not None else unsupported(f"expected one of {listed(settings)}")

    return rule


def as_key(_: Any, here: str, key: str) -> Rule:
    """A key that is judged as another."""
    return lambda settings, value: settings.entries[key].rule(settings, value)


_KINDS = {kind.__name__: kind for kind in (same, number, every, also_learned, idle, only, choice, as_key)}


def read_table(name: str, rules: Mapping[str, Any]) -> dict[str, Entry]:
    """The entries of a YAML file of this folder by key, with the library's own `rules` by name."""
    entries = {}
    for key, row in read_yaml((Path(__file__).parent / name).read_bytes()).items():
        if isinstance(row, list):
            default, here, *judges = row
            entries[key] = Entry(default, here, _rule(default, here, judges, rules))
        else:
            defaults = row if isinstance(row, dict) else dict.fromkeys(row.split())
            entries |= {idle_key: Entry(default, key, idle(default, key)) for idle_key, default in defaults.items()}
    return entries


def _rule(default: Any, here: str, judges: Sequence[Any], rules: Mapping[str, Any]) -> Rule:
    """The rule of a row, from the name of a kind or of a function and its arguments, or from cases."""
    name, *arguments = judges
    if isinstance(name, Mapping):
        cases = [(case, _rule(default, here, case["rule"], rules) if "rule" in case else None) for case in judges]
        return lambda settings, value: _judge(cases, Reading(settings, value, rules))
    if name in _KINDS:
        return _KINDS[name](default, here, *arguments)
    return partial(rules[name], *arguments)


@dataclass(frozen=True)
class Reading:
    """What the cases of a key read: its value, other keys, and numbers that the library's rules compute of them."""

    given: Given
    value: Any
    rules: Mapping[str, Any]

    def read(self, name: str) -> Any:
        """The value of a name in a case."""
        if name == "value":
            return self.value
        return self.given[name] if name in self.given.entries else self.rules[name](self.given)

    def filled(self, template: Any) -> Any:
        """A value of a case with the names in it replaced."""
        if isinstance(template, list):
            return [self.filled(part) for part in template]
        if not isinstance(template, str):
            return template
        if template.startswith("="):
            return self.read(template[1:])
        return re.sub(r"\{([\w.]+)\}", lambda match: str(self.read(match[1])), template)

    def holds(self, name: str, test: Any) -> bool:
        """Whether a condition of a case holds."""
        if name == "named":
            return test in self.given.named
        value = self.read(name)
        match test:
            case "set" | "unset":
                return bool(bool(value) == (test == "set"))
            case {"above": limit}:
                return bool(value > self.filled(limit))
            case {"below": limit}:
                return bool(value < self.filled(limit))
            case {"not": list(values)}:
                return value not in {*self.filled(values)}
            case {"not": other}:
                return bool(value != other)
            case list():
                return value in {*test}
        return bool(value == test)


def _judge(cases: Sequence[tuple[Mapping[str, Any], Rule | None]], reading: Reading) -> Outcome:
    for case, rule in cases:
        if not all(reading.holds(name, test) for name, test in case.get("if", {}).items()):
            continue
        if rule is not None:
            return rule(reading.given, reading.value)
        verdict: TaskVerdict = next(verdict for verdict in get_args(TaskVerdict) if verdict in case)
        if isinstance(case[verdict], str):
            return Outcome(verdict, words=reading.filled(case[verdict]))
        ours = {key: reading.filled(setting) for key, setting in case[verdict].items()}
        if "because" in case:
            return changed(reading.filled(case.get("theirs", "{value}")), ours, reading.filled(case["because"]))
        return Outcome(verdict, ours, reading.filled(case.get("words", "")))
    return Outcome("equal")


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
    return "".join(
        character if (character.isalnum() and character.isascii()) or character in "._-" else "-" for character in name
    ).lstrip("._-")


def listed(values: Collection[Any]) -> str:
    """Several values as text."""
    return ", ".join(map(str, values))


def tracker_names(value: Any) -> tuple[list[str], list[str]]:
    """The trackers among the names in a foreign configuration, and the other names."""
    names = [value] if isinstance(value, str) else list(value or [])
    trackers = [name for name in names if name in ("tensorboard", "wandb", "trackio", "mlflow")]
    return trackers, [name for name in names if name not in trackers]
