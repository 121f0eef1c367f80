"""Makes a recipe and the table of every key from a foreign configuration."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from grouprl.algorithms.named import NAMED
from grouprl.config.algorithm import all_options
from grouprl.config.checks import check_sections
from grouprl.config.files import validated
from grouprl.config.run import RunConfig
from grouprl.config.yaml_text import write_yaml
from grouprl.record.files import atomic_write_text
from grouprl.tools.imported.keys import RENAMED, TRL, VERL, verl_needs_not
from grouprl.tools.imported.read import Foreign, Library
from grouprl.tools.imported.references import resolve, scalar
from grouprl.tools.imported.table import Given, Outcome, UndecidedValue, Unknown, undecided, unsupported
from grouprl.tools.imported.verl_rules import ESTIMATOR
from grouprl.types import UserError

_TABLES = {"trl": TRL, "verl": VERL}
_RENAMED: Mapping[str, Mapping[str, str]] = {"trl": RENAMED, "verl": {}}
_UNKNOWN, _MOST_SHOWN = "unknown key", 20
_SAID = ("model.path", "task.path")  # written into a recipe even where it is the default here


@dataclass(frozen=True)
class Line:
    """A row of the table: a key, its value there, whether the file names it, and what became of it."""

    key: str
    value: Any
    is_named: bool
    outcome: Outcome


@dataclass(frozen=True)
class ImportedRecipe:
    """A recipe in place of a foreign configuration, with the keys that matter."""

    lines: tuple[Line, ...]
    changes: Mapping[str, Any]  # what the recipe has, by dotted key
    library: Library

    @property
    def missing(self) -> tuple[str, ...]:
        """What a run still needs and the file does not name: model, task, rewards."""
        needs = {"model": "model.path", "task": "task.path", "reward": "rewards"}
        return tuple(name for name, key in needs.items() if key not in self.changes)

    def text(self, origin: str) -> str:
        """The recipe as YAML, with its origin in a comment."""
        return f"# From {' '.join(origin.split())}, by `grouprl import-config`.\n{write_yaml(nested(self.changes))}"


def import_foreign(
    foreign: Foreign,
    *,
    world: int = 1,
    allow: Collection[str] = (),
    beside: Collection[str] = (),
    remedy: str | None = None,
) -> ImportedRecipe:
    """Judges every key and makes the recipe.

    Args:
        foreign: the configuration as it was written.
        world: processes that train, where the file does not say it.
        allow: unsupported keys to leave out.
        beside: sentences about what else is unsupported.
        remedy: a sentence; None = how to allow the keys.

    Raises:
        UserError: keys that are unsupported and not allowed, all at once; or numbers that do not fit each other.
    """
    entries, renamed = _TABLES[foreign.library], _RENAMED[foreign.library]
    written = {renamed.get(key, key): key for key in foreign.values}
    for older, new in renamed.items():
        if older in foreign.values and new in foreign.values:
            raise UserError(f"{older}: expected one name of the key, got {new} too, its newer name: remove one")
    values = {new: foreign.values[key] for new, key in written.items()}
    defaults = {key: entry.default for key, entry in entries.items()}
    values = resolve(values, defaults) if foreign.library == "verl" else values
    values = {key: _fitted(written[key], defaults.get(key), value) for key, value in values.items()}
    skipped = {key for key, value in values.items() if isinstance(value, Unknown) and key in allow}
    settings = Given({key: value for key, value in values.items() if key not in skipped}, entries, world)
    base = "ppo" if settings.named.get(ESTIMATOR, defaults.get(ESTIMATOR)) == "gae" else foreign.library
    lines = tuple(
        Line(written.get(key, key), value, key in written, _outcome(entries, key, value, settings))
        for key, value in {**defaults, **values}.items()
    )
    while refused_keys := _refused(lines, base):
        outcomes = {key: unsupported(why) for key, why in refused_keys.items()}
        lines = tuple(replace(line, outcome=outcomes.get(line.key, line.outcome)) for line in lines)
    refused = [line for line in lines if line.outcome.verdict == "unsupported" and line.key not in allow]
    if unknown := sorted(set(allow) - {line.key for line in lines}):
        raise UserError(f"--allow: expected keys of the file, got {', '.join(unknown)}: remove it")
    if refused or beside:
        words = list(beside)
        for line in refused[:_MOST_SHOWN]:
            near = difflib.get_close_matches(line.key[:100], entries, n=1) if line.outcome.words == _UNKNOWN else ()
            hint = f"; did you mean {near[0]}?" if near else ""
            value = getattr(line.value, "text", line.value)
            words.append(f"{line.key[:100]}={value!s:.100}: {line.outcome.words}{hint}")
        words += [f"and {len(refused) - _MOST_SHOWN} more"] if len(refused) > _MOST_SHOWN else []
        if remedy is None:
            skipping = " ".join(f"--allow {shlex.quote(line.key[:100])}" for line in refused[:_MOST_SHOWN])
            remedy = f"to skip them: {skipping}"
        raise UserError("\n  ".join(["GroupRL has no counterpart of these keys:", *words, remedy]))
    # What the file names, and the defaults there that are not the defaults here.
    shown = [
        line
        for line in lines
        if line.is_named or line.outcome.verdict == "changed" or _different(line.outcome.ours, base)
    ]
    return ImportedRecipe(tuple(shown), _changes(lines, base), foreign.library)


def _changes(lines: Collection[Line], base: str) -> dict[str, Any]:
    changes: dict[str, Any] = {"algorithm.name": base}
    for line in lines:
        changes |= line.outcome.ours
    return {"algorithm.name": base, **_different(changes, base)}


def _refused(lines: Collection[Line], base: str) -> dict[str, str]:
    """The keys whose settings a run would refuse, and the words of that."""
    changes = _changes(lines, base)
    config, mistakes = validated(RunConfig, nested(changes), None)
    mistaken_keys = [(".".join(key), text) for key, text in mistakes]
    if config is not None:
        try:
            check_sections(config)
        except UserError as error:
            key, _, text = str(error).partition(": ")
            mistaken_keys.append((key, text))
    words = {}
    for ours, text in mistaken_keys:
        of_it = [
            line
            for line in lines
            if any((f"{key}.".startswith(f"{ours}.") or f"{ours}.".startswith(f"{key}.")) for key in line.outcome.ours)
        ]
        if not of_it:
            raise UserError(f"{ours}: {text}")
        words[of_it[-1].key] = f"its counterpart takes other values: {ours}: {text}"
    return words


def nested(changes: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of settings by dotted key."""
    tree: dict[str, Any] = {}
    for key, value in changes.items():
        inner, keys = tree, key.split(".")
        for part in keys[:-1]:
            inner = inner.setdefault(part, {})
        inner[keys[-1]] = value
    return tree


