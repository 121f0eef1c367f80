"""The code and the servers that a run names: which of them this user knows, and whether a resume has the same code.

A run directory can come from anybody, and its config.yaml names Python files and addresses. So `train` remembers, for
the user, the path and the SHA-256 of each code file that it ran, and each server with the variable of its key; what
only a run's config.yaml names must be among them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from grouprl.config.code_files import read_code
from grouprl.config.own_algorithm import is_in_file, load_algorithm, place_of
from grouprl.config.run import RunConfig, load_config
from grouprl.files import read_file
from grouprl.models.names import PLAIN, QUESTION
from grouprl.record.layout import is_config_of_a_run
from grouprl.types import UserError


def refuse_foreign_code(config: RunConfig, files: Sequence[Path], trusted: Collection[str]) -> None:
    """Checks the code files and the servers of a configuration that come from the config.yaml of a run.

    Args:
        config: the configuration that is about to run.
        files: the files that it was read from; the config.yaml of a run is recognized by the files beside it.
        trusted: paths of code files and addresses of servers that the user trusts by name.

    Raises:
        UserError: a run names a code file that the user neither ran here, unchanged, nor trusts; or a server that no
            run of the user has sent completions to, with that key.
    """
    wanted, remembered = _named(config), _remembered()
    trusted_paths = {Path(path).resolve() for path in trusted}
    for file in files:
        if not is_config_of_a_run(file):
            continue
        got = load_config(RunConfig, [file], [])
        for server in sorted(servers(got) & servers(config) - remembered):
            address, key = server.split("  ")
            if address not in trusted:
                raise UserError(
                    f"{file}: names the server {address}, which none of your runs has used"
                    f"{f' with the key in {key}' if key else ''}: it would get prompts and completions; check it, and "
                    f"add --trust-code {address}, or change the setting"
                )
        for path, digest in _named(got).items():
            if path in wanted and path not in trusted_paths and f"{digest}  {path}" not in remembered:
                raise UserError(
                    f"{file}: names the code file {path}, which you have not run here in this form: read it, and add "
                    f"--trust-code {path} to run it, or change the setting (a file that it imports is such a file, too)"
                )


def trusted_config(files: Sequence[Path], overrides: Sequence[str]) -> RunConfig:
    """Reads a run's configuration whose code may run, an algorithm in a file included.

    Raises:
        UserError: see `load_config` and `refuse_foreign_code`.
    """
    config = load_config(RunConfig, files, overrides)
    refuse_foreign_code(config, files, ())
    if is_in_file(config.algorithm.name):
        load_algorithm(config.algorithm.name)
    return load_config(RunConfig, files, overrides)


def load_known_algorithm(name: str) -> None:
    """Loads an algorithm if it is in a file that this user has run in this form."""
    file = place_of(name)[0]
    code = read_code(file) if os.path.lexists(file) else {}
    if code and {f"{_sha256(source)}  {path}" for path, source in code.items()} <= _remembered():
        load_algorithm(name)


def remember(code: Mapping[str, Any], config: RunConfig) -> None:
    """Remembers the code files and the servers of a run that begins for this user; `code` is that of `run.code`."""
    lines = {f"{digest}  {Path(path).resolve()}" for path, digest in code["files"].items()} | servers(config)
    lines |= {f"{_sha256(source)}  {path}" for path, source in _templates(config).items()}
    new = sorted(lines - _remembered())
    # A home that cannot be written has no list: its user names the files with --trust-code.
    with suppress(OSError):
        if new:
            _list().parent.mkdir(parents=True, exist_ok=True)
            with _list().open("a", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in new))


def servers(config: RunConfig) -> set[str]:
    """The servers of a configuration, as `ADDRESS  VARIABLE` with the variable of the key that they get, or nothing."""
    arguments = [reward.arguments for reward in config.rewards] + [config.task.arguments]
    lines = {f"{url['base_url']}  {url.get('api_key_env') or ''}" for url in arguments if "base_url" in url}
    # What a Ray cluster answers is unpickled.
    lines |= {f"{config.cluster.address}  "} if config.cluster.address else set()
    engine = config.rollout.engine
    addresses = [engine.address, *engine.addresses]
    return lines | {f"{address}  {engine.token_env or ''}" for address in addresses if address}


def _named(config: RunConfig) -> dict[Path, str]:
    """The digests of a configuration's code by path: rewards, verifiers such as FILE.py:FUNCTION, an algorithm, the
    modules beside them that they import, and a chat template.
    """
    algorithm = config.algorithm.name
    paths = [str(place_of(algorithm)[0])] if is_in_file(algorithm) else []
    paths += [reward.path for reward in config.rewards if reward.path is not None]
    paths += [value.rpartition(":")[0] for value in config.task.arguments.values() if isinstance(value, str)]
    code: dict[Path, bytes] = {}
    for path in paths:
        if path.endswith(".py") and os.path.lexists(path):
            code |= {Path(file).resolve(): source for file, source in read_code(Path(path)).items()}
    return {path: _sha256(source) for path, source in (code | _templates(config)).items()}


def _templates(config: RunConfig) -> dict[Path, bytes]:
    template = config.model.chat_template
    source = None if template in (None, PLAIN, QUESTION) else read_file(Path(template))
    return {} if template is None or source is None else {Path(template).resolve(): source}


def _list() -> Path:
    """The list of this user, in the form of `sha256sum`."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "grouprl" / "code.sha256"


def _remembered() -> set[str]:
    with suppress(OSError):
        return set(_list().read_text(encoding="utf-8").splitlines())
    return set()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
