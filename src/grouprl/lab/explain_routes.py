"""The routes of the explainers: each reads its query strictly, and calls one function of the files beside this one."""

from __future__ import annotations

import ast
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

from starlette.requests import Request
from starlette.routing import Route

from grouprl.algorithms.advantages import CompletionAdvantage
from grouprl.algorithms.spec import Algorithm
from grouprl.algorithms.surrogates import Surrogate
from grouprl.config.own_algorithm import is_in_file
from grouprl.lab.answers import Answer, Query, json_answer
from grouprl.lab.explain_group import recorded_walk, watched_steps
from grouprl.lab.explain_typed import (
    COMPARING,
    explained_advantages,
    kl_curves,
    objective_curve,
    pass_rate_curves,
    typed_walk,
)
from grouprl.lab.predictions import predicted_numbers
from grouprl.lab.report.recorded import run_algorithm
from grouprl.lab.runs import Runs
from grouprl.types import UserError

USUAL = ("grpo", "dr_grpo", "rloo", "reinforce")
# What computes each stage of a group, read from its file: importing a step would load transformers.
_CODE = {
    "prompt": "tasks/curriculum.py UniformOrder.visits",
    "completions": "step.py grpo_step",
    "rewards": "types.py RewardOutcome",
    "statistics": "algorithms/advantages.py group_statistics",
    "advantages": "algorithms/advantages.py group_advantages",
    "ratio": "algorithms/surrogates.py policy_ratios",
    "kl": "algorithms/kl.py kl_estimate",
    "loss": "algorithms/losses.py policy_loss",
    "update": "step.py update_policy",
}


def explain_routes(runs: Runs) -> list[Route]:
    """GET alone; a mistake in the query is a UserError that says what was expected."""
    answers: dict[str, Answer] = {
        "algorithms": lambda request: _comparing(runs, request),
        "advantages": lambda request: explained_advantages(
            (query := Query(request, ("rewards", "algorithms"))).rewards(), _algorithms(runs, query)
        ),
        "objective": _objective,
        "kl": _kl,
        "group": lambda request: _group(runs, request),
        "pass_rate": lambda request: _pass_rate(runs, request),
        "memory": _memory,
        "code": _code,
        "predictions": _predictions,
        "steps": lambda request: watched_steps(runs.folder(Query(request, ("run",)).text("run"))),
    }
    return [Route(f"/api/explain/{name}", json_answer(answer)) for name, answer in answers.items()]


def _code(request: Request) -> dict[str, Any]:
    """The code behind each stage: `name`, `file` in the package, `line` and `text`."""
    Query(request, ())
    stages = {}
    for stage, location in _CODE.items():
        file, name = location.split()
        text = (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
        node: ast.AST = ast.parse(text)
        for part in name.split("."):
            node = next(child for child in ast.iter_child_nodes(node) if getattr(child, "name", None) == part)
        assert isinstance(node, ast.FunctionDef | ast.ClassDef)
        lines = text.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno]
        stages[stage] = {"name": name, "file": f"grouprl/{file}", "line": node.lineno, "text": "".join(lines)}
    return stages


def _predictions(request: Request) -> dict[str, float]:
    Query(request, ())
    return predicted_numbers()


def _offered(runs: Runs) -> dict[str, Algorithm]:
    """The algorithms that compare whole completions: the named ones, and those in files that this user's runs have."""
    offered = dict(COMPARING)
    for folder in runs.folders():
        with suppress(UserError, AttributeError):  # of a damaged run its own page says so
            config = runs.config(folder)
            if is_in_file(config.get("algorithm", {}).get("name")):
                algorithm = run_algorithm(config)
                if isinstance(algorithm.advantage, CompletionAdvantage) and not algorithm.missing:
                    offered[algorithm.name] = algorithm
    return offered


def _comparing(runs: Runs, request: Request) -> dict[str, Any]:
    """The algorithms that compare whole completions, with what they compute."""
    Query(request, ())
    offered = _offered(runs).values()
    return {"algorithms": [{"name": algorithm.name, "formula": algorithm.advantage.formula} for algorithm in offered]}


def _objective(request: Request) -> dict[str, Any]:
    clips = ("clip_low", "clip_high", "dual_clip")
    decays = ("tau_pos", "tau_neg", "k_pos", "lambda_pos", "k_neg", "lambda_neg")
    query = Query(request, ("advantage", "surrogate", *clips, *decays))
    surrogate = query.choice("surrogate", get_args(Surrogate), "clip")
    if "dual_clip" in query and surrogate != "clip":
        raise UserError(f"dual_clip: expected none with surrogate={surrogate}, got one: remove it, or set clip")
    return objective_curve(
        query.number("advantage", -1e6, 1e6, 1.0),
        surrogate=surrogate,  # type: ignore[arg-type]
        clip_low=query.number("clip_low", 0, 1, 0.2),
        clip_high=query.number("clip_high", 0, 100, 0.2),
        dual_clip=query.number("dual_clip", 1.01, 100, 3.0) if "dual_clip" in query else None,
        tau_pos=query.number("tau_pos", 1e-6, 1e3, 1.0),
        tau_neg=query.number("tau_neg", 1e-6, 1e3, 1.05),
        k_pos=query.number("k_pos", 0, 1e3, 2.0),
        lambda_pos=query.number("lambda_pos", 1e-4, 1e3, 3.0),
        k_neg=query.number("k_neg", 0, 1e3, 3.0),
        lambda_neg=query.number("lambda_neg", 1e-4, 1e3, 2.0),
    )


def _kl(request: Request) -> dict[str, Any]:
    Query(request, ())
    return kl_curves()


def _group(runs: Runs, request: Request) -> dict[str, Any]:
    query = Query(request, ("run", "step", "rewards", "algorithm", "learning_rate"))
    recorded, typed = ("run", "step"), ("rewards", "algorithm", "learning_rate")
    mixed = [name for name in (typed if "run" in query else recorded) if name in query]
    if mixed:
        raise UserError(f"expected either a run with a step, or rewards, got {', '.join(mixed)} as well")
    if "run" in query:
        return recorded_walk(runs, query.text("run"), query.whole("step", 1, 10**9))
    offered = _offered(runs)
    rewards, name = query.rewards(), query.choice("algorithm", tuple(offered), "grpo")
    return typed_walk(rewards, offered[name], query.number("learning_rate", 0, 100, 1.0))


def _pass_rate(runs: Runs, request: Request) -> dict[str, Any]:
    query = Query(request, ("group_size", "algorithms"))
    return pass_rate_curves(query.whole("group_size", 2, 64, 8), _algorithms(runs, query))


def _algorithms(runs: Runs, query: Query) -> list[Algorithm]:
    offered = _offered(runs)
    return [offered[name] for name in query.choices("algorithms", tuple(offered), USUAL)]


def _memory(request: Request) -> dict[str, Any]:
    from grouprl.lab.explain_memory import memory_answer  # loads transformers, which stands beside a run

    return memory_answer(request)
