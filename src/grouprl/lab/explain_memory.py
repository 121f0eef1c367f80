"""The memory of a training step of GRPO and of PPO, for the page that compares them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from starlette.requests import Request

from grouprl.forward.devices import GPU
from grouprl.lab.answers import SHOWN, Query
from grouprl.tools.planner import SHAPES, MemoryPlan, Networks, StepShape, plan_memory
from grouprl.tools.planner.memory import BLOCKS, COMPARED, PARTS
from grouprl.tools.planner.shapes import ModelShape, config_shape, known_shape
from grouprl.types import UserError

JUDGED = {"ppo": ("ppo",), "both": ("grpo", "ppo"), "none": ()}


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
        device=query.choice("device", ("cpu", GPU), GPU),
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
    judged = JUDGED[query.choice("reward_model", tuple(JUDGED), "none")]
    algorithms, shape = query.choices("algorithm", ("grpo", "ppo"), ("grpo", "ppo")), _shape(query)

    def planned(shape: ModelShape) -> dict[str, MemoryPlan]:
        each_network = {
            name: replace(networks, critic=name == "ppo", reward_model=name in judged) for name in algorithms
        }
        return {name: plan_memory(shape, each, step) for name, each in each_network.items()}

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
        fields = json.loads(query.text("config"))
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise UserError("config: expected the JSON object of a config.json, got something else: choose another file")
    return config_shape(fields, "your config.json", Path("config.json"))
