"""What becomes of a foreign key: the values that are given, the rules that judge them, and the verdicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Versions = tuple[tuple[int, ...], tuple[int, ...]]
Verdict = Literal["equal", "changed", "not needed", "unsupported"]


@dataclass(frozen=True)
class Unknown:
    """A value that the file does not decide: what it says, in which line, and why it is open."""

    text: str
    line: int
    why: str


class Undecided(Exception):
    """A rule asked for a value that the file does not decide; its text says which and why."""


@dataclass(frozen=True)
class Given:
    """The values of a foreign configuration by key: those that it names, over the defaults there."""

    named: Mapping[str, Any]  # `Unknown` where the file does not decide a value
    defaults: Mapping[str, Any]
    world: int = 1  # processes that train
    versions: Versions = ((1, 16), (1, 16))  # the oldest and the newest of the library that it can be

    asked: list[str] = field(default_factory=list)  # the keys that the current rule has read

    def __getitem__(self, key: str) -> Any:
        self.asked.append(key)
        value = self.named[key] if key in self.named else self.defaults[key]
        if isinstance(value, Unknown):
            raise Undecided(f"depends on {key}, which {undecided(key, value)}")
        return value


@dataclass(frozen=True)
class Outcome:
    """The verdict on a value, the settings here that it becomes, by dotted key, and a few words."""

    verdict: Verdict
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


def same(key: str, default: Any) -> Entry:
    """A key with the same meaning and unit here; null = the default here."""
    return Entry(default, key, lambda _, value: Outcome("equal", {} if value is None else {key: value}))


def also_learned(key: str, default: Any) -> Entry:
    """A setting that other libraries apply to sampling alone."""

    def rule(_: Given, value: Any) -> Outcome:
        if value == default:
            return Outcome("equal")
        return Outcome("changed", {key: value}, "TRL and verl apply it to sampling only; here the learner has it too")

    return Entry(default, key, rule)


def idle(default: Any, why: str) -> Entry:
    """A key that nothing here depends on."""
    return Entry(default, why, lambda _, value: Outcome("not needed", words=why))


def idles(why: str, defaults: Mapping[str, Any]) -> dict[str, Entry]:
    """Several keys that nothing here depends on, for one reason."""
    return {key: idle(default, why) for key, default in defaults.items()}


def only(default: Any, why: str, *others: Any) -> Entry:
    """A key whose default is what happens here, whatever the recipe; any other value is unsupported."""

    def rule(_: Given, value: Any) -> Outcome:
        if any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in (default, *others)):
            return Outcome("equal", words=why)
        return Outcome("unsupported", words=why)

    return Entry(default, why, rule)


def in_random_order() -> Entry:
    """Whether the data is shuffled, which is so here in any case."""

    def rule(_: Given, value: Any) -> Outcome:
        return Outcome("equal") if value else changed("the order of the file", {}, "a random order, from seed")

    return Entry(True, "problems come in a random order, from seed", rule)


def choice(default: Any, here: str, known: Mapping[Any, Mapping[str, Any]]) -> Entry:
    """A key with a few values, each with its settings here."""

    def rule(_: Given, value: Any) -> Outcome:
        found = [ours for theirs, ours in known.items() if theirs == value and type(theirs) is type(value)]
        return Outcome("equal", found[0]) if found else unsupported(f"expected one of {listed(known)}")

    return Entry(default, here, rule)


def undecided(key: str, value: Unknown) -> str:
    """Says why a value cannot be decided and what to do."""
    remedy = (
        f"write the value into the file, or pass {key}=VALUE" if "$" not in key else "write its words into the file"
    )
    return f"cannot be decided: {value.why}{f' (line {value.line})' if value.line else ''}; {remedy}"


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


def key_table(entries: Mapping[str, Entry]) -> str:
    """Makes a Markdown table for the site: key, default there, what it is here."""
    rows = [f"| `{key}` | `{json.dumps(entry.default)}` | {entry.here} |" for key, entry in entries.items()]
    return "\n".join(["| key | default there | here |", "|---|---|---|", *rows]) + "\n"
