"""Makes a recipe and the table of every key from a foreign configuration."""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grouprl.algorithms.named import NAMED
from grouprl.config.algorithm import all_options
from grouprl.config.files import load_config
from grouprl.config.run import RunConfig
from grouprl.config.yaml_text import write_yaml
from grouprl.imported.read import Foreign
from grouprl.imported.references import resolve
from grouprl.imported.table import Given, Outcome, unsupported
from grouprl.imported.trl_keys import TRL
from grouprl.imported.trl_older import RENAMED
from grouprl.imported.verl_keys import ESTIMATOR, VERL, verl_needs_not
from grouprl.record.files import atomic_write_text
from grouprl.types import UserError

_TABLES = {"trl": TRL, "verl": VERL}
_RENAMED: Mapping[str, Mapping[str, str]] = {"trl": RENAMED, "verl": {}}
_SAID = ("model.path", "task.path")  # written into a recipe even where it is the default here


@dataclass(frozen=True)
class Line:
    """A row of the table: a key, its value there, whether the file names it, and what became of it."""

    key: str
    value: Any
    is_named: bool
    outcome: Outcome


@dataclass(frozen=True)
class Imported:
    """A recipe in place of a foreign configuration, with the keys that matter."""

    lines: tuple[Line, ...]
    changes: Mapping[str, Any]  # what the recipe has, by dotted key

    @property
    def missing(self) -> tuple[str, ...]:
        """What a run still needs and the file does not name: model, task, rewards."""
        firsts = {key.partition(".")[0] for key in self.changes}
        found = {
            "model": "model.path" in self.changes,
            "task": "task.path" in self.changes,
            "reward": "rewards" in firsts,
        }
        return tuple(name for name, is_there in found.items() if not is_there)

    def text(self, origin: str) -> str:
        """The recipe as YAML, with its origin in a comment."""
        tree: dict[str, Any] = {}
        for key, value in self.changes.items():
            inner, keys = tree, key.split(".")
            for part in keys[:-1]:
                inner = inner.setdefault(part, {})
            inner[keys[-1]] = value
        return f"# From {origin}, by `grouprl import-config`.\n{write_yaml(tree)}"


def import_foreign(foreign: Foreign, *, world: int = 1, allow: Collection[str] = ()) -> Imported:
    """Judges every key and makes the recipe.

    Args:
        foreign: the configuration as it was written.
        world: processes that train, where the file does not say it.
        allow: unsupported keys to leave out.

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
    named, unsaid = resolve(values, defaults) if foreign.library == "verl" else (values, {})
    given = Given(named, defaults, world)
    base = "ppo" if given.get(ESTIMATOR) == "gae" else foreign.library
    keys = {key: unsaid.get(key, value) for key, value in given.items()} | unsaid
    lines = tuple(
        Line(
            written.get(key, key),
            value,
            key in written,
            _unsaid(entries, key, value, given) if key in unsaid else _outcome(entries, key, value, given),
        )
        for key, value in keys.items()
    )
    refused = [one for one in lines if one.outcome.verdict == "unsupported" and one.key not in allow]
    if refused:
        words = [f"{one.key}={one.value}: {one.outcome.words}" for one in refused]
        advice = " ".join(f"--allow {one.key}" for one in refused)
        raise UserError("\n  ".join(["GroupRL has no counterpart of these keys:", *words, f"to skip them: {advice}"]))
    if unknown := sorted(set(allow) - {one.key for one in lines}):
        raise UserError(f"--allow: expected keys of the file, got {', '.join(unknown)}: remove it")
    changes: dict[str, Any] = {"algorithm.name": base}
    for one in lines:
        changes |= one.outcome.ours
    return Imported(tuple(_worth_showing(lines, base)), {"algorithm.name": base, **_different(changes, base)})


def _outcome(entries: Mapping[str, Any], key: str, value: Any, given: Given) -> Outcome:
    if key not in entries and (why := verl_needs_not(key)):
        return Outcome("not needed", words=why)
    if key not in entries:
        near = difflib.get_close_matches(key, entries, n=1)
        return unsupported(f"unknown key{f'; did you mean {near[0]}?' if near else ''}")
    try:
        outcome: Outcome = entries[key].rule(given, value)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{key}: expected a value like {entries[key].default!r}, got {value!r:.80}: correct it"
        ) from error
    return outcome


def _unsaid(entries: Mapping[str, Any], key: str, text: str, given: Given) -> Outcome:
    """What becomes of a value that the file does not say: nothing, where nothing here depends on it."""
    if key in entries:
        outcome = _outcome(entries, key, entries[key].default, given)
    else:
        outcome = _outcome(entries, key, text, given)
    if outcome.verdict == "not needed" or (key not in entries and outcome.verdict == "unsupported"):
        return Outcome(outcome.verdict, words=outcome.words)
    return unsupported(f"the file does not define {text}: write the value into it")


def _worth_showing(lines: Collection[Line], base: str) -> Iterator[Line]:
    """What the file names, and the defaults there that are not the defaults here."""
    for one in lines:
        if one.is_named or one.outcome.verdict == "changed" or _different(one.outcome.ours, base):
            yield one


def _different(changes: Mapping[str, Any], base: str) -> dict[str, Any]:
    """Those changes that differ from the preset and from the defaults of a run; pairs are joined."""
    usual, options = RunConfig().model_dump(mode="json"), all_options(NAMED[base])
    found: dict[str, Any] = {}
    for key, value in changes.items():
        section, _, rest = key.partition(".")
        default: Any = options.get(rest, ...) if section == "algorithm" else usual
        for part in key.split(".") if section != "algorithm" else ():
            if isinstance(default, list):
                default = default[int(part)]
            else:
                default = default.get(part, ...) if isinstance(default, dict) else ...
        if key in _SAID or default != value or isinstance(default, bool) != isinstance(value, bool):
            found[key] = value
    pair = [found.pop(f"learner.betas.{at}", usual["learner"]["betas"][at]) for at in (0, 1)]
    return found if pair == usual["learner"]["betas"] else {**found, "learner.betas": pair}


def write_recipe(imported: Imported, origin: str, path: Path, *, force: bool = False) -> None:
    """Writes the recipe once a run could read it; a file that is there stays, unless it may be replaced.

    Raises:
        UserError: the file exists, or a setting has no valid value here.
    """
    if path.exists() and not force:
        raise UserError(f"{path}: expected a new file, got an existing one: give --output FILE, or --force")
    text = imported.text(origin)
    with tempfile.TemporaryDirectory() as folder:
        trial = Path(folder) / path.name
        trial.write_text(text, encoding="utf-8")
        try:
            load_config(RunConfig, [trial], [])
        except UserError as error:
            raise UserError(str(error).replace(str(trial), f"{path} (not written)")) from error
    atomic_write_text(path, text)
