"""Reads and changes the options of an algorithm by name; option names are unique over all parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Literal, get_args, get_origin

from grouprl.algorithms.advantages import GroupAdvantage
from grouprl.algorithms.corrections import Correction
from grouprl.algorithms.distillation import Distill
from grouprl.algorithms.entropy import Entropy
from grouprl.algorithms.experts import Experts
from grouprl.algorithms.filters import Filter
from grouprl.algorithms.kl import Kl
from grouprl.algorithms.losses import Clip, Plain
from grouprl.algorithms.named import NAMED, source
from grouprl.algorithms.named.cispo import Cispo
from grouprl.algorithms.named.gmpo import Gmpo
from grouprl.algorithms.named.opo import LengthAdvantage
from grouprl.algorithms.named.pass_at_k import BestAdvantage
from grouprl.algorithms.named.reinforce import ConstantAdvantage
from grouprl.algorithms.named.reinforce_batch import BatchAdvantage
from grouprl.algorithms.named.sapo import Sapo
from grouprl.algorithms.named.vespo import Vespo
from grouprl.algorithms.option import Part, faults, hints
from grouprl.algorithms.spec import Algorithm, Updates
from grouprl.algorithms.steps import StepAdvantage
from grouprl.algorithms.tokens import CriticAdvantage, GroupTokenAdvantage, TokenAdvantage
from grouprl.algorithms.values import CopiedCritic, SharedCritic
from grouprl.config.own_algorithm import is_in_file, loaded_algorithm
from grouprl.config.own_code import own_code
from grouprl.leaves import find_leaf
from grouprl.types import UserError, nearest_name

KINDS: Mapping[str, tuple[type[Part], ...]] = {
    "advantage": (
        GroupAdvantage,
        BatchAdvantage,
        ConstantAdvantage,
        LengthAdvantage,
        BestAdvantage,
        StepAdvantage,
        GroupTokenAdvantage,
        TokenAdvantage,
        CriticAdvantage,
    ),
    "objective": (Clip, Cispo, Plain, Sapo, Gmpo, Vespo),
    "kl": (Kl,),
    "filter": (Filter,),
    "critic": (CopiedCritic, SharedCritic),
    "correction": (Correction,),
    "entropy": (Entropy,),
    "experts": (Experts,),
    "distill": (Distill,),
    "updates": (Updates,),
}
"""The kinds of each part; a named algorithm may define one more kind."""

OWN = "own"  # beside the parts: the classes of those that a program defined
# Beside them, of an algorithm in a file: their plain options that no other class has, for who may run the file.
OWN_OPTIONS = "own_options"

# `algorithm.critic=copy` is short for `algorithm.critic.critic_kind=copy`.
_SHORT = {"kl": "kl_estimator", "critic": "critic_kind", "correction": "correction_kind"}


def name_here(name: str) -> str:
    """A sentence about a setting of TRL or verl, by the last part of its name; empty for another name."""
    hint = find_leaf("hints")
    return "" if hint is None else str(hint(name))


def options(algorithm: Algorithm) -> dict[str, Any]:
    """Returns every option of every part that the algorithm has, by name."""
    parts = (getattr(algorithm, name) for name in KINDS)
    return {name: value for part in parts if part is not None for name, value in asdict(part).items()}


def all_options(algorithm: Algorithm) -> dict[str, Any]:
    """Returns all options by name, with `absent` values for parts that are None and defaults for other kinds."""
    values: dict[str, Any] = {}
    for part, kinds in part_kinds(algorithm).items():
        defaults = {field.name: field.default for kind in reversed(kinds) for field in fields(kind)}
        values |= {**defaults, **kinds[0].absent, **_recorded(part, getattr(algorithm, part) or Part())}
    return values


def family_table() -> str:
    """Makes a Markdown table of the named algorithms: advantage, where it is not GRPO's, other differences, source."""
    rows = ["| name | advantage | differs from `grpo` in | source |", "|---|---|---|---|"]
    base = all_options(NAMED["grpo"])
    for name, algorithm in NAMED.items():
        changes = [item for item in all_options(algorithm).items() if item not in base.items()]
        changed = ", ".join(f"`{key}={plain(value)}`" for key, value in changes)
        formula = algorithm.advantage.formula
        formula = "" if name != "grpo" and formula == NAMED["grpo"].advantage.formula else formula
        rows.append(f"| `{name}` | {formula} | {changed} | {source(name)} |")
    return "\n".join(rows) + "\n"


