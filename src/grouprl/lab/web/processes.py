"""Starts, stops, resumes and forks runs: each is a process of its own, which outlives the lab."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

import yaml

from grouprl.algorithms.named import NAMED
from grouprl.config import RunConfig, dump_config, load_config
from grouprl.lab.files import atomic_write_text, json_text
from grouprl.lab.read import read_json, read_json_lines
from grouprl.lab.rollouts import drop_after, open_rollouts
from grouprl.lab.web.runs import Runs, holder, read_config
from grouprl.types import UserError

RECIPES = Path(__file__).parents[2] / "recipes"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CHANGE = re.compile(r"[a-z][a-z0-9_]*(\.[A-Za-z0-9_-]+)*=.*", re.DOTALL)
_START_SECONDS = 120.0  # in which a run that cannot start says so; asking a hub in vain takes half a minute
_SAID = 4000  # bytes of a process's last words


def recipes() -> list[dict[str, str]]:
    """The bundled recipes that train a policy, with what their first comment says of them."""
    found = []
    for path in sorted(RECIPES.glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        comment = " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
        if set(yaml.safe_load(text)) <= set(RunConfig.model_fields):  # the others are of other verbs
            found.append({"name": path.stem, "comment": comment, "text": text})
    return found


def start(runs: Runs, recipe: str, name: str, changes: Sequence[str]) -> str:
    """Starts a run of a bundled recipe; gives its id.

    Raises:
        UserError: no such recipe, a name that is taken or no name, a mistake in the changes, or the run ended at once.
    """
    file = RECIPES / f"{recipe}.yaml"
    if recipe not in {one["name"] for one in recipes()}:
        raise UserError(f"expected one of the recipes {', '.join(one['name'] for one in recipes())}, got {recipe!r}")
    folder = _new_folder(runs, name)
    _checked([file], changes)
    _spawn(runs, folder, [str(file), *changes])
    return runs.identifier(folder)


def stop(runs: Runs, run: str) -> None:
    """Asks a run to finish its step, save and end (Ctrl-C).

    Raises:
        UserError: it is not running, or not as a process of this machine and user.
    """
    folder = runs.folder(run)
    process = holder(folder)
    if process is None:
        raise UserError(f"{folder.name} is not running")
    try:
        # The lock says who has the directory; an id that was copied from another machine has no lock here.
        if process <= 0:
            raise ProcessLookupError
        os.kill(process, signal.SIGINT)
    except (ProcessLookupError, PermissionError):
        raise UserError(f"{folder.name} is run by process {process}, which cannot be reached from here") from None


def resume(runs: Runs, run: str, changes: Sequence[str]) -> str:
    """Goes on with a stopped run; of the settings those may change that `--resume` allows.

    Raises:
        UserError: it is running, a mistake in the changes, or the run ended at once.
    """
    folder = runs.folder(run)
    if holder(folder) is not None:
        raise UserError(f"{folder.name} is running")
    _checked([folder / "config.yaml"], changes)
    _spawn(runs, folder, [*changes], "--resume")
    return run


def fork(runs: Runs, run: str, step: int, name: str, changes: Sequence[str]) -> str:
    """Another run that shares the steps up to a checkpoint, and goes on from there with changed settings.

    Raises:
        UserError: no such checkpoint, a name that is taken or no name, or a mistake in the changes; nothing is left.
    """
    source, target = runs.folder(run), _new_folder(runs, name)
    checkpoint = f"step-{step:06d}"
    if not (source / "checkpoints" / checkpoint / "trainer" / "state.json").is_file():
        raise UserError(f"{source.name}: expected a checkpoint of step {step}, found none: choose one that is there")
    place = [f"name={target.name}", f"runs_dir={json_text(str(target.parent))}"]
    config = _checked([source / "config.yaml"], changes, place)
    copied = target.with_name(f".{target.name}.fork")
    shutil.rmtree(copied, ignore_errors=True)
    try:
        copied.mkdir(parents=True)
        _copy_until(source, copied, step)
        shutil.copytree(source / "checkpoints" / checkpoint, copied / "checkpoints" / checkpoint)
        _set_kl(copied / "checkpoints" / checkpoint / "trainer" / "state.json", source, config)
        atomic_write_text(copied / "config.yaml", dump_config(config))
        atomic_write_text(copied / "forked.json", json_text({"from": source.name, "step": step}) + "\n")
        copied.rename(target)
    finally:
        shutil.rmtree(copied, ignore_errors=True)
    _spawn(runs, target, [], "--resume")
    return runs.identifier(target)


def _set_kl(state: Path, source: Path, config: RunConfig) -> None:
    """A checkpoint holds the coefficient of its step, which may have moved; one that was changed counts instead."""
    if read_config(source).get("algorithm", {}).get("kl_coef") != config.algorithm.kl_coef:
        atomic_write_text(state, json_text({**read_json(state), "kl_coef": config.algorithm.kl_coef}, indent=2) + "\n")


def _copy_until(source: Path, target: Path, step: int) -> None:
    """The record of the steps up to this one."""
    for name in ("metrics.jsonl", "evaluations.jsonl", "held_out.jsonl"):
        kept = [row for row in read_json_lines(source / name) if row["step"] <= step]
        atomic_write_text(target / name, "".join(json_text(row) + "\n" for row in kept))
    with closing(open_rollouts(_uri(target / "rollouts.sqlite"))) as copy:
        copy.execute("ATTACH ? AS source", (_uri(source / "rollouts.sqlite") + "?mode=ro",))
        with copy:
            copy.execute("INSERT INTO completions SELECT * FROM source.completions WHERE step <= ?", (step,))
            copy.execute("INSERT INTO problems SELECT * FROM source.problems")
        drop_after(copy, step)


def _uri(path: Path) -> str:
    return f"file:{quote(str(path.resolve()))}"


def _new_folder(runs: Runs, name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise UserError(f"expected a name of letters, digits, '.', '_' and '-', got {name[:60]!r}")
    folder = runs.root / name
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{name}: there is such a folder already, choose another name")
    return folder


def _checked(files: Sequence[Path], changes: Sequence[str], place: Sequence[str] = ()) -> RunConfig:
    wrong = [change for change in changes if not _CHANGE.fullmatch(change)]
    if wrong:
        raise UserError(f"expected changes such as rollout.group_size=16, got {wrong[0][:60]!r}")
    moved = [change for change in changes if change.partition("=")[0] in ("name", "runs_dir")]
    if moved:
        raise UserError(f"{moved[0][:60]}: a run of the lab lies where its name says; give the name in its own field")
    named = {"algorithm": {name: asdict(algorithm) for name, algorithm in NAMED.items()}}
    return load_config(RunConfig, files, [*changes, *place], named=named)


def _spawn(runs: Runs, folder: Path, settings: Sequence[str], *options: str) -> None:
    """Starts `grouprl train`, and waits until it has its directory or has ended."""
    log = runs.root / ".lab" / f"{runs.identifier(folder)}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    place = [f"runs_dir={json_text(str(folder.parent))}"]
    words = [sys.executable, "-m", "grouprl.cli", "train", "--name", folder.name, *options, "--", *settings, *place]
    with log.open("wb") as said:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
    ends = time.monotonic() + _START_SECONDS
    while time.monotonic() < ends and holder(folder) is None:
        if process.poll() is not None:
            words_left = log.read_bytes()[-_SAID:].decode("utf-8", "replace").strip()
            raise UserError(words_left or f"the run ended at once, with code {process.returncode}")
        time.sleep(0.05)