def _fitted(key: str, default: Any, value: Any) -> Any:
    """The value as the kind of its default: a number may be written as text."""
    if isinstance(default, bool | int | float) and isinstance(value, str):
        value = scalar(value.lower()) if len(value) < 30 else value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    wanted = "true or false" if isinstance(default, bool) else "a number" if isinstance(default, int | float) else ""
    fits = isinstance(value, bool) if isinstance(default, bool) else is_number
    wanted, fits = ("a smaller number", False) if is_number and abs(value) > 2**63 else (wanted, fits)
    if wanted and not fits and value is not None and not isinstance(value, Unknown):
        raise UserError(f"{key}: expected {wanted} such as {json.dumps(default)}, got {value!r:.80}: correct it")
    return value


def _outcome(entries: Mapping[str, Any], key: str, value: Any, settings: Given) -> Outcome:
    if key not in entries:
        return verl_needs_not(key) or unsupported(undecided(key, value) if isinstance(value, Unknown) else _UNKNOWN)
    settings.asked[:] = [key]
    try:
        outcome: Outcome = entries[key].rule(settings, entries[key].default if isinstance(value, Unknown) else value)
    except UndecidedValue as error:
        return unsupported(str(error))
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        named = {
            asked: (settings.named[asked], entries[asked].default)
            for asked in settings.asked
            if asked in settings.named
        }
        wrong = [asked for asked, (value, default) in named.items() if type(value) is not type(default)]
        key = wrong[0] if wrong else key
        wanted, got = entries[key].default, settings.named.get(key, value)
        raise UserError(f"{key}: expected a value like {wanted!r}, got {got!r:.80}: correct it") from error
    if isinstance(value, Unknown) and outcome.verdict != "not needed":
        return unsupported(undecided(key, value))
    return outcome


@cache
def _defaults(base: str) -> tuple[dict[str, Any], dict[str, Any]]:
    # Every key of a file is compared with them: 0.2 s for 285 keys.
    return RunConfig().model_dump(mode="json"), all_options(NAMED[base])


def _different(changes: Mapping[str, Any], base: str) -> dict[str, Any]:
    """Those changes that differ from the preset and from the defaults of a run; pairs are joined."""
    usual, options = _defaults(base)
    changed: dict[str, Any] = {}
    for key, value in changes.items():
        section, _, rest = key.partition(".")
        default: Any = options.get(rest, ...) if section == "algorithm" else usual
        for part in key.split(".") if section != "algorithm" else ():
            if isinstance(default, list):
                default = default[int(part)]
            else:
                default = default.get(part, ...) if isinstance(default, dict) else ...
        if key in _SAID or default != value or isinstance(default, bool) != isinstance(value, bool):
            changed[key] = value
    pair = [changed.pop(f"learner.betas.{at}", usual["learner"]["betas"][at]) for at in (0, 1)]
    return changed if pair == usual["learner"]["betas"] else {**changed, "learner.betas": pair}


def write_recipe(imported: ImportedRecipe, origin: str, path: Path, *, force: bool = False) -> None:
    """Writes the recipe; a file that is there stays, unless it may be replaced.

    Raises:
        UserError: the file exists.
    """
    if path.exists() and not force:
        raise UserError(f"{path}: expected a new file, got an existing one: give --output FILE, or --force")
    atomic_write_text(path, imported.text(origin))