def plain(value: object) -> str:
    """Writes an option's value as in YAML."""
    return {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))


def as_tree(algorithm: Algorithm) -> dict[str, Any]:
    """Converts the algorithm to plain values, part by part, which `with_options` reads back."""
    classes, parts = own_parts(algorithm), {name: getattr(algorithm, name) for name in KINDS}
    tree = {name: part and _recorded(name, part) for name, part in parts.items()}
    if not is_in_file(algorithm.name):
        return {"name": algorithm.name, **tree, **({OWN: classes} if classes else {})}
    options = {
        key: value
        for name, part in parts.items()
        for key, value in (asdict(part).items() if part and own_code(part) else ())
        if key not in tree[name] and isinstance(value, str | int | float | None)
    }
    return {"name": algorithm.name, **tree, OWN: classes, OWN_OPTIONS: options}


def from_file(name: str, changes: Mapping[str, Any]) -> Algorithm:
    """The algorithm `FILE.py:NAME` with options that the program changes or that `as_tree` recorded.

    Before the file has run in this process: what is recorded, with `missing`.
    """
    if (loaded := loaded_algorithm(name)[0]) is not None:
        return with_options(loaded, {**changes.get(OWN_OPTIONS, {}), **changes, "name": name})
    classes = changes[OWN] if isinstance(changes.get(OWN), Mapping) else {"algorithm": name}
    try:
        algorithm = with_options(NAMED["grpo"], {**changes, "name": name})
    except UserError:  # an option that only the file knows
        algorithm, classes = Algorithm(name), {"algorithm": name}
    return replace(algorithm, missing=tuple((str(part), str(code)) for part, code in classes.items()))


def own_parts(algorithm: Algorithm) -> dict[str, str]:
    """The parts whose class a program defined: the class, see `own_code`, and the options that no other class has."""
    classes = dict(algorithm.missing)
    for name in () if classes else ("algorithm", *KINDS):
        part: Any = getattr(algorithm, name, algorithm)
        digest = own_code(part) if part else None
        if digest:
            values = {} if name == "algorithm" else asdict(part)
            recorded = values and _recorded(name, part)
            extra = [f"{key}={value!r}" for key, value in values.items() if key not in recorded]
            classes[name] = " ".join([digest, *extra])
    return classes


def _recorded(name: str, part: Part) -> dict[str, Any]:
    """The options of a part; of one whose class a program defined, those that can be read without that program."""
    kinds = [type(part)] if own_code(part) is None else KINDS[name]
    values = asdict(part)
    return {
        key: value
        for key, value in values.items()
        if any(key in hints(kind) and key not in faults(kind, values) for kind in kinds)
    }


def refuse_missing_parts(algorithm: Algorithm) -> None:
    """Raises UserError for an algorithm that was read from a record and cannot be made without its program."""
    for name, code in algorithm.missing:
        raise UserError(
            f"algorithm.{name}: expected the class {code.split()[0]} of the program that defined it, got only its name "
            "from the record: continue by Trainer(...).train(resume=True) in that program, or start a new run with "
            "algorithm=FILE.py:NAME or a named algorithm"
        )


