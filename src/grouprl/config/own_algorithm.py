"""An algorithm in a user's file, `algorithm=FILE.py:NAME`, which runs in the run's own process.

`load_config` never runs the file, which somebody else's run may name: it takes the algorithm that `load_algorithm`
has loaded in this process, or what a record has of it, marked as `missing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from grouprl.algorithms.spec import Algorithm
from grouprl.config.code_files import error_in_code, forget_modules, import_code, read_code
from grouprl.types import UserError, unknown_name

# By file and name, with the sources that ran: a file may be edited as soon as its run has begun.
_LOADED: dict[tuple[Path, str], tuple[Algorithm, dict[str, bytes]]] = {}


def is_in_file(name: object) -> bool:
    """Whether a name is `FILE.py:NAME`."""
    return isinstance(name, str) and ".py:" in name


def place_of(name: str) -> tuple[Path, str]:
    """The file of `FILE.py:NAME`, and the name in it."""
    file, _, attribute = name.rpartition(":")
    return Path(file).expanduser().resolve(), attribute


def loaded_algorithm(name: str) -> tuple[Algorithm | None, Mapping[str, bytes]]:
    """The algorithm under this name and its sources by path, as they ran; None and nothing before they ran here."""
    algorithm, code = _LOADED.get(place_of(name), (None, {}))
    return algorithm and replace(algorithm, name=name), code


def load_algorithm(name: str) -> None:
    """Runs the file of `FILE.py:NAME`, unless it ran in this process as it is.

    Raises:
        UserError: there is no such file, it fails, or it has no algorithm of this name.
    """
    path, attribute = place_of(name)
    code = read_code(path)
    if loaded_algorithm(name)[1] == code:
        return
    forget_modules()
    try:
        module = import_code(str(path), code, path.name)  # with .py: no import has this name
    except Exception as error:  # a program, which can raise anything
        raise UserError(f"algorithm={name}: {error_in_code(error) or error}") from error
    algorithms = {key: value for key, value in vars(module).items() if isinstance(value, Algorithm)}
    if not algorithms:
        raise UserError(f"algorithm={name}: expected an Algorithm in {path}, got none: write NAME = Algorithm(...)")
    if attribute not in algorithms:
        raise unknown_name(f"algorithm={name}", attribute, algorithms)
    _LOADED[path, attribute] = algorithms[attribute], code
