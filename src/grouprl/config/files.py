"""Reads configurations from files, then dotted overrides, into one strict model; reports all errors together."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from reprlib import repr as shown
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from grouprl.algorithms.option import complaint, hints
from grouprl.algorithms.spec import Algorithm
from grouprl.config.algorithm import KINDS, flat, name_here
from grouprl.config.yaml_text import line_of, read_yaml, write_yaml
from grouprl.files import MOST_YAML, read_file
from grouprl.types import UserError, nearest_name

Kind = TypeVar("Kind", bound=BaseModel)
# Settings that may stand without their section, as they did in the first months: threads=2 is model.threads=2.
_SHORT = {"threads": "model", "curriculum": "rollout", "scoring": "rollout"}
# Sections that one word names, with the key that it stands for.
_NAMED_BY = {"algorithm": "name", "task": "name", "model": "path", "trackers": "names"}

# What a file or an override drops of the earlier ones where it sets the first: settings that exclude each other.
_DROPS = {
    "steps": ("epochs",),
    "epochs": ("steps",),
    "new_model": ("model.path",),
    "model.path": ("new_model",),
    "pairs.run": ("pairs.path", "pairs.count", "pairs.worked_share"),
    "pairs.path": tuple(f"pairs.{key}" for key in ("run", "first_step", "last_step", "count", "worked_share")),
    "preferences.run": ("preferences.path",),
    "preferences.path": tuple(
        f"preferences.{key}" for key in ("run", "per_group", "first_step", "last_step", "rank", "older", "older_share")
    ),
    "rollout.engine.address": ("rollout.engine.addresses",),
    "rollout.engine.addresses": ("rollout.engine.address",),
    "distributed.exact": ("distributed.shard",),
    "distributed.shard": ("distributed.exact",),
}

_Tree = dict[str, Any]
_Key = tuple[str, ...]
_Mistake = tuple[_Key, str]


@dataclasses.dataclass(frozen=True)
class _Source:
    origin: str  # the file or the override
    tree: _Tree


def load_config(
    kind: type[Kind], files: Sequence[Path], overrides: Sequence[str], *, context: Mapping[str, Any] | None = None
) -> Kind:
    """Reads a configuration: later files change earlier files, overrides (`rollout.group_size=16`) change all files.

    The algorithm can be given by a name, `algorithm=dapo` or `{name: dapo, kl_coef: 0}`. A file or override that
    names it discards earlier settings of it, and of two settings that exclude each other the later one counts.
    `task=NAME` is task.name, `model=PATH` is model.path, `trackers=[NAME]` is trackers.names; a value in the place of
    another section is an error. A list replaces the earlier list, and `rewards.0.weight=2` changes one item. `context`
    gives the validators further algorithms by name.

    Raises UserError with all errors: each names its file or override, its key, the expected and the given value.
    """
    layers: list[_Source] = []
    unread: list[str] = []
    sources: list[str | Path] = [*files, *sorted(overrides, key=_depth)]
    for source in sources:
        origin = f"override {source}" if isinstance(source, str) else str(source)
        try:
            tree = _read_override(source) if isinstance(source, str) else _read_file(source)
            for section, short in _NAMED_BY.items():
                plural = (list,) if short == "names" else ()
                if section in kind.model_fields and isinstance(tree.get(section), (str, int, float, *plural)):
                    tree[section] = {short: tree[section]}
            tree = in_sections(kind, tree)  # in each layer, so that a short spelling in a later one counts
            if isinstance(tree.get("algorithm"), dict):
                tree["algorithm"] = flat(tree["algorithm"])
            layers.append(_Source(origin, tree))
        except (UserError, yaml.YAMLError) as error:
            said = " ".join(str(error).split()).replace('"<byte string>", ', "")
            unread.append(f"{origin}: {said}")
    if unread:
        raise _all_of(unread)
    above = {tuple(keys[:depth]) for keys in map(_keys, overrides) for depth in range(1, len(keys))}
    misplaced = [(layer.origin, mistake) for layer in layers for mistake in _misplaced(kind, layer, above)]
    merged: _Tree = {}
    for layer in layers:
        fresh = "name" in _children(layer.tree.get("algorithm"))
        merged = _without(merged, ("algorithm",)) if fresh else merged
        for dotted, excluded in _DROPS.items():
            setting: Any = layer.tree
            for part in dotted.split("."):
                setting = _children(setting).get(part)
            for other in excluded if setting else ():
                merged = _without(merged, tuple(other.split(".")))
        merged = _merged(merged, layer.tree)
    config, invalid = validated(kind, merged, context or {})
    misplaced_keys = {key for _, (key, _) in misplaced}
    invalid = [(key, text) for key, text in invalid if not any(key[: len(bad)] == bad for bad in misplaced_keys)]
    mistakes = misplaced + [(_origin(layers, key), (key, text)) for key, text in invalid]
    if config is None or mistakes:
        sentences = []
        for origin, (key, text) in mistakes:
            path = next((path for path in files if str(path) == origin), None)
            line = "" if path is None else f":{line_of(read_file(path) or b'', key)}"
            sentences.append(f"{origin}{line}: {'.'.join(key)}: {text}")
        raise _all_of(sentences)
    return config


def in_sections(kind: type[BaseModel], values: Any) -> Any:
    """Puts settings that stand without their section into it; returns other values unchanged."""
    tree = dict(values) if isinstance(values, Mapping) else {}
    for key, section in _SHORT.items():
        if key in tree and section in kind.model_fields and isinstance(tree.get(section, {}), Mapping | BaseModel):
            tree[section] = {**dict(tree.get(section, {})), key: tree.pop(key)}
    return tree or values


def dump_config(config: BaseModel) -> str:
    """Writes every field as YAML; `load_config` reads it back to an equal value."""
    return write_yaml(config.model_dump(mode="json"))


def _all_of(mistakes: Sequence[str]) -> UserError:
    return UserError("\n  ".join(["errors in the configuration:", *mistakes]))


def _depth(override: str) -> int:
    # Names first: `algorithm.kl_coef=0 algorithm=dapo` must keep the 0.
    *section, key = _keys(override)
    return len(section) - (_NAMED_BY.get(".".join(section)) == key)


def _keys(override: str) -> list[str]:
    return override.partition("=")[0].split(".")


def _read_file(path: Path) -> _Tree:
    data = read_file(path, most=MOST_YAML)
    if data is None:
        raise UserError("expected a YAML file, got 'No such file or directory'; check the path")
    tree = read_yaml(data)
    if not isinstance(tree, dict):
        raise UserError(f"expected lines of KEY: VALUE, got {'an empty file' if tree is None else shown(tree)}")
    return tree


def _read_override(text: str) -> _Tree:
    dotted, equals, value = text.partition("=")
    keys = dotted.split(".")
    if not equals or not all(keys):
        raise UserError("expected KEY=VALUE with a dotted key, such as rollout.group_size=16")
    tree = read_yaml(value)
    for key in reversed(keys):
        tree = {key: tree}
    return typing.cast(_Tree, tree)


# Merging


def _merged(base: Any, change: Any) -> Any:
    """Merges mappings key by key and lists by item numbers; replaces any other value."""
    old = _children(base)
    items_exist = isinstance(base, dict) or (isinstance(base, list) and _children(change).keys() <= old.keys())
    if not (isinstance(change, dict) and items_exist):
        return change
    merged = old | {key: _merged(old.get(key), value) for key, value in change.items()}
    return merged if isinstance(base, dict) else list(merged.values())


def _children(tree: Any) -> _Tree:
    if isinstance(tree, list):
        return {str(number): item for number, item in enumerate(tree)}
    return tree if isinstance(tree, dict) else {}


# Checking


def _misplaced(kind: Any, layer: _Source, above: Collection[_Key]) -> Iterator[_Mistake]:
    """Finds values in the place of a section, which a merge with keys below it would drop.

    `above` has the keys with further keys below them in an override.
    """
    for key, value in _plain_values(layer.tree):
        in_a_list = any(typing.get_origin(_field(kind, key[:depth])[0]) is tuple for depth in range(len(key)))
        section = None if in_a_list else _field(kind, key)[0]
        names = _fields(section)
        null = value is None and (not names or type(None) in typing.get_args(section))
        below = typing.get_origin(section) is dict or (key in above and not isinstance(value, list))
        if (names or below) and not null:
            yield key, f"expected a section with keys of its own, got {shown(value)}; {_inside(section, key, value)}"


def _plain_values(tree: _Tree, above: _Key = ()) -> Iterator[tuple[_Key, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _plain_values(value, (*above, name))
        else:
            yield (*above, name), value


def validated(kind: type[Kind], tree: _Tree, context: Mapping[str, Any] | None) -> tuple[Kind | None, list[_Mistake]]:
    """The configuration of a tree of values, or None with the keys that are wrong and the words on each."""
    try:
        # As JSON, because a strict model then accepts a list as a tuple and a mapping as a section.
        return kind.model_validate_json(json.dumps(tree), context=context), []
    except ValidationError as error:
        mistakes = [_mistake(kind, detail) for detail in error.errors(include_url=False)]
    except UserError as error:
        dotted, _, text = str(error).partition(": ")
        mistakes = [(tuple(dotted.split(".")), text)]
    # Checks across fields run after field checks and stop at the first error: validate again without these keys.
    rest = functools.reduce(_without, (key for key, _ in mistakes), tree)
    return None, mistakes + (validated(kind, rest, context)[1] if rest != tree else [])


def _without(tree: _Tree, key: _Key) -> _Tree:
    """Removes the value that the key names, or the list that contains it."""
    first, *deeper = key
    others = {name: value for name, value in tree.items() if name != first}
    inner = tree.get(first)
    return {**others, first: _without(inner, tuple(deeper))} if deeper and isinstance(inner, dict) else others


def _mistake(kind: type[BaseModel], detail: Mapping[str, Any]) -> _Mistake:
    key = tuple(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return key, f"unknown key; {_nearest(kind, key, detail['input'])}"
    section, about = _field(kind, key)
    said = complaint(detail, about)
    return key, f"{said}; {_inside(section, key, detail['input'])}" if "section" in said else said


def _inside(section: Any, key: _Key, value: Any) -> str:
    """What to write in place of a value that stands where a section has keys of its own."""
    names = list(_fields(section))
    text = value if isinstance(value, str) else json.dumps(value)
    near = next(
        (f"did you mean {'.'.join((*key, name))}={text}?" for name in names if _accepts(section, name, value)), ""
    )
    return near or f"write {'.'.join((*key, names[0] if names else 'NAME'))}=..., for example"


def _accepts(section: Any, name: str, value: Any) -> bool:
    kinds = [part for part in (section, *typing.get_args(section)) if isinstance(part, type)]
    if value is None or not issubclass(kinds[0], BaseModel):
        return False
    try:
        kinds[0].model_validate_json(json.dumps({name: value}))
    except ValidationError as error:
        return all(detail["loc"][0] != name for detail in error.errors())
    except UserError:
        pass  # a check across fields
    return True


def _origin(layers: Sequence[_Source], key: _Key) -> str:
    """Returns the origin of the last layer with the key, or with its longest prefix."""

    def held(tree: _Tree) -> int:
        for depth, part in enumerate(key):
            if part not in _children(tree):
                return depth
            tree = _children(tree)[part]
        return len(key)

    nearest = max(reversed(layers), key=lambda layer: held(layer.tree), default=_Source("defaults", {}))
    return nearest.origin


# Keys that exist


@functools.cache
def _fields(kind: Any) -> dict[str, tuple[Any, str]]:
    """Returns key -> (type, description) of a section, which may be optional; empty for a plain value."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: (field.annotation, field.description or "") for name, field in kind.model_fields.items()}
    if kind is Algorithm:
        parts = dict.fromkeys(KINDS, (None, ""))
        options = {name: (hint, "") for kinds in KINDS.values() for kind in kinds for name, hint in hints(kind).items()}
        return {"name": (str, ""), **options, **parts}
    return {}


