"""An algorithm that makes no sense cannot be written, and the error names the two fields that do not fit."""

import pytest

from grouprl import RunConfig, UserError
from grouprl.algorithms.kl import Kl
from grouprl.algorithms.losses import Clip, Plain
from grouprl.algorithms.named import NAMED
from grouprl.algorithms.option import hints
from grouprl.algorithms.spec import Updates
from grouprl.algorithms.steps import StepAdvantage
from grouprl.algorithms.values import SharedCritic
from grouprl.config.algorithm import KINDS, as_tree, with_options
from grouprl.config.checks import check_sections
from variants import variant

CONTRADICTIONS = [
    ({"baseline": "critic", "credit": "token", "scale": "none"}, "baseline", "critic='none'"),
    ({"critic": "copy"}, "critic", "baseline"),
    ({"baseline": "critic", "critic": "copy"}, "baseline", "credit='completion'"),
    ({"credit": "step", "baseline": "leave_one_out"}, "credit", "baseline='leave_one_out'"),
    ({"credit": "step", "scale": "none"}, "credit", "scale='none'"),
    ({"credit": "step", "kl_in": "reward"}, "kl_in", "credit='step'"),
    ({"credit": "token", "baseline": "batch_mean"}, "credit", "scale='group_std'"),
    ({"baseline": "none"}, "baseline", "scale='group_std'"),
    ({"kl_in": "reward"}, "kl_in", "scale=none"),
    ({"kl_in": "reward", "scale": "batch_std"}, "kl_in", "scale=none"),
    ({"reward_mix": "normalise_then_sum", "baseline": "constant", "scale": "none"}, "reward_mix", "'constant'"),
    ({"drop_equal": True, "baseline": "batch_mean", "scale": "none"}, "drop_equal", "equal rewards have a signal"),
    ({"drop_equal": True, "credit": "step"}, "drop_equal", "credit='step'"),
    ({"drop_equal": True, "reward_mix": "normalise_then_sum"}, "drop_equal", "equal rewards have a signal"),
    ({"ratio": "sequence", "credit": "step"}, "ratio", "credit"),
    ({"ratio": "sequence", "entropy_share": 0.2}, "ratio", "entropy_share"),
    ({"ratio": "sequence", "correction": "mask"}, "ratio", "correction_level"),
    ({"surrogate": "gmpo", "credit": "step"}, "surrogate", "set surrogate=clip"),
    ({"surrogate": "gmpo", "ratio": "sequence"}, "surrogate", "ratio='sequence'"),
    ({"surrogate": "gmpo", "divergence_tv": 0.1}, "surrogate", "algorithm.divergence_tv"),
    ({"ratio": "sequence", "divergence_kl": 0.1}, "ratio", "algorithm.divergence_kl"),
    ({"surrogate": "sapo", "clip_high": 0.3}, "clip_high", "surrogate='sapo'"),
    ({"tau_neg": 2.0}, "tau_neg", "surrogate='clip'"),
    ({"surrogate": "vespo", "ratio": "sequence"}, "surrogate", "ratio='sequence'"),
    ({"k_pos": 1.0}, "k_pos", "surrogate='clip'"),
    ({"baseline": "length_mean"}, "baseline", "scale='group_std'"),
    ({"credit": "token", "scale": "advantage_std"}, "credit", "scale='advantage_std'"),
    ({"kl_in": "reward", "scale": "advantage_std"}, "kl_in", "scale=none"),
    ({"entropy_step": 0.1, "entropy_coef": 0.1}, "entropy_step", "entropy_target"),
    ({"lam": 0.5}, "lam", "no effect"),
    ({"value_clip": None}, "value_clip", "without algorithm.critic"),
    ({"value_coef": 0.5}, "value_coef", "without algorithm.critic"),
    ({"correction_cap": 3.0}, "correction_cap", "without algorithm.correction"),
    ({"correction": "truncate", "correction_floor": 0.1}, "correction_floor", "correction_kind='truncate'"),
    ({"surrogate": "plain", "clip_high": 0.3}, "clip_high", "surrogate='plain'"),
    ({"scale": "none", "std": "sample"}, "std", "scale='none'"),
    ({"kl_unbiased": True, "kl_in": "reward", "scale": "none"}, "kl_unbiased", "kl_in='reward'"),
    ({"kl_unbiased": True, "kl_coef": 0.0}, "kl_unbiased", "without algorithm.kl"),
    ({"kl_rate": 0.2}, "kl_rate", "kl_target"),
    ({"baseline": "constant"}, "baseline", "set scale to none"),
    ({"baseline": "constant", "scale": "batch_std"}, "baseline", "scale='batch_std'"),
    ({"baseline_constant": 0.5}, "baseline_constant", "no effect"),
    ({"reward_mix": "normalise_then_sum", "kl_in": "reward", "scale": "none"}, "kl_in", "kl_in=loss"),
    ({"reward_mix": "normalise_then_sum", "credit": "step"}, "reward_mix", "credit='step'"),
    ({"gamma": 0.9}, "gamma", "credit='completion'"),
    ({"refills": 2}, "refills", "without algorithm.filter"),
    ({"refills": 2, "mask_overlong": True}, "refills", "drop_equal"),
    ({"drop_below": 0.8, "drop_above": 0.2}, "drop_below", "drop_above"),
    ({"clip_low": 1.0}, "clip_low", "less than 1"),
    ({"dual_clip": 3.0, "surrogate": "plain"}, "dual_clip", "surrogate='plain'"),
    ({"kl_target": 0.1, "kl_coef": 0.0}, "kl_target", "without algorithm.kl"),
    ({"refresh_reference": 5, "kl_coef": 0.0}, "refresh_reference", "without algorithm.kl"),
    ({"critic_warmup": 5}, "critic_warmup", "without algorithm.critic"),
]


