"""The routes of the explainers: each reads its query, and calls one function of the files beside this one."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from grouprl.lab.answers import json_answer
from grouprl.lab.explain import COMPARING, explained_advantages
from grouprl.lab.explain_curves import kl_curves, objective_curve, pass_rate_curves
from grouprl.lab.explain_group import walk_through
from grouprl.lab.explain_plan import memory_plans
from grouprl.lab.explain_query import Query
from grouprl.lab.explain_typed import typed_walk_through
from grouprl.lab.runs import Runs
from grouprl.planner import SHAPES, StepShape
from grouprl.types import UserError

_USUAL = ("grpo", "dr_grpo", "rloo", "reinforce")


def explain_routes(runs: Runs) -> list[Route]:
    """GET alone; a mistake in the query is a UserError that says what was expected."""
    return [
        Route("/api/explain/advantages", json_answer(_advantages)),
        Route("/api/explain/objective", json_answer(_objective)),
        Route("/api/explain/kl", json_answer(_kl)),
        Route("/api/explain/group", json_answer(lambda request: _group(runs, request))),
        Route("/api/explain/pass_rate", json_answer(_pass_rate)),
        Route("/api/explain/memory", json_answer(_memory)),
    ]


def _advantages(request: Request) -> dict[str, Any]:
    query = Query(request, ("rewards", "algorithms"))
    return explained_advantages(query.rewards(), query.choices("algorithms", COMPARING, _USUAL))


def _objective(request: Request) -> dict[str, Any]:
    query = Query(request, ("advantage", "surrogate", "clip_low", "clip_high", "dual_clip"))
    surrogate = query.choice("surrogate", ("clip", "cispo", "plain"), "clip")
    if "dual_clip" in query and surrogate != "clip":
        raise UserError(f"dual_clip: expected none with surrogate={surrogate}, got one: leave it out, or set clip")
    return objective_curve(
        query.number("advantage", -1e6, 1e6, 1.0),
        surrogate=surrogate,  # type: ignore[arg-type]
        clip_low=query.number("clip_low", 0, 1, 0.2),
        clip_high=query.number("clip_high", 0, 100, 0.2),
        dual_clip=query.number("dual_clip", 1.01, 100, 3.0) if "dual_clip" in query else None,
    )


def _kl(request: Request) -> dict[str, Any]:
    Query(request, ())
    return kl_curves()


def _group(runs: Runs, request: Request) -> dict[str, Any]:
    query = Query(request, ("run", "step", "group", "rewards", "algorithm", "learning_rate"))
    recorded, typed = ("run", "step", "group"), ("rewards", "algorithm", "learning_rate")
    mixed = [name for name in (typed if "run" in query else recorded) if name in query]
    if mixed:
        raise UserError(f"expected either a run with step and group, or rewards, got {', '.join(mixed)} as well")
    if "run" in query:
        step, place = query.whole("step", 1, 10**9), query.whole("group", 0, 10**6, 0)
        return walk_through(runs, query.text("run"), step, place)
    rewards, name = query.rewards(), query.choice("algorithm", COMPARING, "grpo")
    return typed_walk_through(rewards, name, query.number("learning_rate", 0, 100, 1.0))


def _pass_rate(request: Request) -> dict[str, Any]:
    query = Query(request, ("group_size", "algorithms"))
    return pass_rate_curves(query.whole("group_size", 2, 64, 8), query.choices("algorithms", COMPARING, _USUAL))


def _memory(request: Request) -> dict[str, Any]:
    counts = {
        "problems": (1, 1024, 16),
        "group_size": (1, 256, 8),
        "prompt_tokens": (1, 131_072, 256),
        "completion_tokens": (1, 131_072, 512),
        "max_rows": (1, 65_536, 256),
        "minibatches": (1, 1024, 1),
        "micro_batch_tokens": (0, 1_048_576, 0),
    }
    others = ("model", "algorithm", "dtype", "device", "recompute", "lora_rank", "reward_model")
    query = Query(request, (*others, *counts))
    step = StepShape(
        **{name: query.whole(name, low, high, usual) for name, (low, high, usual) in counts.items()},
        dtype=query.choice("dtype", ("float32", "bfloat16"), "bfloat16"),  # type: ignore[arg-type]
        device=query.choice("device", ("cpu", "cuda"), "cuda"),  # type: ignore[arg-type]
        recompute=query.choice("recompute", ("true", "false"), "false") == "true",
    )
    return memory_plans(
        query.choice("model", tuple(SHAPES), "Qwen2.5-1.5B"),
        query.choices("algorithm", ("grpo", "ppo"), ("grpo", "ppo")),
        step,
        lora_rank=query.whole("lora_rank", 1, 4096) if "lora_rank" in query else None,
        reward_model=query.choice("reward_model", ("ppo", "both", "none"), "none"),  # type: ignore[arg-type]
    )
