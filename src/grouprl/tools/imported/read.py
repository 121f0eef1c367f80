"""Reads a configuration of TRL or verl: a YAML or JSON file, or verl's overrides, in a file or as arguments."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from grouprl.config.yaml_text import read_yaml
from grouprl.files import opened, refuse_depth
from grouprl.tools.imported.references import scalar
from grouprl.types import UserError

Library = Literal["trl", "verl"]
_OF_VERL = {"actor_rollout_ref", "trainer", "data", "algorithm", "critic", "reward_model", "custom_reward_function"}
_MOST_BYTES, _MOST_KEYS = 2**18, 2000  # the largest resolved configuration of verl has 40 KB and 450 keys
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w-]*(?:\.[\w-]+)+)=(.*)|~([A-Za-z_][\w.-]*)(?:=.*)?", re.DOTALL)
"""KEY.KEY=VALUE, as Hydra reads it; `+` and `++` add a key, `~` removes one."""
_SETTING = re.compile(r"[+]{0,2}[A-Za-z_][\w.-]*=.*|[-]-[A-Za-z].*|~[A-Za-z].*", re.DOTALL)
_LAUNCHER = re.compile(r"(.*/)?(accelerate|torchrun|trl|python[\d.]*|deepspeed|uv|srun)|[A-Z_]+=.*", re.DOTALL)
_PROCESSES = re.compile(r"--(?:num_processes|nproc[-_]per[-_]node|num_gpus)[= ](\d+)")
_OF_DATA = (".jsonl", ".parquet", ".csv", ".tsv", ".arrow", ".gz")
_MAPPINGS = ("data.apply_chat_template_kwargs",)  # a key whose value is a mapping: what is below belongs to it


@dataclass(frozen=True)
class Foreign:
    """A configuration as it was written: whose it is, and the values by key, of verl by dotted key."""

    library: Library
    values: Mapping[str, Any]
    world: int | None = None  # processes that train, where a launch says it


def read_words(words: Sequence[str]) -> tuple[Path | None, Foreign]:
    """Reads the words behind `import-config`: a file and changes, or settings alone, or the command of a launch.

    Returns:
        The file, None without one; and the configuration.

    Raises:
        UserError: see `read_foreign`.
    """
    if os.path.exists(words[0]):
        return Path(words[0]), read_foreign(Path(words[0]), words[1:])
    settings, world = list(words), None
    if _LAUNCHER.fullmatch(words[0]):
        script = next((at for at, word in enumerate(words) if word.endswith(".py") or word == "grpo"), None)
        script = script if script is not None else words.index("-m") + 1 if "-m" in words else -1
        world = next((int(number) for number in _PROCESSES.findall(" ".join(words))), None)
        settings = list(words[script + 1 :]) if script >= 0 else []
        settings = shlex.split(_PROCESSES.sub("", shlex.join(settings)))
    elif not _SETTING.fullmatch(words[0]):
        return Path(words[0]), read_foreign(Path(words[0]), words[1:])
    if not settings:
        raise UserError(f"{' '.join(words):.80}: expected a command with settings, got none: give KEY=VALUE or a file")
    file = next((at for at, word in enumerate(settings) if word == "--config"), None)
    path = None if file is None else Path("".join(settings[file + 1 : file + 2]))
    left = settings if file is None else settings[:file] + settings[file + 2 :]
    foreign = read_foreign(path, left)
    return path, replace(foreign, world=world)


def read_foreign(path: Path | None, changes: Sequence[str] = ()) -> Foreign:
    """Reads a file of TRL or verl.

    Args:
        path: the file; None = `changes` are all settings, as the command lines of TRL and verl have them.
        changes: KEY=VALUE, or TRL's --KEY VALUE, in place of what the file says.

    Raises:
        UserError: the file is missing, too large, of another program, cannot be read, or has no settings.
    """
    is_verl = any(map(_OVERRIDE.fullmatch, changes))
    library: Library = "verl" if is_verl else "trl"
    values: dict[str, Any] = {}
    if path is not None:
        library, values = _read(path)
    flag, texts = "", list[str]()
    for change in changes:
        key, equals, text = change.lstrip("+-").partition("=")
        if change.startswith("~"):
            values = {name: value for name, value in values.items() if not f"{name}.".startswith(f"{key[1:]}.")}
        elif change.startswith("--"):
            flag, texts = "" if equals else key.replace("-", "_"), []
            values[key.replace("-", "_")] = scalar(text) if equals else True
        elif equals and _SETTING.fullmatch(change):
            flag, values[key] = "", scalar(text)
        elif flag:
            texts.append(change)
            values[flag] = scalar(change) if len(texts) == 1 else [scalar(item) for item in texts]
        else:
            raise UserError(f"{change}: expected KEY=VALUE with a key of {path or library}: write it so")
    if len(values) > _MOST_KEYS:
        raise UserError(f"{path}: expected at most {_MOST_KEYS} keys, got {len(values)}: give one configuration")
    return Foreign(library, _joined(values) if library == "verl" else values)


def _overrides(words: Sequence[str]) -> dict[str, Any] | None:
    """The values of verl's overrides by key; None where a word is none."""
    matches = [_OVERRIDE.fullmatch(word) for word in words]
    return {match[1]: scalar(match[2]) for match in matches if match and match[1]} if words and all(matches) else None