@pytest.mark.parametrize(("changes", "field", "other"), CONTRADICTIONS, ids=str)
def test_a_contradiction_names_both_options(changes: dict[str, object], field: str, other: str) -> None:
    with pytest.raises(UserError) as raised:
        variant(**changes)
    assert str(raised.value).startswith(f"algorithm.{field}: ")
    assert other in str(raised.value)
    assert "expected" in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"clip_low": -0.1}, {"clip_low": 1.1}, {"clip_high": float("inf")}, {"baseline_constant": float("nan")},
        {"drop_above": float("nan")}, {"kl_coef": float("nan")}, {"kl_coef": -1.0}, {"gamma": 1.5}, {"lam": -0.5},
        {"dual_clip": 0.5}, {"entropy_share": 0.0}, {"correction_cap": 0.5}, {"passes": 0}, {"minibatches": 0},
        {"overlong_buffer": 1.5}, {"baseline": "median"}, {"credit": "word"}, {"kl": "k4"}, {"critic": "big"},
        {"drift_coef": -1.0},
    ],
    ids=str,
)  # fmt: skip
def test_a_value_out_of_range_names_its_field(options: dict[str, object]) -> None:
    with pytest.raises(UserError, match=rf"^algorithm\.{next(iter(options))}(_estimator|_kind)?: .*expected"):
        variant(**options)


@pytest.mark.parametrize("name", ["grpo", "rloo", "opo", "pass_at_k"])
def test_a_completion_alone_has_no_group(name: str) -> None:
    baseline = NAMED[name].advantage.baseline
    with pytest.raises(UserError, match=rf"rollout.group_size: .* algorithm.baseline={baseline!r}, got 1"):
        check_sections(RunConfig(algorithm=NAMED[name], rollout={"group_size": 1}))


@pytest.mark.parametrize("name", ["reinforce", "reinforce_batch", "reinforce_pp", "ppo"])
def test_what_does_not_compare_within_the_group_needs_none(name: str) -> None:
    check_sections(RunConfig(algorithm=NAMED[name], rollout={"group_size": 1}))
    single = RunConfig(algorithm=NAMED[name], rollout={"group_size": 1, "problems_per_step": 1})
    if name == "reinforce_batch":  # the others' batch is one of tokens, or none
        with pytest.raises(UserError, match=r"rollout.group_size: expected 2 or more .*baseline='batch_mean'"):
            check_sections(single)
    else:
        check_sections(single)


def test_a_critics_learning_rate_needs_a_critic() -> None:
    with pytest.raises(UserError, match=r"learner.critic_learning_rate: .* algorithm.critic='none', got 0.1"):
        check_sections(RunConfig(learner={"critic_learning_rate": 0.1}))
    check_sections(RunConfig(algorithm=NAMED["ppo"], learner={"critic_learning_rate": 0.1}))


@pytest.mark.parametrize("field", ["floor", "sharpness"])
def test_what_only_the_edge_order_has_needs_it(field: str) -> None:
    with pytest.raises(UserError, match=rf"curriculum.{field}: expected order=edge"):
        check_sections(RunConfig(rollout={"curriculum": {field: 0.7}}))
    check_sections(RunConfig(rollout={"curriculum": {field: 0.7, "order": "edge"}}))


def test_a_reference_is_refreshed_after_every_nth_step_and_needs_a_weight() -> None:
    third = variant("grpo", refresh_reference=3)
    assert [third.refreshes_reference(step) for step in range(1, 7)] == [False, False, True] * 2
    assert Kl(kl_coef=1.0).kl_coef == 1
    with pytest.raises(UserError, match="expected more than 0, got 0"):
        Kl(kl_coef=0.0)


def test_named_algorithms_have_the_numbers_of_their_papers() -> None:
    dppo = NAMED["dppo"]
    assert dppo.objective == Plain(aggregate="token_mean", divergence_tv=0.15)
    assert (dppo.kl, dppo.updates) == (None, Updates(passes=1, minibatches=4))
    assert [name for name in NAMED if NAMED[name].group_filter.overlong_buffer] == ["dapo"]
    assert not any(NAMED[name].group_filter.mask_overlong for name in NAMED)


def test_every_name_is_its_own_and_differs_from_grpo() -> None:
    assert all(NAMED[name].name == name for name in NAMED)
    rules = {variant(algorithm, name="") for algorithm in NAMED.values()}
    assert len(rules) == len(NAMED)


def test_option_names_are_unique_over_all_parts() -> None:
    """Otherwise `algorithm.clip_high=0.3` would not say which part is meant."""
    names = [name for kinds in KINDS.values() for name in {name for kind in kinds for name in hints(kind)}]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", NAMED)
def test_a_written_algorithm_is_read_back_whatever_it_starts_from(name: str) -> None:
    tree = as_tree(NAMED[name])
    for start in NAMED.values():
        if name != "maxrl":  # its kind of advantage is its own
            assert with_options(start, tree) == NAMED[name]
    assert with_options(NAMED[name], tree) == NAMED[name]


def test_a_part_changes_its_kind_where_an_option_asks_for_it() -> None:
    assert type(variant(credit="step").advantage) is StepAdvantage
    assert type(variant(surrogate="plain").objective) is Plain
    assert variant("rloo", surrogate="clip").objective == Clip(aggregate="constant")
    assert variant("ppo", critic="shared").critic == SharedCritic()
    assert variant(kl_coef=0).kl is None
    assert variant("dapo", kl_coef=0.1).kl == Kl(kl_coef=0.1)
    assert variant("dapo", filter=None).filter is None
    assert variant(objective={"clip_high": 0.5}) == variant(clip_high=0.5)
