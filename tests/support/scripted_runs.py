"""Runs whose completions a test writes in the place of the policy, up to the first update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from grouprl import Trainer
from grouprl.algorithms.named import NAMED
from grouprl.config.run import RunConfig
from grouprl.environments.base import Call
from grouprl.environments.formats import ToolFormat
from grouprl.learner.batch import component
from grouprl.models.prompts import authored_completion
from grouprl.rollout.episodes import joined
from grouprl.rollout.native import NativeEngine
from grouprl.types import Completion, Group, Message, ObservedTokens, Problem

GROUP = 4
Script = Callable[[Mapping[str, Any], int], tuple[str, Mapping[str, Any]] | None]
"""The tool and the arguments that completion j of a problem with these columns calls first; None = it calls none."""


@dataclass(frozen=True)
class Scored:
    """The completions of a problem, as they enter the loss."""

    prompt: tuple[Message, ...]
    prompt_ids: tuple[int, ...]
    components: list[dict[str, float | None]]
    rewards: list[float | None]  # None = invalid
    advantages: list[float]
    reasons: list[str]


class _SampledError(Exception):
    """The groups of the first step are there."""


def said(index: int) -> str:
    """The last turn of a completion."""
    return "so " * index + "done"


def scripted(runs: Path, script: Script, **given: Any) -> list[Scored]:
    """What a `Trainer` makes of scripted completions, in the order of the column `start`."""
    found: list[Any] = []

    def generate(engine: Any, requests: Sequence[Any], sampling: Any, *, on_group: Any = None, **_: Any) -> list[Group]:
        groups = []
        for place, request in enumerate(requests):
            made = tuple(_played(engine, request, index, script) for index in range(request.completions))
            groups.append(Group(request.problem, request.prompt_ids, made))
            if on_group is not None:
                on_group(place, groups[-1])
        return groups

    def stop(learner: Any, scored: Any, clock: Any) -> None:
        found.append(scored)
        raise _SampledError

    settings: dict[str, Any] = {
        "name": "r",
        "runs_dir": str(runs),
        "steps": 1,
        "model": {"threads": 1},
        "rollout": {"problems_per_step": 2, "group_size": GROUP, "max_tokens": 64, "scoring": {"max_invalid": 1.0}},
        "evaluation": {"problems": 0},
    }
    config = RunConfig(**settings | given.pop("config", {}))
    with (
        suppress(_SampledError),
        patch.object(NativeEngine, "generate", generate),
        patch("grouprl.step.update_policy", stop),
        patch("grouprl.run.assemble.check_sampler", lambda *_, **__: None),
    ):
        Trainer(given.pop("model", "abacus_tools"), config=config, algorithm="trl", **given).train()
    (scored,) = found
    rows = [_scored(*pair, scored.weights) for pair in zip(scored.groups, scored.outcomes, strict=True)]
    order = sorted(range(len(rows)), key=lambda place: scored.groups[place].problem.columns.get("start", 0))
    return [rows[place] for place in order]


def _played(engine: Any, request: Any, index: int, script: Script) -> Completion:
    problem: Problem = request.problem
    call = script(problem.columns, index)
    form = ToolFormat.of(engine._tokenizer, problem.tools) if problem.tools else None
    texts = [] if call is None or form is None else [form.written("", [Call(*call)])]
    turns: list[Completion] = []
    observations: list[ObservedTokens] = []
    while True:
        text = texts.pop(0) if texts else said(index)
        turns.append(authored_completion(index, text, engine._tokenizer))
        if engine._conversation is None:
            return turns[0]
        answer = engine._conversation.answer(request, turns, observations).result()
        if answer.episode is not None:
            return joined(turns, observations, answer.episode)
        observations.append(ObservedTokens(sum(map(len, turns)), answer.token_ids, answer.kept))


def _scored(group: Group, outcomes: Sequence[Any], weights: Mapping[str, float]) -> Scored:
    totals_G = torch.tensor([one.total for one in outcomes], dtype=torch.float64)
    components = {name: component(outcomes, name) for name in weights}
    advantage: Any = NAMED["trl"].advantage
    advantages_G = advantage.compare(totals_G, components, weights, torch.zeros(len(outcomes), dtype=torch.long))
    return Scored(
        tuple(group.problem.prompt),  # type: ignore[arg-type]
        group.prompt_ids,
        [dict(one.components) for one in outcomes],
        [one.total if one.valid else None for one in outcomes],
        advantages_G.tolist(),
        [one.reason for one in outcomes],
    )
