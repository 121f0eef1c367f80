"""The stages of a group's loss against sums by hand."""

from __future__ import annotations

import math

import pytest

from explained_group import TOKENS, UPDATED
from grouprl.algorithms.named import NAMED
from grouprl.algorithms.spec import Algorithm
from grouprl.algorithms.stages import group_stages
from variants import variant


def test_ratio_loss_gradient_and_update_by_hand() -> None:
    stages = group_stages(variant(passes=2, kl_coef=0.1), TOKENS, UPDATED, kl_coef=0.1)
    first, second = stages["ratio"]["completions"]
    assert (first["mean"], first["max"]) == pytest.approx((1.5, 1.5))
    assert (second["mean"], second["max"]) == pytest.approx((0.8, 1.1))
    # 1.5 with an advantage of 1 is beyond 1.2; 0.5 with -1 is below 0.8; 1.1 is inside.
    assert (first["clip_high_fraction"], second["clip_low_fraction"]) == (1, 0.5)
    # k3 with a reference that is twice as probable: 2 - 1 - log 2; its gradient is 1 - 2.
    k3 = 1 - math.log(2)
    assert [one["sum"] for one in stages["kl"]["completions"]] == pytest.approx([k3, 2 * k3])
    assert [one["mean"] for one in stages["kl"]["completions"]] == pytest.approx([k3, k3])
    loss = stages["loss"]
    assert loss["surrogate"] == pytest.approx(-1.2 / 2 + (0.8 + 1.1) / 4)
    assert loss["kl"] == pytest.approx(0.1 * k3)
    assert loss["completions"] == pytest.approx([-0.6 + 0.05 * k3, 1.9 / 4 + 0.05 * k3])
    gradients = [one["sum"] for one in stages["gradient"]["completions"]]
    assert gradients == pytest.approx([-0.1 / 2, 1.1 / 4 - 2 * 0.1 / 4])
    assert [one["weight"] for one in stages["gradient"]["completions"]] == [0.5, 0.5]
    first, second = stages["update"]["completions"]
    assert (first["before"], first["after"]) == pytest.approx((math.log(1.5) - 1, -0.5))
    assert (second["before"], second["after"]) == pytest.approx((math.log(0.55) - 2, -1.0))


def test_a_kl_in_the_reward_is_of_the_policy_before_the_update_and_no_part_of_the_loss() -> None:
    stages = group_stages(NAMED["rloo"], TOKENS, UPDATED, kl_coef=0.03)
    # k1: the old policy's log-probs less the reference's, which is 3 times as probable, then 1 and 2.2 times.
    sums = [one["sum"] for one in stages["kl"]["completions"]]
    assert sums == pytest.approx([-math.log(3), -math.log(1) - math.log(2.2)])
    assert stages["loss"]["kl"] == 0
    assert set(stages["ratio"]["completions"][0]) == {"mean", "max"}  # nothing is clipped


@pytest.mark.parametrize("algorithm", NAMED.values(), ids=list(NAMED))
def test_every_algorithm_has_stages_of_finite_numbers(algorithm: Algorithm) -> None:
    stages = group_stages(algorithm, TOKENS, UPDATED, kl_coef=algorithm.kl_coef)
    assert stages["loss"]["share"] == pytest.approx(stages["loss"]["surrogate"] + stages["loss"]["kl"])
    assert (stages["kl"]["completions"] is None) == (algorithm.kl is None)
    assert all(math.isfinite(one["sum"]) for one in stages["gradient"]["completions"])
