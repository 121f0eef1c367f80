"""One completion, token by token: its text, and what sampler, learner, reference and update made of each token."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache, lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from grouprl.algorithms import kl_estimate
from grouprl.algorithms.spec import Algorithm
from grouprl.algorithms.stages import cut_sides
from grouprl.config.algorithm import all_options
from grouprl.files import is_number, read_file
from grouprl.lab.report.episodes import conversation
from grouprl.lab.report.recorded import read_config, run_algorithm
from grouprl.leaves import find_leaf
from grouprl.record.branches import read_branches
from grouprl.record.layout import RunDirectory
from grouprl.record.queries import completion_rows, recorded
from grouprl.record.rows import parsed, truth
from grouprl.types import UserError

_PLAIN = (
    "step, group_index, completion_index, problem_id, text, reward, advantage, length, stop_reason, weights_version"
)
_BLOBS = (
    *("logprobs", "plain_logprobs", "old_logprobs"),
    *("learner_logprobs", "entropies", "reference_logprobs", "updated_logprobs"),
)
_OBJECTIVE = (
    *("surrogate", "ratio", "clip_low", "clip_high", "dual_clip"),
    *("kl_in", "kl_coef", "passes", "minibatches"),
)
_JUMP, _AROUND, _MOST_JUMPS = 4, 10, 5  # times the median, of so many neighbors; and steps that are shown
_EPISODE = 1_000_000  # characters of an episode
_NO_KL = 1e-6  # nats a token: rounding
_OF_KL = ("learner_logprobs", "reference_logprobs")
_ASSETS = Path(__file__).parents[2] / "models" / "assets"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # a piece of SentencePiece's byte fallback
_NO_CHARACTER = "\ufffd"  # what decoding gives for bytes that are none


def one_completion(
    folder: Path, step: int, group: int, index: int, *, root: Path, most: int = _EPISODE
) -> dict[str, Any]:
    """Everything that is recorded of the tokens of a completion, and what follows from it.

    Args:
        folder: the run directory.
        step: of the completion.
        group: its group's index there.
        index: its own in the group.
        root: the folder of runs; no tokenizer outside it is read, bundled ones apart.
        most: characters of an episode.

    Returns:
        The completion's own columns; `episode`, see `conversation`; `tokens` (see `token_texts`; texts are None without
        a tokenizer) and `tokenizer`, where their texts come from. Then lists with a number for each token, or None
        where the run did not record what they need: `advantages`; log-probs under each policy, and `entropies`, in
        nats; `probabilities`, of the distribution drawn from; `ratios` of the learner's probability to the old one,
        and `sequence_ratio`, their geometric mean; `clipped` (see `clipped_sides`); `kl`, the run's estimate in nats;
        `changes`, what the update added to the probability; `effects`, what another token changes in the reward on
        average, None at positions without branches; `branches` has these by position. `objective` holds the fields of
        the algorithm behind them.

    Raises:
        UserError: it is not recorded, or the database cannot be read.
    """
    config = read_config(folder)
    algorithm = run_algorithm(config)
    with recorded(folder) as database:
        column_names = f"{_PLAIN}, correct, step_rewards, token_ids, token_advantages, episode, {', '.join(_BLOBS)}"
        rows = completion_rows(database, column_names, step, group, index)
    if not rows:
        raise UserError(
            f"step {step}, group {group}, completion {index}: expected one that {folder.name} recorded, found none: "
            "choose one of the list (a resumed run repeats its last steps)"
        )
    row = rows[0]
    ids = np.frombuffer(row["token_ids"], "<i4").tolist()
    columns = {name: _numbers(row[name]) for name in _BLOBS}
    advantages_T = _numbers(row["token_advantages"])
    if advantages_T is None:
        advantages_T = torch.full((len(ids),), row["advantage"], dtype=torch.float64)
    named_tokenizer, settings = find_tokenizer(folder, config, root), all_options(algorithm)
    unread = [{"id": token, "text": None, "half": False} for token in ids]
    return {
        **{name: row[name] for name in _PLAIN.split(", ")},
        "correct": truth(row["correct"]),
        "step_rewards": parsed(RunDirectory(folder).rollouts, row, "step_rewards"),
        "episode": conversation(RunDirectory(folder).rollouts, row, most=most),
        "tokenizer": None if named_tokenizer is None else named_tokenizer[0],
        "tokens": unread if named_tokenizer is None else token_texts(named_tokenizer[1], ids),
        "advantages": advantages_T.tolist(),
        **{name: None if numbers_T is None else numbers_T.tolist() for name, numbers_T in columns.items()},
        **_derived(columns, advantages_T, algorithm),
        **_branched(folder, step, group, index, ids),
        "objective": {"kl": settings["kl_estimator"], **{name: settings[name] for name in _OBJECTIVE}},
    }


def kl_jumps(folder: Path, metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The steps, at most 5, whose KL is at least 4 times the median of its 10 neighbors.

    Returns:
        `jumps`: `step`, `kl`, `usual`, the median, and `token`, which has the largest part of the step's KL: `group`,
        `completion`, `token` (from 0) and `share`; None where no log-probs of the reference are recorded.

    Raises:
        UserError: the database cannot be read.
    """
    kl_by_step = [(row["step"], float(row["kl"])) for row in metrics if is_number(row.get("kl"))]
    jumps = []
    for index, (step, kl) in enumerate(kl_by_step):
        first = max(0, min(index - _AROUND // 2, len(kl_by_step) - _AROUND - 1))
        others = [abs(value) for at, value in kl_by_step[first : first + _AROUND + 1] if at != step]
        if len(others) >= _AROUND // 2 and kl > _NO_KL and kl >= _JUMP * median(others):
            jumps.append({"step": step, "kl": kl, "usual": median(others)})
    jumps = sorted(
        sorted(jumps, key=lambda jump: jump["usual"] / jump["kl"])[:_MOST_JUMPS], key=lambda jump: jump["step"]
    )
    algorithm = run_algorithm(read_config(folder))
    with recorded(folder) as database:
        return {"jumps": [{**jump, "token": _largest_token(database, jump["step"], algorithm)} for jump in jumps]}


def _largest_token(database: sqlite3.Connection, step: int, algorithm: Algorithm) -> dict[str, Any] | None:
    """Of the tokens that the step's KL is the mean of: all, or with a KL in the reward those with an advantage."""
    kind = algorithm.kl.kl_estimator if algorithm.kl else "k3"
    sums, largest = [], []
    columns = f"group_index, completion_index, length, advantage, {', '.join(_OF_KL)}"
    for row in completion_rows(database, columns, step):
        if not row["length"] or any(row[name] is None for name in _OF_KL):
            continue
        if not row["advantage"] and not algorithm.has_kl_loss:
            continue
        pair = (torch.tensor(np.frombuffer(row[name], "<f4").astype("f8")) for name in _OF_KL)
        kl_T = kl_estimate(*pair, kind=kind).abs().nan_to_num(posinf=0.0)
        sums.append(float(kl_T.sum()))
        largest.append((float(kl_T.max()), row["group_index"], row["completion_index"], int(kl_T.argmax())))
    if not sum(sums):
        return None
    size, group, completion, token = max(largest)
    return {"group": group, "completion": completion, "token": token, "share": size / sum(sums)}


def clipped_sides(ratios_T: Tensor, advantages_T: Tensor, algorithm: Algorithm) -> list[str | None]:
    """The side on which the clip cut the gradient of each token, see `cut_sides`; None = it cut nothing.

    Args:
        ratios_T: [T] of the learner's probability to the old one.
        advantages_T: [T].
        algorithm: with `ratio="sequence"`, ratios_T is the completion's at every token.
    """
    sides = cut_sides(algorithm.objective, ratios_T[None], advantages_T[None])
    rows = zip(*(cut_1T[0].tolist() for cut_1T in sides.values()), strict=True)
    return [next((side for side, cut in zip(sides, row, strict=True) if cut), None) for row in rows]


def _derived(columns: Mapping[str, Tensor | None], advantages_T: Tensor, algorithm: Algorithm) -> dict[str, Any]:
    sampler_T, learner_T = columns["logprobs"], columns["learner_logprobs"]
    reference_T, updated_T = columns["reference_logprobs"], columns["updated_logprobs"]
    assert sampler_T is not None
    derived: dict[str, Any] = {"probabilities": sampler_T.exp().tolist()}
    derived |= dict.fromkeys(("ratios", "sequence_ratio", "clipped", "kl", "changes"))
    if learner_T is None:
        return derived
    old_T = columns["old_logprobs"]
    log_ratios_T = learner_T - (sampler_T if old_T is None else old_T)
    sequence_ratio = log_ratios_T.mean().exp()
    derived |= {"ratios": log_ratios_T.exp().tolist(), "sequence_ratio": sequence_ratio.item()}
    ratios_T = sequence_ratio.expand_as(log_ratios_T) if algorithm.objective.ratio == "sequence" else log_ratios_T.exp()
    derived["clipped"] = clipped_sides(ratios_T, advantages_T, algorithm)
    if reference_T is not None and algorithm.kl is not None:
        derived["kl"] = kl_estimate(learner_T, reference_T, kind=algorithm.kl.kl_estimator).tolist()
    if updated_T is not None:
        derived["changes"] = (updated_T.exp() - learner_T.exp()).tolist()
    return derived


def _branched(folder: Path, step: int, group: int, index: int, ids: Sequence[int]) -> dict[str, Any]:
    branched = read_branches(folder, step, group, index, ids)
    if branched is None:
        return {"effects": None, "branches": None}
    effects: list[float | None] = [None] * len(ids)
    for token in branched.tokens:
        effect = branched.effect(token)
        effects[token.position] = None if effect is None else effect.mean
    branches = {token.position: [asdict(alternative) for alternative in token.branches] for token in branched.tokens}
    return {"effects": effects, "branches": branches}


def _numbers(blob: bytes | None) -> Tensor | None:
    """[T] float64, so that what is worked out of the recorded float32 adds no rounding."""
    return None if blob is None else torch.from_numpy(np.frombuffer(blob, "<f4").astype("f8"))


# What single tokens say. A tokenizer decodes sequences; here every token is shown by itself, and no byte is lost.


def find_tokenizer(folder: Path, config: Mapping[str, Any], root: Path) -> tuple[str, Tokenizer] | None:
    """The tokenizer of a run: of its newest checkpoint, else of the model that it started from; None = neither is here.

    Before it stands the name of its place, as people know it.

    Args:
        folder: the run directory.
        config: its configuration.
        root: the folder of runs. Nothing outside it is read, nor what a link in it leads to, bundled models apart.

    Raises:
        UserError: the file is no tokenizer.
    """
    received = find_leaf("received.files")
    if received is None:  # without its checks no stranger's tokenizer is read: ids have no texts
        return None
    for name, path, owner in _candidates(folder, config, root):
        try:
            # A checkpoint may hold a link, and one that is replaced vanishes.
            if path.resolve().is_relative_to(owner.resolve()):
                file = read_file(path)
                if file is not None:
                    received.refuse_tokenizer(file, path)
                    return name, _loaded(file)
        except (OSError, RuntimeError):  # RuntimeError: a link to itself
            continue
        except ValueError as error:
            raise UserError(f"{path}: expected a tokenizer, got '{error}': restore the file") from None
    return None


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Of each token its `id`, its `text` and whether it is `half`: not whole characters.

    The text of a special token is its name. Bytes that are no whole character are written as Python writes them
    (\\xe2); the text of an id that the tokenizer does not know is None.
    """
    shown = {token: _shown(tokenizer, token) for token in set(ids)}
    return [{"id": token, "text": shown[token][0], "half": shown[token][1]} for token in ids]


def _candidates(folder: Path, config: Mapping[str, Any], root: Path) -> Iterator[tuple[str, Path, Path]]:
    """Name, tokenizer and the folder that it must not lead out of; the best first."""
    for saved in reversed(RunDirectory(folder).saved_models()):
        yield f"checkpoints/{saved.path.name}", saved.path / "tokenizer.json", root
    model = config.get("model")
    name = model.get("path") if isinstance(model, Mapping) else None
    if isinstance(name, str) and name:
        if re.fullmatch(r"[A-Za-z0-9_-]+", name) and (_ASSETS / name).is_dir():
            yield name, _ASSETS / name / "tokenizer.json", _ASSETS
        else:
            yield name, Path(name) / "tokenizer.json", root


@lru_cache(maxsize=4)
def _loaded(file: bytes) -> Tokenizer:
    return Tokenizer.from_buffer(file)


def _shown(tokenizer: Tokenizer, token: int) -> tuple[str | None, bool]:
    piece = tokenizer.id_to_token(token) if token >= 0 else None
    if piece is None:
        return None, False
    alone: str = tokenizer.decode([token], skip_special_tokens=False)
    if _NO_CHARACTER in alone and (raw := _bytes(piece)) is not None:
        text = raw.decode("utf-8", "backslashreplace")
        return text, text.encode() != raw
    # Some decoders take the space away from what a sequence begins with; what comes second is as it stands in a text.
    twice: str = tokenizer.decode([token, token], skip_special_tokens=False)
    return (twice.removeprefix(alone) if twice.startswith(alone) else alone), False


def _bytes(piece: str) -> bytes | None:
    """The bytes that a vocabulary's piece stands for; None when it stands for characters."""
    if match := _BYTE.fullmatch(piece):
        return bytes.fromhex(match[1])
    byte_of_sign = _byte_of_sign()
    return bytes(byte_of_sign[sign] for sign in piece) if all(sign in byte_of_sign for sign in piece) else None


@cache
def _byte_of_sign() -> dict[str, int]:
    """GPT-2's alphabet of bytes: those that print as themselves, the others in their order from U+0100 on."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(0x100 + index): byte for index, byte in enumerate(others)}