def flat(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Flattens changes that may be written part by part, `{"objective": {"clip_high": 0.3}}`, to option names.

    Raises:
        UserError: null for a part that every algorithm has, or a value that is not a section.
    """
    options: dict[str, Any] = {}
    for name, value in changes.items():
        if name in KINDS and isinstance(value, Mapping):
            options |= value
        elif name in KINDS and value is None:
            if not KINDS[name][0].absent:
                raise UserError(f"algorithm.{name}: expected the options of a part that every algorithm has, got null")
            options |= KINDS[name][0].absent
        elif name in KINDS and name not in _SHORT:
            coef = next((key for kind in KINDS[name] for key in hints(kind) if key == f"{name}_coef"), "")
            write = f": write algorithm.{coef}={value}" if coef else ""
            raise UserError(f"algorithm.{name}: expected a section with keys of its own, got {value!r:.60}{write}")
        else:
            options[_SHORT.get(name, name)] = value
    return options


def with_options(base: Algorithm, changes: Mapping[str, Any]) -> Algorithm:
    """Changes some options of an algorithm; an option value of another kind changes the kind of its part.

    Args:
        base: the algorithm to change.
        changes: by option name (`{"clip_high": 0.3}`), or part by part (`{"objective": {"clip_high": 0.3}}`); None for
            a part = the algorithm has none; `name`.

    Raises:
        UserError: an unknown name, a value that is out of range or of another type, or an option that has no effect
            beside the others.
    """
    wanted = {name: value for name, value in flat(changes).items() if name not in ("name", OWN, OWN_OPTIONS)}
    part_of = {name: part for part, kinds in part_kinds(base).items() for kind in kinds for name in hints(kind)}
    for name in wanted:
        if name not in part_of:
            near = nearest_name(name, [*part_of, *KINDS])
            hint = f"did you mean algorithm.{near}?" if near else f"expected one of {', '.join(part_of)}"
            raise UserError(f"algorithm.{name}: unknown key; {name_here(name) or hint}")
    parts: dict[str, Any] = {}
    for part, kinds in part_kinds(base).items():
        changed = {name: value for name, value in wanted.items() if part_of[name] == part}
        current: Part | None = getattr(base, part)
        if changed:
            parts[part] = _changed(part, kinds, current, changed)
    return replace(base, name=changes.get("name", base.name), **parts)


def part_kinds(base: Algorithm) -> dict[str, tuple[type[Part], ...]]:
    """Returns the kinds of each part by its name, beginning with the kind that the algorithm has."""
    kinds_of = {}
    for part, kinds in KINDS.items():
        current = getattr(base, part)
        current_kinds = () if current is None else (type(current),)
        kinds_of[part] = (*current_kinds, *(kind for kind in kinds if kind not in current_kinds))
    return kinds_of


def _changed(part: str, kinds: tuple[type[Part], ...], current: Part | None, changes: Mapping[str, Any]) -> Part | None:
    off, before = kinds[0].absent, {} if current is None else asdict(current)
    if off and all({**off, **before, **changes}.get(name) == value for name, value in off.items()):
        _refuse_idle(kinds, {k: v for k, v in changes.items() if k not in off}, f"without algorithm.{part}")
        return None
    merged = {**before, **changes}
    for kind in kinds:
        if not _other_words(kind, merged):
            has = hints(kind)
            alone = [name for name, hint in has.items() if get_origin(hint) is Literal and len(get_args(hint)) == 1]
            name = next((name for name in alone if name in merged), alone[0] if alone else "")
            where = f"with algorithm.{name}={merged.get(name, get_args(has[name])[0])!r}" if name else "there"
            _refuse_idle(kinds, {k: v for k, v in changes.items() if k not in has}, where)
            return kind(**{name: value for name, value in merged.items() if name in has})
    choices: dict[str, tuple[Any, ...]] = {}  # the words of each option in some kind; empty for one of another type
    for name in changes:
        types = [hints(kind)[name] for kind in kinds if name in hints(kind)]
        literals = [get_args(hint) for hint in types if get_origin(hint) is Literal]
        choices[name] = tuple(dict.fromkeys(word for words in literals for word in words))
    for name, words in choices.items():
        if words and changes[name] not in words:
            near = nearest_name(str(changes[name]), words)
            hint = f"; did you mean {near!r}?" if near else ""
            raise UserError(f"algorithm.{name}: expected one of {', '.join(words)}, got {changes[name]!r}{hint}")
    first = next(name for name, words in choices.items() if words)
    for kind in kinds:
        if not faults(kind, changes):  # two values contradict each other
            others = _other_words(kind, merged)
            beside = ", ".join(f"algorithm.{name}={merged[name]!r}" for name in others)
            remedy = " and ".join(f"{name} to {' or '.join(words)}" for name, words in others.items())
            raise UserError(
                f"algorithm.{first}: expected another value with {beside}, got {changes[first]!r}: set {remedy}"
            )
    beside = ", ".join(f"algorithm.{name}={value!r}" for name, value in changes.items() if name != first)
    raise UserError(
        f"algorithm.{first}: expected another value with {beside}, got {changes[first]!r}: change one of them"
    )


def _other_words(kind: type[Part], values: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The options whose values are words of another kind, with the words that this kind allows."""
    wrong = [name for name, fault in faults(kind, values).items() if fault["type"] == "literal_error"]
    return {name: get_args(hints(kind)[name]) for name in wrong}


def _refuse_idle(kinds: tuple[type[Part], ...], idle: Mapping[str, Any], where: str) -> None:
    """Raises for options without effect, unless they have their default: a written configuration lists all options."""
    for name, value in idle.items():
        defaults = [field.default for kind in kinds for field in fields(kind) if field.name == name]
        if value not in defaults and (name, value) not in kinds[0].absent.items():
            raise UserError(
                f"algorithm.{name}: expected another value {where}, got {value!r}, which has no effect: remove it"
            )
