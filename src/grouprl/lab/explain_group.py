"""The walk-through of a group, from its prompt to what its update did: one that a run watched, or typed rewards."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grouprl.algorithms import step_advantages
from grouprl.algorithms.spec import Algorithm
from grouprl.algorithms.values import SharedCritic
from grouprl.config.algorithm import options
from grouprl.files import is_number, parse_object
from grouprl.lab.report.groups import one_group
from grouprl.lab.report.recorded import run_algorithm
from grouprl.lab.report.worked import Spread, compared, comparison_sentence
from grouprl.lab.runs import Runs
from grouprl.record.layout import RunDirectory
from grouprl.record.queries import completion_rows, recorded, stage_rows, steps_with_stages
from grouprl.record.read import read_rewards
from grouprl.record.rows import token_advantages
from grouprl.types import UserError

# Fields of an algorithm that decide which equations and numbers are shown.
_SHOWN = (
    *("baseline", "scale", "std", "credit", "reward_mix", "gamma", "lam"),
    *("surrogate", "ratio", "clip_low", "clip_high", "dual_clip", "tau_pos", "tau_neg", "aggregate"),
    *("k_pos", "lambda_pos", "k_neg", "lambda_neg", "drift_coef"),
    *("kl_in", "kl_unbiased", "passes", "minibatches"),
)
_STAGES = {"ratio", "kl", "loss", "gradient", "update"}
_NEAR_ONE = 1e-3  # in float32, sampler and learner agree to 1e-5

Completion = Mapping[str, Any]
"""A completion in the form of `report.groups.one_group`."""


def watched_steps(folder: Path) -> dict[str, list[int]]:
    """The steps of a run whose walk-through is recorded, ascending.

    Raises:
        UserError: the database cannot be read.
    """
    with recorded(folder) as database:
        return {"steps": steps_with_stages(database)}


def recorded_walk(runs: Runs, run: str, step: int) -> dict[str, Any]:
    """Every stage of the group that a step watched.

    Args:
        runs: where the run is.
        run: its id.
        step: 1, 11, 21, ...

    Returns:
        `source`; `algorithm`; `notes`, what the numbers skip; and `stages` in their order: `prompt`, `completions`,
        `rewards`, `statistics`, `advantages`; then, as the learner recorded them (see `group_stages`), `ratio`, `kl`,
        `loss`, `gradient`, `update`.

    Raises:
        UserError: no such run, no watched group in the step, or a damaged file.
    """
    folder = runs.folder(run)
    path, algorithm = RunDirectory(folder).rollouts, run_algorithm(runs.config(folder))
    metrics = next((row for row in runs.metrics(folder) if row["step"] == step), {})
    with recorded(folder) as database:
        rows = stage_rows(database, step)
    if {row["stage"] for row in rows} != _STAGES:
        steps = watched_steps(folder)["steps"]
        some = ", ".join(map(str, steps[:5])) + (", ..." if len(steps) > 5 else "")
        raise UserError(
            f"step {step}: expected a step whose walk-through the run recorded ({some or 'there is none'}), got "
            "another: the run records one group with a signal in steps 1, 11, 21, ..."
        )
    group = one_group(folder, step, group_index := rows[0]["group_index"])
    with recorded(folder) as database:
        # The token ids, because a length that no blob has would be reserved in memory.
        columns = "prompt_ids, token_ids, token_advantages, length, advantage"
        of_tokens = completion_rows(database, columns, step, group_index)
    stages = {row["stage"]: _stage(path, row, len(of_tokens)) for row in rows}
    prompt = {name: group[name] for name in ("problem_id", "messages", "columns")}
    walked = walk_through(
        algorithm,
        group["completions"],
        {
            **stages,
            "update": {**stages["update"], **{name: metrics.get(name) for name in ("learning_rate", "grad_norm")}},
        },
        by_step=read_rewards(folder).process,
        against=group["statistics"],
        token_advantages=[token_advantages(row) for row in of_tokens],
        metrics=metrics,
    )
    walked["stages"]["prompt"] = {**prompt, "text": group["prompt"], "tokens": len(of_tokens[0]["prompt_ids"]) // 4}
    notes = []
    if algorithm.updates.count > 1:
        notes.append(
            f"The run makes {algorithm.updates.count} updates per batch. The numbers here are from the last pass, and "
            "the loss is averaged as if the batch were one update."
        )
    if algorithm.entropy_options.bonus:
        notes.append("Loss and gradient here exclude the run's entropy bonus.")
    if algorithm.distill is not None:
        whom = "groups without signal" if algorithm.distill.distill_where == "no_signal" else "all groups"
        notes.append(f"Loss and gradient here exclude the KL to the teacher of {whom}.")
    if isinstance(algorithm.critic, SharedCritic):
        notes.append("The loss here excludes the loss of the critic, which shares the policy's trunk.")
    return {"source": {"run": run, "step": step, "group": group_index}, "notes": notes, **walked}


def _stage(path: Path, row: sqlite3.Row, size: int) -> dict[str, Any]:
    contents, where = parse_object(row["value"], f"{path}: {row['stage']}"), f"{path}: stage {row['stage']}"
    completions = contents.get("completions")
    if not (isinstance(completions, list) and len(completions) == size) and (row["stage"], completions) != ("kl", None):
        raise UserError(
            f"{where}: expected an entry for each of {size} completions, got {completions!r:.60}: restore it"
        )
    return contents


def walk_through(
    algorithm: Algorithm,
    completions: Sequence[Completion],
    stages: Mapping[str, Mapping[str, Any]],
    *,
    against: Mapping[str, Any] | None,
    token_advantages: Sequence[Sequence[float]],
    by_step: Mapping[str, float],
    metrics: Mapping[str, Any],
) -> dict[str, Any]:
    """`algorithm` and `stages` of a group.

    Args:
        algorithm: of the run.
        completions: of the group.
        stages: of `group_stages`.
        against: the comparison of their rewards, of `report.worked.compared`; made here where None.
        token_advantages: of each completion.
        by_step: process rewards by name.
        metrics: of the step.
    """
    settings, kl = options(algorithm), stages["kl"]
    taken = algorithm.kl is not None and algorithm.kl.kl_in == "reward" and kl["completions"] is not None
    penalties = [kl["coefficient"] * entry["sum"] for entry in kl["completions"]] if taken else [0.0] * len(completions)
    by_token = any(len(set(row)) > 1 for row in token_advantages)
    once = "one update per batch: the policy is still the behavior policy, and the ratio is 1"
    low, high = algorithm.objective.range
    weights = {name: weight for entry in completions for name, weight in entry["weights"].items()}
    rows = zip(completions, penalties, strict=True)
    shown = ("components", "reward", "invalid_reason")
    return {
        "algorithm": {
            "name": algorithm.name,
            "formula": algorithm.advantage.formula,
            **{name: settings.get(name) for name in _SHOWN},
            "kl": settings.get("kl_estimator"),
            "kl_coef": kl["coefficient"],
            "updates_per_batch": algorithm.updates.count,
        },
        "stages": {
            "prompt": {"problem_id": None, "text": None, "messages": None, "columns": {}, "tokens": None},
            "completions": [{name: entry[name] for name in ("text", "length", "stop_reason")} for entry in completions],
            "rewards": {
                "names": list(weights),
                "by_step": [name for name in weights if algorithm.advantage.credit == "step" and name in by_step],
                "weights": weights,
                "completions": [
                    {name: entry[name] for name in shown} | {"penalty": penalty} for entry, penalty in rows
                ],
            },
            "statistics": _statistics(algorithm, completions, penalties, against),
            "advantages": {
                "completions": [entry["advantage"] for entry in completions],
                "by_token": by_token,
                "tokens": token_advantages if by_token else None,
            },
            "ratio": {
                **stages["ratio"],
                "bounds": [1 - low, 1 + high] if algorithm.objective.bounded else [],
                "level": algorithm.objective.ratio,
                "reason": once if algorithm.updates.count == 1 else None,
                "of_step": _ratios_of_step(metrics),
            },
            "kl": {
                **kl,
                "kind": settings.get("kl_estimator"),
                "in": settings.get("kl_in"),
                "reason": kl.get("reason") or (None if kl["completions"] else "kl_coef is 0: there is no reference"),
            },
            "loss": {**stages["loss"], "step": metrics.get("loss")},
            "gradient": stages["gradient"],
            "update": stages["update"],
        },
    }


def _statistics(
    a: Algorithm, completions: Sequence[Completion], penalties: Sequence[float], against: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What the rewards are compared with: `kind` is what is compared, `sentence` says it.

    `kind` "rewards" has `compared`, see `report.worked`; "components" has one for each reward in `by_name`; "steps"
    has the rewards of all steps; "tokens" has `compared` where the group takes part in it, else none.
    """
    settings, lengths = options(a), [entry["length"] for entry in completions]
    if a.advantage.credit == "step":
        rewards_by_completion = [
            [] if entry["reward"] is None else [*(entry["step_rewards"] or ()), (entry["length"] - 1, entry["reward"])]
            for entry in completions
        ]
        rewards = [reward for row in rewards_by_completion for _, reward in row]
        # As completions of one token and one step each, their advantages are their normalized rewards.
        normalized_K1 = step_advantages(
            [[reward] for reward in rewards],
            [[0] for _ in rewards],
            [0] * len(rewards),
            [1] * len(rewards),
            std=settings["std"],
            eps=settings["eps"],
        )
        each = iter(normalized_K1.flatten().tolist())
        return {
            "kind": "steps",
            "sentence": "The rewards of all reasoning steps of the group are compared. The advantage of a token is the "
            "sum over the reasoning steps that end at or after it.",
            **vars(Spread.of(rewards, settings["std"])),
            "std": settings["std"],
            "steps": [
                [{"end": end, "reward": reward, "normalised": next(each)} for end, reward in row]
                for row in rewards_by_completion
            ],
        }
    if a.advantage.credit == "token":
        baseline = settings["baseline"]
        grouped = baseline in ("mean", "leave_one_out")
        whose = {
            "critic": "the critic's prediction",
            "batch_mean": "the mean over the batch's tokens",
            "none": "nothing",
        }
        with_what = "the group, before the KL of each token" if grouped else whose.get(baseline, a.advantage.formula)
        return {
            "kind": "tokens",
            "sentence": f"{a.name} gives each token an advantage: the reward still to come, compared with {with_what}.",
            "compared": against if grouped else None,
        }
    if settings.get("reward_mix") == "normalise_then_sum":
        valued = [({} if entry["reward"] is None else entry["components"]) for entry in completions]
        names = dict.fromkeys(name for entry in completions for name in entry["components"])
        by_name = {
            name: compared([row.get(name) for row in valued], a, component=True, lengths=lengths) for name in names
        }
        sentence = f"Each reward function gives its own advantages, which are added up. {comparison_sentence(a)}"
        return {"kind": "components", "sentence": sentence, "by_name": by_name}
    if any(penalties) or against is None:
        rows = zip(completions, penalties, strict=True)
        rewards = [None if entry["reward"] is None else entry["reward"] - taken for entry, taken in rows]
        against = compared(rewards, a, lengths=lengths)
    return {"kind": "rewards", "sentence": comparison_sentence(a), "compared": against}


def _ratios_of_step(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What the step recorded of its ratios: `max`, the share `clipped` on both sides, and whether all are `near` 1."""
    names = ("ratio_max", "clip_low_fraction", "clip_high_fraction")
    values = [float(value) for name in names if is_number(value := metrics.get(name))]
    if len(values) < len(names):
        return {"max": None, "clipped": None, "near": True}
    largest, low, high = values
    return {"max": largest, "clipped": low + high, "near": abs(largest - 1) < _NEAR_ONE and low + high == 0}
