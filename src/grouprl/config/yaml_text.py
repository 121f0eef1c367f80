"""The YAML of configurations: the core schema of version 1.2, restricted to values that JSON has.

PyYAML's own rules are those of version 1.1: `1e-6` is text there, `no` is false, `1:30` is 90, `2024-01-01` a date.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import yaml


def read_yaml(source: str | bytes) -> Any:
    """Reads one document. Raises yaml.YAMLError, also for a key written twice, an alias or a tag such as !!set."""
    try:
        return copy.deepcopy(_read_once(source))
    except RecursionError:
        raise yaml.YAMLError("nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits
        raise yaml.YAMLError(str(error)) from None


@lru_cache(maxsize=16)
def _read_once(source: str | bytes) -> Any:
    # PyYAML takes 20 ms for a configuration; a resume asks for the same one 4 times, a report of a run 35 times.
    return yaml.load(source, _JsonLoader)


def line_of(document: bytes, key: Sequence[str]) -> int:
    """Returns the line, from 1, where a document has a key, or the longest part of it that it has; items by number."""
    node, line = yaml.compose(document, _JsonLoader), 1
    for part in key:
        if isinstance(node, yaml.MappingNode):
            children = {name.value: (name, value) for name, value in node.value}
        elif isinstance(node, yaml.SequenceNode):
            children = {str(index): (value, value) for index, value in enumerate(node.value)}
        else:
            children = {}
        if part not in children:
            break
        name, node = children[part]
        line = name.start_mark.line + 1
    return line


def write_yaml(tree: Any) -> str:
    """Writes lists, mappings and plain values so that `read_yaml` returns them, with keys in their order."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _core_scalars() -> dict[str | None, list[tuple[str, re.Pattern[str]]]]:
    patterns = {
        "null": r"~|null|Null|NULL|",
        "bool": r"true|True|TRUE|false|False|FALSE",
        "int": r"[-+]?(0|[1-9][0-9_]*)",
        "float": r"[-+]?((0|[1-9][0-9_]*)(\.[0-9_]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    }
    # PyYAML looks under None whatever a scalar begins with.
    return {None: [(f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{text})\\Z")) for tag, text in patterns.items()]}


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _core_scalars()


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Other line breaks than \n are folded into spaces when they are read, unless they are escaped.
    style = '"' if re.search("[\x85\u2028\u2029]", text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


class _JsonLoader(yaml.SafeLoader):
    """Reads only values that JSON has: no dates, sets or aliases; keys are text and unique."""

    yaml_implicit_resolvers = _core_scalars()
    yaml_constructors: ClassVar[dict[Any, Callable[..., Any]]] = {
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in ("null", "bool", "int", "float", "str", "seq", "map")
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "expected the value itself, got an alias (*name)")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        mapping: dict[Hashable, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refused("expected text as a key, got a list or mapping", key)
            if key.value in mapping:
                raise _refused(f"expected every key once, got {key.value!r} again", key)
            mapping[key.value] = self.construct_object(value, deep=True)
        return mapping


def _refused(complaint: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, complaint, node.start_mark)
