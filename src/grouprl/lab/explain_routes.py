"""The routes of the explainers: each reads its query strictly, and calls one function of the files beside this one."""

from __future__ import annotations

import ast
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

from starlette.requests import Request
from starlette.routing import Route

from grouprl.algorithms.spec import Algorithm
from grouprl.algorithms.surrogates import Surrogate
from grouprl.lab.answers import SHOWN, Answer, Query, json_answer
from grouprl.lab.explain_group import recorded_walk, watched_steps
from grouprl.lab.explain_typed import (
    COMPARING,
    explained_advantages,
    kl_curves,
    objective_curve,
    pass_rate_curves,
    typed_walk,
)
from grouprl.lab.runs import Runs
from grouprl.tools.planner import SHAPES, MemoryPlan, Networks, StepShape, plan_memory
from grouprl.tools.planner.memory import BLOCKS, COMPARED, PARTS
from grouprl.tools.planner.shapes import ModelShape, config_shape, known_shape
from grouprl.types import UserError

JUDGES = ("ppo", "both", "none")


def memory_answer(request: Request) -> dict[str, Any]:
    """Plans of GRPO and PPO for one batch, in bytes: sums and their parts; and the sums for models of four sizes."""
    counts = {
        "problems": (1, 1024, 16),
        "group_size": (1, 256, 8),
        "prompt_tokens": (1, 131_072, 256),
        "completion_tokens": (1, 131_072, 512),
        "max_rows": (1, 65_536, 256),
        "minibatches": (1, 1024, 1),
        "micro_batch_tokens": (0, 1_048_576, 0),
    }
    others = ("model", "config", "algorithm", "dtype", "device", "recompute", "lora_rank", "reward_model")
    saving = ("weights", "moments", "reference")
    query = Query(request, (*others, *saving, *counts))
    step = StepShape(
        **{name: query.whole(name, low, high, usual) for name, (low, high, usual) in counts.items()},  # type: ignore[arg-type]
        dtype=query.choice("dtype", ("float32", "bfloat16"), "bfloat16"),  # type: ignore[arg-type]
        device=query.choice("device", ("cpu", "cuda"), "cuda"),  # type: ignore[arg-type]
        recompute=query.choice("recompute", ("true", "false"), "true") == "true",
    )
    reference = query.choice("reference", ("gpu", "cpu", "none"), "gpu")
    networks = Networks(
        reference=reference != "none",
        lora_rank=query.whole("lora_rank", 1, 4096) if "lora_rank" in query else None,
        weights=query.choice("weights", ("float32", "bfloat16", "nf4"), "float32"),  # type: ignore[arg-type]
        moments=query.choice("moments", ("float32", "bfloat16", "8bit"), "float32"),  # type: ignore[arg-type]
        reference_on_cpu=reference == "cpu",
    )
    if networks.weights == "nf4" and networks.lora_rank is None:
        raise UserError("weights: expected an adapter with nf4, got none: 4-bit weights do not train; give a LoRA rank")
    judged = {"both": ("grpo", "ppo"), "ppo": ("ppo",), "none": ()}[query.choice("reward_model", JUDGES, "none")]
    algorithms, shape = query.choices("algorithm", ("grpo", "ppo"), ("grpo", "ppo")), _shape(query)

    def planned(shape: ModelShape) -> dict[str, MemoryPlan]:
        own = {name: replace(networks, critic=name == "ppo", reward_model=name in judged) for name in algorithms}
        return {name: plan_memory(shape, each, step) for name, each in own.items()}

    compared = {name: planned(SHAPES[name]) for name in COMPARED}
    return {
        "models": list(SHAPES),
        "model": asdict(shape),
        "parameters": shape.parameters,
        "step": asdict(step),
        "names": {**BLOCKS, **PARTS},
        "plans": {name: {"sums": plan.sums, "blocks": plan.blocks} for name, plan in planned(shape).items()},
        "compared": {name: {which: plan.sums for which, plan in plans.items()} for name, plans in compared.items()},
    }


def _shape(query: Query) -> ModelShape:
    """Of the numbers of a config.json, or of a model that is known by its name or hub id; no file is read."""
    if "config" not in query:
        model = query.text("model") if "model" in query else "Qwen2.5-1.5B"
        try:
            return known_shape(model)
        except UserError:
            raise UserError(
                f"model: expected {', '.join(sorted(SHAPES))} or the hub id of one of them, got {model[:SHOWN]!r}: "
                "choose the config.json of any other model"
            ) from None
    try:
        found = json.loads(query.text("config"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UserError("config: expected the JSON object of a config.json, got something else: choose another file")
    return config_shape(found, "your config.json", Path("config.json"))


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
        "algorithms": _comparing,
        "advantages": _advantages,
        "objective": _objective,
        "kl": _kl,
        "group": lambda request: _group(runs, request),
        "pass_rate": _pass_rate,
        "memory": _memory,
        "code": _code,
        "steps": lambda request: _steps(runs, request),
    }
    return [Route(f"/api/explain/{name}", json_answer(answer)) for name, answer in answers.items()]


def _code(request: Request) -> dict[str, Any]:
    """The code behind each stage: `name`, `file` in the package, `line` and `text`."""
    Query(request, ())
    found = {}
    for stage, place in _CODE.items():
        file, name = place.split()
        text = (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
        node: ast.AST = ast.parse(text)
        for part in name.split("."):
            node = next(one for one in ast.iter_child_nodes(node) if getattr(one, "name", None) == part)
        assert isinstance(node, ast.FunctionDef | ast.ClassDef)
        lines = text.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno]
        found[stage] = {"name": name, "file": f"grouprl/{file}", "line": node.lineno, "text": "".join(lines)}
    return found


def _comparing(request: Request) -> dict[str, Any]:
    """The algorithms that compare whole completions, with what they compute."""
    Query(request, ())
    return {"algorithms": [{"name": one.name, "formula": one.advantage.formula} for one in COMPARING.values()]}


def _advantages(request: Request) -> dict[str, Any]:
    query = Query(request, ("rewards", "algorithms"))
    return explained_advantages(query.rewards(), _algorithms(query))


def _objective(request: Request) -> dict[str, Any]:
    query = Query(request, ("advantage", "surrogate", "clip_low", "clip_high", "dual_clip", "tau_pos", "tau_neg"))
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
    rewards, name = query.rewards(), query.choice("algorithm", tuple(COMPARING), "grpo")
    return typed_walk(rewards, COMPARING[name], query.number("learning_rate", 0, 100, 1.0))


def _steps(runs: Runs, request: Request) -> dict[str, Any]:
    return watched_steps(runs.folder(Query(request, ("run",)).text("run")))


def _pass_rate(request: Request) -> dict[str, Any]:
    query = Query(request, ("group_size", "algorithms"))
    return pass_rate_curves(query.whole("group_size", 2, 64, 8), _algorithms(query))


def _algorithms(query: Query) -> list[Algorithm]:
    return [COMPARING[name] for name in query.choices("algorithms", tuple(COMPARING), USUAL)]


def _memory(request: Request) -> dict[str, Any]:
    from grouprl.lab.explain_routes import memory_answer  # loads transformers, which stands beside a run

    return memory_answer(request)
