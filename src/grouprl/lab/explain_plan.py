"""Memory of PPO beside GRPO, by network, for the page that compares them. `grouprl.planner` does the arithmetic."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from grouprl.planner import SHAPES, MemoryPlan, Networks, StepShape, plan_memory

RewardModel = Literal["ppo", "both", "none"]
SENTENCE = (
    "Beside the policy, GRPO holds a frozen reference. PPO holds a critic as well, which learns and is as large as the "
    "policy, and in RLHF a reward model, which GRPO needs as little as PPO where a rule can check the answer."
)


def memory_plans(
    model: str, algorithms: list[str], step: StepShape, *, lora_rank: int | None, reward_model: RewardModel
) -> dict[str, Any]:
    """The plans of "grpo" and "ppo" at one batch shape.

    Args:
        model: a name of `planner.SHAPES`.
        algorithms: which plans.
        step: the batch and how it is computed.
        lora_rank: of an adapter; None = all weights learn.
        reward_model: whose rewards are learned ones.

    Returns:
        `model` and `step` as given, `parameters`, and by algorithm: `networks`, with weights, gradients and moments of
        each in bytes; `parts`, every field of the plan in bytes; `held`, `learning`, `sampling` and `peak`; `rest`,
        what is left of `learning` without the networks, the activations and the cache; `pack`.
    """
    shape = SHAPES[model]
    plans = {}
    for name in algorithms:
        learned = reward_model == "both" or (reward_model == "ppo" and name == "ppo")
        networks = Networks(critic=name == "ppo", reward_model=learned, lora_rank=lora_rank)
        plans[name] = _shown(plan_memory(shape, networks, step))
    return {
        "models": list(SHAPES),
        "model": asdict(shape),
        "parameters": shape.parameters,
        "step": asdict(step),
        "lora_rank": lora_rank,
        "reward_model": reward_model,
        "sentence": SENTENCE,
        "plans": plans,
    }


def _shown(plan: MemoryPlan) -> dict[str, Any]:
    held, update = plan.networks, plan.update
    networks = {
        "policy": {"weights": held.policy + held.adapter, "gradients": update.gradients, "moments": held.moments},
        "reference": {"weights": held.reference, "gradients": 0, "moments": 0},
        "critic": {"weights": held.critic, "gradients": update.critic_gradients, "moments": held.critic_moments},
        "reward_model": {"weights": held.reward_model, "gradients": 0, "moments": 0},
    }
    parts = {**asdict(held), **asdict(update), **asdict(plan.rollout), "rounded": plan.rounded}
    sums = {name: getattr(plan, name) for name in ("held", "learning", "sampling", "peak")}
    named = sum(sum(network.values()) for network in networks.values()) + update.activations
    cache = plan.rollout.cache if plan.device == "cuda" else 0  # on a CPU it is gone before the update
    rest = plan.learning - named - cache
    return {"networks": networks, "parts": parts, **sums, "rest": rest, "pack": asdict(plan.pack)}
