"""What other settings change in a replayed step: completions, tokens and the gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from grouprl.tools.proof.replay import Replay, Update


@dataclass(frozen=True)
class CompletionChange:
    """A completion's reward and mean advantage, as recorded and under the other settings; None = invalid."""

    group: int  # index in the step
    completion: int  # index in the group
    problem: str
    reward: float | None
    other_reward: float | None
    advantage: float
    other_advantage: float


@dataclass(frozen=True)
class TokenChange:
    """A token's share of the loss's whole push on log-probs, positive where its probability rises."""

    group: int
    completion: int
    position: int
    token_id: int
    share: float
    other_share: float


def completion_changes(replay: Replay) -> list[CompletionChange]:
    """Lists every completion of the step, the largest change of an advantage first; empty without other settings."""
    if replay.other is None:
        return []
    then, now = replay.update, replay.other
    changes = [
        CompletionChange(
            group=p,
            completion=n,
            problem=group.problem.id,
            reward=_reward(then, p, n),
            other_reward=_reward(now, p, n),
            advantage=_mean(then.advantages[p][n]),
            other_advantage=_mean(now.advantages[p][n]),
        )
        for p, group in enumerate(replay.update.scored.groups)
        for n in range(len(group.completions))
    ]
    return sorted(changes, key=lambda change: abs(change.other_advantage - change.advantage), reverse=True)


def token_changes(replay: Replay, most: int) -> list[TokenChange]:
    """Lists the tokens whose share of the push changes most; empty without other settings.

    Shares, because two algorithms scale their losses differently and the optimizer takes the scale out again.
    """
    if replay.other is None:
        return []
    totals = [
        math.fsum(abs(push) for rows in update.pushes for row in rows for push in row) or 1.0
        for update in (replay.update, replay.other)
    ]
    changes = [
        TokenChange(p, n, t, token, *(push / all_of for push, all_of in zip(pushes, totals, strict=True)))
        for p, group in enumerate(replay.update.scored.groups)
        for n, completion in enumerate(group.completions)
        for t, (token, *pushes) in enumerate(
            zip(completion.token_ids, replay.update.pushes[p][n], replay.other.pushes[p][n], strict=True)
        )
    ]
    return sorted(changes, key=lambda completion: abs(completion.other_share - completion.share), reverse=True)[:most]


def not_finite(update: Update) -> list[tuple[int, int]]:
    """Lists the completions, as (group, completion), on whose tokens the loss has no finite derivative."""
    return [
        (p, n)
        for p, rows in enumerate(update.pushes)
        for n, row in enumerate(rows)
        if not all(math.isfinite(push) for push in row)
    ]


def cosine(here: Mapping[str, Tensor], there: Mapping[str, Tensor]) -> float:
    """The cosine of the angle between two gradients; NaN when one of them is 0."""
    product = sum(float((here[name].double() * there[name].double()).sum()) for name in here.keys() & there.keys())
    size = norm(here) * norm(there)
    return product / size if size else math.nan


def norm(gradient: Mapping[str, Tensor]) -> float:
    """The Euclidean norm of a gradient."""
    return math.sqrt(sum(float(values.double().square().sum()) for values in gradient.values()))


def as_values(replay: Replay) -> dict[str, Any]:
    """Everything that a replay found, as plain values for JSON."""
    values: dict[str, Any] = {
        "run": str(replay.run),
        "step": replay.step,
        "from_checkpoint": replay.start,
        "identical": replay.is_identical,
        "differences": [asdict(item) for item in replay.differences],
        "first_different_step": replay.first_difference,
        "machine": {name: {"recorded": there, "here": here} for name, (there, here) in replay.machines.items()},
        "error": replay.update.error or None,
        "not_finite": not_finite(replay.update),
        "metrics": dict(replay.update.metrics),
    }
    if replay.other is not None:
        values["other"] = {
            "metrics": dict(replay.other.metrics),
            "error": replay.other.error or None,
            "gradient_cosine": cosine(replay.update.gradient, replay.other.gradient),
            "gradient_norm": norm(replay.other.gradient),
            "completions": [asdict(item) for item in completion_changes(replay)],
            "tokens": [asdict(item) for item in token_changes(replay, 100)],
        }
    return values


def _reward(update: Update, group: int, completion: int) -> float | None:
    outcome = update.scored.outcomes[group][completion]
    return outcome.total if outcome.valid else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _whole_push(update: Update) -> float:
    return math.fsum(abs(push) for rows in update.pushes for row in rows for push in row) or 1.0