def _read(path: Path) -> tuple[Library, dict[str, Any]]:
    if path.suffix in _OF_DATA:
        raise UserError(
            f"{path}: expected a configuration of TRL or verl, got a data file: train on it with grouprl train --task "
            f"{path}"
        )
    with opened(path) as file:
        data = b"" if file is None else file.read(_MOST_BYTES + 1)
    why = "no such file" if file is None else f"more than {_MOST_BYTES} bytes" if len(data) > _MOST_BYTES else ""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        why = why or "not text"
    if why:
        raise UserError(f"{path}: expected a YAML or JSON file, got {why}: check the path")
    first = text.partition("\n")[0]
    if path.suffix == ".py" or (first.startswith("#!") and "python" in first):
        raise UserError(
            f"{path}: expected YAML or JSON, got a Python script, which import-config does not run: "
            "write its GRPOConfig(...) as YAML with the same keys; docs/coming_from.md has such a script beside ours"
        )
    if re.search(r"\bopenrlhf[./]cli\b", text):
        raise UserError(
            f"{path}: expected a configuration of TRL or verl, got a script of OpenRLHF, which has no importer: "
            "docs/keys/openrlhf.md has each of its options and the setting here"
        )
    if path.suffix in (".sh", ".bash", ".slurm", ".sbatch") or (first.startswith("#!") and "sh" in first):
        raise UserError(
            f"{path}: expected YAML, JSON or verl's overrides, got a shell script, which import-config does not run: "
            "paste the KEY=VALUE that it passes to verl behind the command, grouprl import-config KEY=VALUE ..., or "
            "into a text file; for TRL, give the YAML of --config"
        )
    words = list[str]()
    with suppress(ValueError):  # a quote is open, as in YAML: it is no pasted command
        words = shlex.split(re.sub(r"\\[ \t\r]*(\n|$)", " ", text), comments=True)
    if pasted := _overrides(words):
        return "verl", pasted
    try:
        tree = json.loads(text) if path.suffix == ".json" else read_yaml(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{path}: expected YAML or JSON, got {' '.join(str(error).split())}: correct it") from error
    refuse_depth(tree, path)
    if isinstance(tree, list) and all(isinstance(item, str) for item in tree) and (listed := _overrides(tree)):
        return "verl", listed  # Hydra's .hydra/overrides.yaml
    if not isinstance(tree, dict) or not tree:
        strange = next((word for word in words if not _OVERRIDE.fullmatch(word)), "none")
        raise UserError(
            f"{path}: expected lines of KEY: VALUE, or verl's overrides KEY=VALUE alone, got {strange:.60}: give a "
            "configuration of TRL or verl"
        )
    if any(isinstance(tree.get(key), dict) for key in _OF_VERL):
        return "verl", dict(_dotted(tree))
    return "trl", tree


def _dotted(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _dotted(value, f"{above}{name}.")
        elif name not in ("_target_", "hydra", "defaults"):
            yield f"{above}{name}", value


def _joined(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with the keys below a mapping joined to it."""
    joined: dict[str, Any] = {}
    for key, value in values.items():
        above = next((mapping for mapping in _MAPPINGS if key.startswith(f"{mapping}.")), None)
        if above is None:
            joined[key] = value
        else:
            inner = joined.get(above)
            joined[above] = {**(inner if isinstance(inner, dict) else {}), key.removeprefix(f"{above}."): value}
    return joined
