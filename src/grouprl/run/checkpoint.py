"""Checkpoints: folders in Hugging Face layout that anyone can load, with the state of the run in `trainer/`."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from grouprl.files import read_json
from grouprl.learner import Learner
from grouprl.models.adapters import is_adapter, merge_adapter
from grouprl.models.load import load_model, load_tokenizer
from grouprl.models.manifest import MANIFEST, check_manifest, write_manifest
from grouprl.models.save import not_finite, plain_tensors, save_model, save_tensors, trained_tensors
from grouprl.models.shard import is_sharded, load_whole
from grouprl.record.files import atomic_directory, remove_directory
from grouprl.record.layout import Checkpoint, RunDirectory
from grouprl.types import Problem, UserError

_SAMPLED_PROBLEMS = 512


@dataclass(frozen=True, kw_only=True)
class TrainerState:
    """The state that a resumed run needs besides weights and optimizer; randomness has no state."""

    step: int = 0
    updates: int = 0
    train_seconds: float = 0.0
    completion_tokens: int = 0
    peak_rss_mib: float = 0.0
    start: str  # fingerprint of the weights the run started from
    data: str  # fingerprint of the train problems
    teacher: str = ""  # fingerprint of another model that teaches
    kl_coef: float
    entropy_coef: float = 0.0  # as steered
    entropy_bonus: float = 0.0  # the part of it that the next step applies
    critic_updates: int = 0
    run: str = ""  # the id of the run, see `grouprl.run.resume.run_id`

    @property
    def origin(self) -> dict[str, str | None]:
        """The fingerprints of what the run started with."""
        return {"model": self.start, "train problems": self.data, "teacher": self.teacher}


def save_checkpoint(
    run: Path,
    state: TrainerState,
    learner: Learner,
    tokenizer: PreTrainedTokenizerBase,
    *,
    keep: int,
    ahead: Callable[[Path], None] | None = None,
) -> Path:
    """Writes a complete checkpoint or none, then removes all but the newest `keep`.

    `ahead` writes the groups of the next step that were sampled already into a file. All ranks call this function,
    because sharded weights are gathered from all; rank 0 writes.

    Raises:
        UserError: a weight or a moment is not finite; nothing is written.
    """
    # A moment may overflow although each update of the weights is finite.
    named = ((f"{file}: {name}", tensor) for file, tensors in _tensors(learner) for name, tensor in tensors.items())
    bad = next(filter(None, learner.ranks.gather(not_finite(named), "moments that are not finite")), None)
    if bad is not None:
        raise UserError(
            f"{run}: step {state.step} is not saved: expected finite moments, got NaN or infinity in {bad}: lower "
            "learner.learning_rate or learner.max_grad_norm, and continue from the last checkpoint with --resume"
        )
    finished, sharded = RunDirectory(run).checkpoint(state.step), is_sharded(learner.policy)
    policy = plain_tensors(learner.policy, keep=learner.ranks.leads) if sharded else None
    if not learner.ranks.leads:
        for _, tensors in _tensors(learner) if sharded else ():
            save_tensors(None, tensors)
        return finished.path
    with atomic_directory(finished.path) as folder:
        unfinished = Checkpoint(folder, state.step)
        save_model(learner.policy, tokenizer, folder, tensors=policy)
        unfinished.trainer.mkdir()
        for name, tensors in _tensors(learner):
            save_tensors(unfinished.tensors(name), tensors)
        if ahead is not None:
            ahead(unfinished.ahead)
        unfinished.state.write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
        write_manifest(folder)
    prune_checkpoints(run, keep)
    return finished.path


def merge_checkpoint(adapter: str, out: Path) -> None:
    """Writes the model of an adapter's folder with the adapter merged into its weights.

    Raises:
        UserError: the folder holds no adapter, or `out` is there already.
    """
    if not is_adapter(adapter):
        got = "a whole model: use it as it is" if (Path(adapter) / "config.json").is_file() else "none: check the path"
        raise UserError(f"{adapter}: expected the folder of a LoRA adapter, got {got}")
    _refuse_files(out)
    model = load_model(adapter, device=torch.device("cpu"))
    merge_adapter(model)
    with atomic_directory(out) as folder:
        save_model(model, load_tokenizer(adapter), folder)


def copy_model(checkpoint: Checkpoint, out: Path) -> Path:
    """Copies the model of a checkpoint, without the state of its run, into a new folder.

    Raises:
        UserError: the folder has files.
    """
    _refuse_files(out)
    with atomic_directory(out) as folder:
        beside = shutil.ignore_patterns(checkpoint.trainer.name, MANIFEST)
        shutil.copytree(checkpoint.path, folder, ignore=beside, dirs_exist_ok=True)
    return out


def _refuse_files(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: expected a new or empty folder, got one with files: choose another one")


def prune_checkpoints(run: Path, keep: int) -> None:
    """Removes all but the newest `keep` checkpoints."""
    for old in RunDirectory(run).checkpoints()[:-keep]:
        remove_directory(old.path)


def _tensors(learner: Learner) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yields what a resume needs in addition to the policy, by file name."""
    yield "optimizer", learner.optimizer.moments()
    if learner.critic is not None:
        yield "critic", trained_tensors(learner.critic.critic)
        yield "critic_optimizer", learner.critic.optimizer.moments()
    if learner.reference is not None and learner.algorithm.moves_reference:
        yield "reference", learner.reference.state_dict()