def _field(kind: Any, key: _Key) -> tuple[Any, str]:
    """Returns type and description of the key's field."""
    about = ""
    for part in key:
        fields = _fields(kind)
        item = (None if fields else next(iter(typing.get_args(kind)), None), about)
        kind, about = fields.get(part, item)
    return kind, about


def _all_keys(kind: Any, above: _Key = ()) -> Iterable[_Key]:
    for name, (inner, _) in _fields(kind).items():
        yield (*above, name)
        yield from _all_keys(inner, (*above, name))


def advice(kind: type[BaseModel], dotted: str) -> str:
    """What to write in place of a key that does not exist; empty where it exists."""
    key = tuple(dotted.split("."))
    return "" if key in set(_all_keys(kind)) else _nearest(kind, key)


def _nearest(kind: type[BaseModel], key: _Key, value: Any = None) -> str:
    theirs = key[-1]
    while isinstance(value, dict) and len(value) == 1:  # verl's data.train_batch_size stops at data
        ((theirs, value),) = value.items()
    siblings = {name: (*key[:-1], name) for name in _fields(_field(kind, key[:-1])[0])}
    anywhere = {other[-1]: other for other in _all_keys(kind)}
    if (name := key[-1].lower().replace("-", "_")) in anywhere:
        return f"did you mean {'.'.join(anywhere[name])}?"
    if "steps" in kind.model_fields and (hint := name_here(theirs)):  # the configuration of a run
        return hint
    for valid in (siblings, anywhere):
        if name := nearest_name(key[-1], valid) or "":
            return f"did you mean {'.'.join(valid[name])}?"
    return f"expected one of {', '.join(siblings)}"
