"""One completion, token by token: its text, and what sampler, learner, reference and update made of each token."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grouprl.algorithms import clipped_tokens, kl_estimate
from grouprl.algorithms.spec import Algorithm
from grouprl.config.algorithm import all_options
from grouprl.record.layout import RunDirectory
from grouprl.record.rows import parsed
from grouprl.report.recorded import read_config, recorded, run_algorithm
from grouprl.report.token_texts import find_tokenizer, token_texts
from grouprl.types import UserError

_PLAIN = (
    "step, group_index, completion_index, problem_id, text, reward, advantage, length, stop_reason, weights_version"
)
_BLOBS = ("logprobs", "plain_logprobs", "learner_logprobs", "entropies", "reference_logprobs", "updated_logprobs")
_OBJECTIVE = (
    *("surrogate", "ratio", "clip_low", "clip_high", "dual_clip"),
    *("kl_in", "kl_coef", "passes", "minibatches"),
)


def one_completion(folder: Path, step: int, group: int, index: int, *, root: Path) -> dict[str, Any]:
    """Everything that is recorded of the tokens of a completion, and what follows from it.

    Args:
        folder: the run directory.
        step: of the completion.
        group: its group's index there.
        index: its own in the group.
        root: the folder of runs; no tokenizer outside it is read, bundled ones apart.

    Returns:
        The completion's own columns; `tokens` (see `token_texts`; texts are None without a tokenizer) and `tokenizer`,
        where their texts come from. Then lists with a number for each token, or None where the run did not record what
        they need: `advantages`; log-probs under each policy, and `entropies`, in nats; `probabilities`, of the
        distribution drawn from; `ratios` of the learner's probability to the sampler's, and `sequence_ratio`, their
        geometric mean; `clipped` (see `clipped_sides`); `kl`, the run's estimate in nats; `changes`, what the update
        added to the probability. `objective` holds the fields of the algorithm behind them.

    Raises:
        UserError: it is not recorded, or the database cannot be read or is an older version's.
    """
    config = read_config(folder)
    algorithm = run_algorithm(config)
    row = _row(folder, step, group, index)
    ids = np.frombuffer(row["token_ids"], "<i4").tolist()
    columns = {name: _numbers(row[name]) for name in _BLOBS}
    advantages_T = _numbers(row["token_advantages"])
    if advantages_T is None:
        advantages_T = torch.full((len(ids),), row["advantage"], dtype=torch.float64)
    found, known = find_tokenizer(folder, config, root), all_options(algorithm)
    unread = [{"id": token, "text": None, "half": False} for token in ids]
    return {
        **{name: row[name] for name in _PLAIN.split(", ")},
        "correct": None if row["correct"] is None else bool(row["correct"]),
        "step_rewards": parsed(RunDirectory(folder).rollouts, row, "step_rewards"),
        "tokenizer": None if found is None else found.place,
        "tokens": unread if found is None else token_texts(found.tokenizer, ids),
        "advantages": advantages_T.tolist(),
        **{name: _listed(numbers_T) for name, numbers_T in columns.items()},
        **_derived(columns, advantages_T, algorithm),
        "objective": {"kl": known["kl_estimator"], **{name: known[name] for name in _OBJECTIVE}},
    }


def clipped_sides(ratios_T: Tensor, advantages_T: Tensor, algorithm: Algorithm) -> list[str | None]:
    """Where PPO's clip cut the gradient of a token's objective (arXiv:1707.06347, equation 7).

    A ratio beyond the bounds is cut on the side alone to which the advantage would move it further: "low" (below
    1 - clip_low with a negative advantage), "high" (above 1 + clip_high with a positive one) or "dual" (above dual_clip
    with a negative one); else None. Other surrogates cut no gradient.

    Args:
        ratios_T: [T] of the learner's probability to the sampler's.
        advantages_T: [T].
        algorithm: with `ratio="sequence"`, ratios_T is the completion's at every token.
    """
    if algorithm.objective.surrogate != "clip":
        return [None] * len(ratios_T)
    (low, high), bound = algorithm.objective.range, algorithm.objective.largest_ratio
    low_1T, high_1T = clipped_tokens(ratios_T[None], advantages_T[None], clip_low=low, clip_high=high)
    dual_T = torch.zeros_like(low_1T[0]) if bound is None else (ratios_T > bound) & (advantages_T < 0)
    rows = zip(low_1T[0].tolist(), high_1T[0].tolist(), dual_T.tolist(), strict=True)
    return ["low" if low else "high" if high else "dual" if dual else None for low, high, dual in rows]


def _derived(columns: Mapping[str, Tensor | None], advantages_T: Tensor, algorithm: Algorithm) -> dict[str, Any]:
    sampler_T, learner_T = columns["logprobs"], columns["learner_logprobs"]
    reference_T, updated_T = columns["reference_logprobs"], columns["updated_logprobs"]
    assert sampler_T is not None
    derived: dict[str, Any] = {"probabilities": sampler_T.exp().tolist()}
    derived |= dict.fromkeys(("ratios", "sequence_ratio", "clipped", "kl", "changes"))
    if learner_T is None:
        return derived
    log_ratios_T = learner_T - sampler_T
    sequence_ratio = log_ratios_T.mean().exp()
    derived |= {"ratios": log_ratios_T.exp().tolist(), "sequence_ratio": sequence_ratio.item()}
    # With a correction the loss's ratio is to the learner's own log-probs before the update, which are not recorded.
    if algorithm.correction is None:
        ratios_T = (
            sequence_ratio.expand_as(log_ratios_T) if algorithm.objective.ratio == "sequence" else log_ratios_T.exp()
        )
        derived["clipped"] = clipped_sides(ratios_T, advantages_T, algorithm)
    if reference_T is not None and algorithm.kl is not None:
        derived["kl"] = kl_estimate(learner_T, reference_T, kind=algorithm.kl.kl_estimator).tolist()
    if updated_T is not None:
        derived["changes"] = (updated_T.exp() - learner_T.exp()).tolist()
    return derived


def _row(folder: Path, step: int, group: int, index: int) -> sqlite3.Row:
    with recorded(folder) as database:
        row: sqlite3.Row | None = database.execute(
            f"SELECT {_PLAIN}, correct, step_rewards, token_ids, token_advantages, {', '.join(_BLOBS)} "
            "FROM completions WHERE step = ? AND group_index = ? AND completion_index = ?",
            (step, group, index),
        ).fetchone()
    if row is None:
        raise UserError(
            f"step {step}, group {group}, completion {index}: expected one that {folder.name} recorded, found none: "
            "choose one of the list (a resumed run makes its last steps again)"
        )
    return row


def _numbers(blob: bytes | None) -> Tensor | None:
    """[T] float64, so that what is worked out of the recorded float32 adds no rounding."""
    return None if blob is None else torch.from_numpy(np.frombuffer(blob, "<f4").astype("f8"))


def _listed(numbers_T: Tensor | None) -> list[float] | None:
    return None if numbers_T is None else numbers_T.tolist()