def read_state(checkpoint: Checkpoint) -> TrainerState:
    """Checks every file of a checkpoint against its manifest, then reads the state.

    Raises:
        UserError: a file differs, the state belongs to another step, run or version, or a number is not finite.
    """
    check_manifest(checkpoint.path)
    state = read_json(checkpoint.state)
    expected = {field.name for field in fields(TrainerState)}
    if set(state) != expected:
        raise UserError(
            f"{checkpoint.path}: expected a state with {', '.join(sorted(expected))}, got "
            f"{', '.join(sorted(state))}: another version of GroupRL saved it; resume with that version, or start a "
            "new run from this checkpoint"
        )
    if state["step"] != checkpoint.step:
        raise UserError(f"{checkpoint.path}: expected the state after this step, got step {state['step']!r}")
    run = read_json(RunDirectory(checkpoint.path.parents[1]).code).get("run", state["run"])
    if state["run"] != run:
        raise UserError(
            f"{checkpoint.path}: expected a checkpoint of this run ({run}), got one of another run ({state['run']}): "
            "restore the run's own checkpoint"
        )
    for path in sorted(checkpoint.path.rglob("*.safetensors")):
        if (name := not_finite(_TensorFile(path).items())) is not None:
            raise UserError(f"{path}: expected finite numbers, got NaN or infinity in {name}: use another checkpoint")
    return TrainerState(**state)


class _TensorFile(Mapping[str, Tensor]):
    """The tensors of a file, each read when it is asked for: every rank loads, and needs its part alone."""

    def __init__(self, path: Path) -> None:
        self._file: Any = safe_open(path, framework="pt")

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.keys())

    def __len__(self) -> int:
        return len(self._file.keys())


def load_learner(checkpoint: Checkpoint, learner: Learner, state: TrainerState) -> None:
    """Restores everything but the policy's weights: optimizers, critic, coefficients, reference."""

    def saved(name: str) -> _TensorFile:
        return _TensorFile(checkpoint.tensors(name))

    learner.optimizer.load_state(saved("optimizer"), state.updates)
    learner.kl_coef = state.kl_coef
    learner.entropy_coefs = (state.entropy_coef, state.entropy_bonus)
    if learner.critic is not None:
        load_whole(learner.critic.critic, saved("critic"))  # frozen weights are not saved
        learner.critic.optimizer.load_state(saved("critic_optimizer"), state.critic_updates)
    if learner.reference is not None and learner.algorithm.moves_reference:
        load_whole(learner.reference, saved("reference"))


def problems_fingerprint(problems: Sequence[Problem]) -> str:
    """Hashes the problems: all that are in memory, or 512 evenly spaced ones of a procedural task."""
    # Making the 20,000 problems of word_problems takes seconds, and a resume compares their settings as well.
    stride = 1 if isinstance(problems, list | tuple) else max(1, len(problems) // _SAMPLED_PROBLEMS)
    digest = hashlib.blake2b(str(len(problems)).encode(), digest_size=16)
    for index in range(0, len(problems), stride):
        problem = problems[index]
        prompt = problem.prompt if isinstance(problem.prompt, str) else [dict(message) for message in problem.prompt]
        columns = sorted((name, repr(value)) for name, value in problem.columns.items())
        digest.update(repr((problem.id, prompt, columns)).encode())
    return digest.hexdigest()
