"""An algorithm that makes no sense cannot be written, and the error names the two fields that do not fit."""

from dataclasses import fields

import pytest

from grouprl import Algorithm, RunConfig, UserError
from grouprl.algorithms.named import NAMED, grpo, ppo
from grouprl.config.run import check_sections
from variants import variant

CONTRADICTIONS = [
    ({"baseline": "critic"}, "baseline", "critic"),
    ({"critic": "copy"}, "critic", "baseline"),
    ({"baseline": "critic", "critic": "copy"}, "baseline", "credit"),
    ({"credit": "step", "baseline": "leave_one_out"}, "credit", "baseline"),
    ({"credit": "step", "scale": "none"}, "credit", "scale"),
    ({"credit": "step", "kl_in": "reward"}, "credit", "kl_in"),
    ({"credit": "token", "baseline": "batch_mean"}, "scale", "baseline"),
    ({"baseline": "none"}, "scale", "baseline"),
    ({"kl_in": "reward"}, "kl_in", "scale"),
    ({"kl_in": "reward", "scale": "batch_std"}, "kl_in", "scale"),
    ({"reward_mix": "normalise_then_sum", "baseline": "constant", "scale": "none"}, "reward_mix", "baseline"),
    ({"drop_equal": True, "baseline": "batch_mean", "scale": "none"}, "drop_equal", "baseline"),
    ({"drop_equal": True, "credit": "step"}, "drop_equal", "credit"),
    ({"drop_equal": True, "reward_mix": "normalise_then_sum"}, "drop_equal", "reward_mix"),
    ({"ratio": "sequence", "credit": "step"}, "credit", "ratio"),
    ({"ratio": "sequence", "entropy_share": 0.2}, "entropy_share", "ratio"),
    ({"ratio": "sequence", "correction": "mask"}, "correction_level", "ratio"),
    ({"lam": 0.5}, "lam", "critic"),
    ({"value_clip": None}, "value_clip", "critic"),
    ({"value_coef": 0.5}, "value_coef", "critic"),
    ({"correction_cap": 3.0}, "correction_cap", "correction"),
    ({"correction": "truncate", "correction_floor": 0.1}, "correction_floor", "correction"),
    ({"surrogate": "plain", "clip_high": 0.3}, "clip_high", "surrogate"),
    ({"scale": "none", "std": "sample"}, "std", "scale"),
    ({"kl_rate": 0.2}, "kl_rate", "kl_target"),
    ({"baseline": "constant"}, "scale", "baseline"),
    ({"baseline": "constant", "scale": "batch_std"}, "baseline", "scale"),
    ({"baseline_constant": 0.5}, "baseline_constant", "baseline"),
    ({"reward_mix": "normalise_then_sum", "kl_in": "reward", "scale": "none"}, "reward_mix", "kl_in"),
    ({"reward_mix": "normalise_then_sum", "credit": "step"}, "reward_mix", "credit"),
    ({"gamma": 0.9}, "gamma", "credit"),
    ({"refills": 2}, "refills", "drop_equal"),
    ({"drop_below": 0.8, "drop_above": 0.2}, "drop_below", "drop_above"),
    ({"clip_low": 1.0}, "clip_low", "surrogate"),
    ({"dual_clip": 3.0, "surrogate": "plain"}, "dual_clip", "surrogate"),
    ({"kl_target": 0.1, "kl_coef": 0.0}, "kl_target", "kl_coef"),
    ({"refresh_reference": 5, "kl_coef": 0.0}, "refresh_reference", "kl_coef"),
    ({"critic_warmup": 5}, "critic_warmup", "critic"),
]


@pytest.mark.parametrize(("options", "field", "other"), CONTRADICTIONS, ids=lambda value: str(value))
def test_a_contradiction_names_both_fields(options: dict[str, object], field: str, other: str) -> None:
    with pytest.raises(UserError) as told:
        variant(**options)
    assert str(told.value).startswith(f"algorithm.{field}: expected another value with algorithm.{other}=")
    assert ", got " in str(told.value)


@pytest.mark.parametrize(
    "options",
    [
        {"clip_low": -0.1},
        {"clip_low": 1.1},
        {"clip_high": float("inf")},
        {"baseline_constant": float("nan")},
        {"drop_above": float("nan")},
        {"kl_coef": float("nan")},
        {"kl_coef": -1.0},
        {"gamma": 1.5},
        {"lam": -0.5},
        {"dual_clip": 0.5},
        {"entropy_share": 0.0},
        {"correction_cap": 0.5},
        {"passes": 0},
        {"minibatches": 0},
        {"overlong_buffer": 1.5},
        {"baseline": "median"},
        {"credit": "word"},
        {"kl": "k4"},
        {"critic": "big"},
    ],
    ids=str,
)
def test_a_value_out_of_range_names_its_field(options: dict[str, object]) -> None:
    with pytest.raises(UserError, match=rf"^algorithm\.{next(iter(options))}: .*expected"):
        variant(**options)


@pytest.mark.parametrize(("field", "algorithm"), [("baseline", grpo), ("baseline", NAMED["rloo"])], ids=str)
def test_a_completion_alone_has_no_group(field: str, algorithm: Algorithm) -> None:
    with pytest.raises(UserError, match=rf"rollout.group_size: .* algorithm.{field}={algorithm.baseline!r}, got 1"):
        check_sections(RunConfig(algorithm=algorithm, rollout={"group_size": 1}))


@pytest.mark.parametrize("name", ["reinforce", "reinforce_batch", "reinforce_pp", "ppo"])
def test_what_does_not_compare_within_the_group_needs_none(name: str) -> None:
    check_sections(RunConfig(algorithm=NAMED[name], rollout={"group_size": 1}))


def test_a_critics_learning_rate_needs_a_critic() -> None:
    with pytest.raises(UserError, match=r"learner.critic_learning_rate: .* algorithm.critic='none', got 0.1"):
        check_sections(RunConfig(learner={"critic_learning_rate": 0.1}))
    check_sections(RunConfig(algorithm=ppo, learner={"critic_learning_rate": 0.1}))


def test_one_completion_is_no_batch() -> None:
    rollout = {"group_size": 1, "problems_per_step": 1}
    with pytest.raises(UserError, match=r"rollout.group_size: expected 2 or more with algorithm.baseline='batch_mean'"):
        check_sections(RunConfig(algorithm=NAMED["reinforce_batch"], rollout=rollout))
    check_sections(RunConfig(algorithm=NAMED["reinforce_pp"], rollout=rollout))  # its batch is one of tokens


def test_every_name_is_its_own_and_differs_from_grpo() -> None:
    assert all(NAMED[name].name == name for name in NAMED)
    rules = {variant(algorithm, name="") for algorithm in NAMED.values()}
    assert len(rules) == len(NAMED)


def test_ppo_is_grpo_with_a_critic_in_the_place_of_the_group() -> None:
    changed = {field.name for field in fields(Algorithm) if getattr(ppo, field.name) != getattr(grpo, field.name)}
    assert {"baseline", "critic", "credit", "kl_in"} <= changed


@pytest.mark.parametrize("field", ["floor", "sharpness"])
def test_what_only_the_edge_sampler_has_needs_it(field: str) -> None:
    with pytest.raises(UserError, match=rf"curriculum.{field}: expected sampler=edge"):
        check_sections(RunConfig(curriculum={field: 0.7}))
    check_sections(RunConfig(curriculum={field: 0.7, "sampler": "edge"}))
