"""The policy loss: worked numbers, finite differences, where the clipped gradient dies, and what padding may hold."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from grouprl.algorithms import policy_loss, token_weights
from grouprl.types import UserError
from variants import variant

NAN, INF = math.nan, math.inf
ONE = torch.ones(1, 1)


def one_token(ratio: float, advantage: float, **options: object) -> tuple[float, float]:
    """Loss and d loss / d logprob of one token of weight 1 whose old probability was 1/8."""
    old = torch.full((1, 1), 0.125).log()
    logprob = (old + math.log(ratio)).requires_grad_()
    loss, _ = policy_loss(logprob, old, torch.tensor([advantage]), ONE, **options)
    loss.backward()
    return float(loss.detach()), float(logprob.grad)


# Worked numbers: (ratio, advantage) -> loss and gradient with clip_low 0.2, clip_high 0.3


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),  # on policy: the gradient is -A
        (1.25, 2.0, -2.5, -2.5),  # trusted
        (1.5, 2.0, -2.6, 0.0),  # good and already likelier: clipped at 1.3
        (1.5, -2.0, 3.0, 3.0),  # bad and likelier: pushed back
        (0.5, 2.0, -1.0, -1.0),  # good and less likely: pulled back
        (0.5, -2.0, 1.6, 0.0),  # bad and already less likely: clipped at 0.8
        (0.9, -2.0, 1.8, 1.8),
        (1.25, 0.0, 0.0, 0.0),
    ],
)
def test_clip_by_hand(ratio: float, advantage: float, loss: float, gradient: float):
    got = one_token(ratio, advantage, clip_low=0.2, clip_high=0.3)
    assert got == pytest.approx((loss, gradient), abs=1e-5)


@pytest.mark.parametrize(("ratio", "trusted"), [(0.79, False), (0.81, True), (1.29, True), (1.31, False)])
def test_the_gradient_dies_just_outside_the_trust_region(ratio: float, trusted: bool):
    outwards = 1.0 if ratio > 1 else -1.0
    _, gradient = one_token(ratio, outwards, clip_low=0.2, clip_high=0.3)
    assert gradient == pytest.approx(-outwards * ratio if trusted else 0.0, abs=1e-5)
    _, inwards = one_token(ratio, -outwards, clip_low=0.2, clip_high=0.3)
    assert inwards == pytest.approx(outwards * ratio, abs=1e-5)


@pytest.mark.parametrize("advantage", [2.0, -2.0])
@pytest.mark.parametrize(("ratio", "weight"), [(0.5, 0.8), (1.1, 1.1), (1.5, 1.3)])
def test_cispo_bounds_the_weight_and_keeps_the_gradient(ratio: float, weight: float, advantage: float):
    loss, gradient = one_token(ratio, advantage, surrogate="cispo", clip_low=0.2, clip_high=0.3)
    assert gradient == pytest.approx(-weight * advantage, abs=1e-5)
    assert loss == pytest.approx(-weight * advantage * math.log(0.125 * ratio), rel=1e-5)


def test_plain_is_never_clipped():
    assert one_token(3.0, 2.0, surrogate="plain") == pytest.approx((-6.0, -6.0), abs=1e-4)


def test_dual_clip_bounds_the_loss_of_bad_tokens_alone():
    assert one_token(5.0, -1.0) == pytest.approx((5.0, 5.0), abs=1e-4)
    assert one_token(5.0, -1.0, dual_clip=3.0) == pytest.approx((3.0, 0.0), abs=1e-4)
    assert one_token(2.0, -1.0, dual_clip=3.0) == pytest.approx((2.0, 2.0), abs=1e-4)
    assert one_token(0.1, 1.0, dual_clip=3.0) == pytest.approx((-0.1, -0.1), abs=1e-4)


def test_a_sequence_shares_the_geometric_mean_of_its_ratios():
    # Ratios 2 and 1/2: the tokens are clipped on their own, the sequence has ratio 1.
    logprobs = torch.tensor([[2.0, 0.5, 7.0]]).log().requires_grad_()
    mask = torch.tensor([[True, True, False]])
    weights = token_weights(mask)
    loss, stats = policy_loss(logprobs, torch.zeros(1, 3), torch.tensor([3.0]), weights, ratio="sequence")
    loss.backward()
    assert loss.item() == pytest.approx(-3.0, abs=1e-5)
    assert logprobs.grad[0].tolist() == pytest.approx([-1.5, -1.5, 0.0], abs=1e-5)
    assert float(stats["ratio_max"]) == pytest.approx(1.0, abs=1e-6)
    token_loss, _ = policy_loss(logprobs, torch.zeros(1, 3), torch.tensor([3.0]), weights)
    assert token_loss.item() == pytest.approx(-(1.2 + 0.5) / 2 * 3, abs=1e-5)


def test_the_kl_term_is_added_with_its_coefficient():
    # Policy 1/8, reference 1/4: log r = log 2, k3 = 2 - 1 - log 2 = 0.306853; d k3 / d logprob = 1 - r = -1.
    reference = torch.full((1, 1), 0.25).log()
    loss, gradient = one_token(1.0, 2.0, ref_logprobs_NT=reference, kl_coef=0.5)
    assert loss == pytest.approx(-2.0 + 0.5 * 0.306853, abs=1e-5)
    assert gradient == pytest.approx(-2.0 - 0.5, abs=1e-5)
    assert one_token(1.0, 2.0, ref_logprobs_NT=reference, kl_coef=0.5, kl="k1")[1] == pytest.approx(-1.5, abs=1e-5)
    assert one_token(1.0, 2.0, ref_logprobs_NT=reference) == pytest.approx((-2.0, -2.0), abs=1e-5)


def test_the_stats_describe_real_tokens():
    logprobs = torch.tensor([[1.5, 0.5, 1.0], [1.5, 0.5, 9.0]]).log()
    mask = torch.tensor([[True, True, True], [True, True, False]])
    reference = torch.full((2, 3), 2.0).log()
    _, stats = policy_loss(
        logprobs, torch.zeros(2, 3), torch.tensor([1.0, -1.0]), token_weights(mask), ref_logprobs_NT=reference, kl="k1"
    )
    assert float(stats["clip_high_fraction"]) == pytest.approx(1 / 5)  # 1.5 with A > 0
    assert float(stats["clip_low_fraction"]) == pytest.approx(1 / 5)  # 0.5 with A < 0
    assert float(stats["ratio_mean"]) == pytest.approx(1.0)
    assert float(stats["ratio_max"]) == pytest.approx(1.5)
    assert float(stats["kl"]) == pytest.approx((2 * math.log(1.5) + 2 * math.log(0.5)) / 5 - math.log(2), abs=1e-6)
    assert not any(value.requires_grad for value in stats.values())


# What holds at any point

RATIO, ADVANTAGE = st.floats(0.01, 20), st.floats(-5, 5)


@given(
    st.lists(ADVANTAGE, min_size=8, max_size=8), st.floats(0, 0.99), st.floats(0, 5), st.sampled_from([None, 1.1, 3])
)
def test_at_ratio_1_any_clipping_is_the_plain_policy_gradient(
    advantages: list[float], clip_low: float, clip_high: float, dual_clip: float | None
):
    """d loss / d logprob = -weight * A, with the advantages of tokens; those of a sequence share their mean."""
    advantages_NT = torch.tensor(advantages, dtype=torch.float64).view(2, 4)
    weights = token_weights(REAL).double()
    bounds = {"clip_low": clip_low, "clip_high": clip_high}
    for options in ({"surrogate": "plain"}, {"surrogate": "cispo", **bounds}, {"dual_clip": dual_clip, **bounds}):
        leaf = LOGPROBS.clone().requires_grad_()
        policy_loss(leaf, LOGPROBS, advantages_NT, weights, **options)[0].backward()
        torch.testing.assert_close(leaf.grad, -weights * advantages_NT, atol=1e-14, rtol=0)
        leaf = LOGPROBS.clone().requires_grad_()
        policy_loss(leaf, LOGPROBS, advantages_NT[:, 0], weights, ratio="sequence", **options)[0].backward()
        torch.testing.assert_close(leaf.grad, -weights * advantages_NT[:, :1], atol=1e-14, rtol=0)


@given(RATIO, ADVANTAGE, st.floats(0, 0.9), st.floats(0, 5))
def test_clipping_is_never_optimistic_and_the_dual_clip_bounds_it(
    ratio: float, advantage: float, clip_low: float, clip_high: float
):
    bounds = {"clip_low": clip_low, "clip_high": clip_high}
    plain, _ = one_token(ratio, advantage, surrogate="plain")
    clipped, _ = one_token(ratio, advantage, **bounds)
    bounded, _ = one_token(ratio, advantage, dual_clip=3.0, **bounds)
    assert clipped >= plain - 1e-5
    assert bounded <= max(clipped, 0) + 1e-5
    assert bounded <= 3 * abs(advantage) + 1e-5


@given(RATIO, ADVANTAGE, st.floats(0.01, 100))
def test_the_gradient_is_as_large_as_the_advantage_says(ratio: float, advantage: float, factor: float):
    for options in ({}, {"dual_clip": 2.0}, {"surrogate": "cispo"}, {"surrogate": "plain"}):
        one, scaled = one_token(ratio, advantage, **options), one_token(ratio, factor * advantage, **options)
        assert scaled == pytest.approx([factor * value for value in one], rel=1e-4, abs=1e-4)


# Finite differences

LOGPROBS = torch.tensor([[-1.0, -2.2, -0.3, -3.0], [-0.7, -1.1, -9.9, -9.9]], dtype=torch.float64)
# Away from the kinks at ratio 0.8 and 1.3, on every side of them, for tokens and for sequences.
LOG_RATIOS = torch.tensor([[0.1, -0.5, 0.4, -0.1], [0.5, -0.15, 0.0, 0.0]], dtype=torch.float64)
REFERENCE = LOGPROBS + torch.tensor([[0.3, -0.2, 0.15, -0.4], [-0.25, 0.1, 0.0, 0.0]], dtype=torch.float64)
REAL = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()


def numeric_gradient(function: Callable[[Tensor], float], at: Tensor, step: float = 1e-6) -> Tensor:
    gradient = torch.zeros_like(at)
    for index in itertools.product(*map(range, at.shape)):
        up, down = at.clone(), at.clone()
        up[index] += step
        down[index] -= step
        gradient[index] = (function(up) - function(down)) / (2 * step)
    return gradient


@pytest.mark.parametrize("advantages", [[1.5, -0.8], [-0.6, 2.0]])
@pytest.mark.parametrize("aggregate", ["sequence_mean", "token_mean", "constant"])
@pytest.mark.parametrize("kl", ["k1", "k2", "k3"])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("surrogate", ["clip", "plain"])
def test_the_gradient_is_that_of_the_loss(surrogate: str, ratio: str, kl: str, aggregate: str, advantages: list[float]):
    weights = token_weights(REAL, aggregate=aggregate, constant_length=6).double()

    def loss_at(logprobs: Tensor) -> Tensor:
        return policy_loss(
            logprobs,
            LOGPROBS - LOG_RATIOS,
            torch.tensor(advantages, dtype=torch.float64),
            weights,
            surrogate=surrogate,
            ratio=ratio,
            clip_high=0.3,
            ref_logprobs_NT=REFERENCE,
            kl_coef=0.3,
            kl=kl,
        )[0]

    logprobs = LOGPROBS.clone().requires_grad_()
    loss_at(logprobs).backward()
    torch.testing.assert_close(
        logprobs.grad, numeric_gradient(lambda at: float(loss_at(at)), LOGPROBS), atol=1e-8, rtol=1e-6
    )
    assert (logprobs.grad[~REAL] == 0).all()


@pytest.mark.parametrize("aggregate", ["sequence_mean", "token_mean", "constant"])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_cispo_weights_are_constants_of_the_gradient(ratio: str, aggregate: str):
    """Its loss is not an antiderivative, so the weights of the finite differences are held where they were."""
    weights = token_weights(REAL, aggregate=aggregate, constant_length=6).double()
    advantages = torch.tensor([1.5, -0.8], dtype=torch.float64)
    logprobs = LOGPROBS.clone().requires_grad_()
    policy_loss(logprobs, LOGPROBS - LOG_RATIOS, advantages, weights, surrogate="cispo", ratio=ratio)[0].backward()
    bounded = []
    for row, real in zip(LOG_RATIOS.tolist(), REAL.sum(1).tolist(), strict=True):
        logs = [sum(row[:real]) / real] * 4 if ratio == "sequence" else row
        bounded.append([min(max(math.exp(log), 0.8), 1.2) for log in logs])
    held = torch.tensor(bounded, dtype=torch.float64) * advantages[:, None] * weights

    def loss_at(at: Tensor) -> float:
        return -float((held * at).sum())

    torch.testing.assert_close(logprobs.grad, numeric_gradient(loss_at, LOGPROBS), atol=1e-8, rtol=1e-6)


# Soft gate, geometric mean, completions far off-policy


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -4.0, -2.0),  # 4 / 1 * 1/2: on policy the gradient is -A
        (2.0, 2.0, -8 / (1 + math.exp(-1)), -3.145791),  # 4 * 0.196612 of the slope is left, times the ratio 2
        (2.0, -1.0, 2 / (1 + math.exp(-2)), 0.839949),  # tau 2: 4 * 0.104994
        (1.0, -1.0, 1.0, 1.0),
    ],
)
def test_a_soft_gate_by_hand(ratio: float, advantage: float, loss: float, gradient: float):
    got = one_token(ratio, advantage, surrogate="sapo", tau_pos=1.0, tau_neg=2.0)
    assert got == pytest.approx((loss, gradient), abs=1e-5)


@pytest.mark.parametrize(
    ("advantage", "mean", "moved"),
    [
        (1.0, (1.5 * 0.25) ** 0.5, [False, True]),  # 2 is clipped to 1.5, 1/4 is pulled back
        (-1.0, (2 * 0.5) ** 0.5, [True, False]),  # 1/4 is clipped to 1/2
    ],
)
def test_a_geometric_mean_of_clipped_ratios_by_hand(advantage: float, mean: float, moved: list[bool]):
    """Two tokens with ratios 2 and 1/4; a third one does not exist."""
    logprobs = torch.tensor([[2.0, 0.25, 1.0]]).log().requires_grad_()
    weights = torch.tensor([[0.5, 0.5, 0.0]])
    arguments = (torch.zeros(1, 3), torch.tensor([advantage]), weights)
    loss, stats = policy_loss(logprobs, *arguments, surrogate="gmpo", clip_low=0.5, clip_high=0.5)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(-advantage * mean)
    expected = [-advantage * mean / 2 if one else 0.0 for one in moved]
    assert logprobs.grad[0].tolist() == pytest.approx([*expected, 0.0])
    assert float(stats["clip_low_fraction"] + stats["clip_high_fraction"]) == 0.5


def test_bad_completions_that_the_policy_left_teach_nothing():
    """Mean gaps of 0.3, 0.3 and 0.1 nats: of those above 0.2, the one with a negative advantage is left out."""
    old = torch.zeros(3, 2)
    logprobs = torch.tensor([[-0.6, 0.0], [-0.6, 0.0], [-0.2, 0.0]]).requires_grad_()
    arguments = (torch.tensor([-1.0, 1.0, -1.0]), torch.ones(3, 2))
    options = {"surrogate": "plain", "off_policy_delta": 0.2}
    loss, _ = policy_loss(logprobs, old, *arguments, **options)
    loss.backward()
    ratios = logprobs.detach().exp()
    torch.testing.assert_close(logprobs.grad, torch.stack([0 * ratios[0], -ratios[1], ratios[2]]))
    # Beside a correction the gap is that to the sampler: all three are 0.5 nats from it.
    options["sampler_logprobs_NT"] = logprobs.detach() + 0.5
    assert float(policy_loss(logprobs.detach(), old, *arguments, **options)[0]) == pytest.approx(
        -float(ratios[1].sum())
    )


# p, m, advantage, and the divergences of the docs: |p - m|, and m log(m / p) + (1 - m) log((1 - m) / (1 - p))
MOVES = [
    (0.03, 0.01, 1.0, 0.02, 0.009219),
    (0.7, 0.9, -1.0, 0.2, 0.116322),
    (0.7, 0.9, 1.0, 0.2, 0.116322),  # it may come back
    (0.6, 0.5, 2.0, 0.1, 0.020411),
    (0.4, 0.5, 2.0, 0.1, 0.020411),
]


@pytest.mark.parametrize(("p", "m", "advantage", "tv", "kl"), MOVES)
def test_a_token_whose_probability_left_the_samplers_has_no_gradient(
    p: float, m: float, advantage: float, tv: float, kl: float
):
    assert kl == pytest.approx(m * math.log(m / p) + (1 - m) * math.log((1 - m) / (1 - p)), abs=1e-6)
    away = (p - m) * advantage > 0
    for name, size in (("divergence_tv", tv), ("divergence_kl", kl)):
        for limit, stopped in ((size * 0.99, away), (size * 1.01, False)):
            logprobs = torch.tensor([[p]]).log().requires_grad_()
            arguments = (torch.tensor([[m]]).log(), torch.tensor([advantage]), torch.ones(1, 1))
            loss, _ = policy_loss(logprobs, *arguments, surrogate="plain", **{name: limit})
            loss.backward()
            assert float(logprobs.grad[0, 0]) == pytest.approx(0.0 if stopped else -advantage * p / m, rel=1e-5)


def test_the_mask_compares_with_the_sampler_and_the_ratio_with_the_old_policy():
    logprobs, old, drawn = (torch.tensor([[value, 0.0]]).log().clamp(min=-9) for value in (0.6, 0.55, 0.3))
    options = {"surrogate": "plain", "divergence_tv": 0.2, "mask_NT": torch.tensor([[True, False]])}
    arguments = (logprobs, old, torch.tensor([1.0]), torch.tensor([[1.0, 0.0]]))
    assert float(policy_loss(*arguments, **options)[0]) == pytest.approx(-0.6 / 0.55)
    assert float(policy_loss(*arguments, sampler_logprobs_NT=drawn, **options)[0]) == 0.0
    certain = torch.zeros(1, 2)  # probabilities of 1, and rounding above
    loss, _ = policy_loss(certain + 1e-7, certain, torch.tensor([1.0]), certain + 1, divergence_kl=0.05)
    assert float(loss) == pytest.approx(-2.0)


# Padding, shapes, options


@pytest.mark.parametrize("junk", [NAN, INF, -INF, 1e30])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("surrogate", ["clip", "cispo", "plain", "sapo", "gmpo"])
def test_padding_may_hold_anything(surrogate: str, ratio: str, junk: float):
    advantages = torch.tensor([[1.0, -2.0, 0.5, 3.0], [-1.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    inputs = [LOGPROBS, LOGPROBS - LOG_RATIOS, advantages, token_weights(REAL).double(), REFERENCE]
    results = []
    for pad in (0.0, junk):
        logprobs, old, advantages_NT, weights, reference = (tensor.masked_fill(~REAL, pad) for tensor in inputs)
        logprobs.requires_grad_()
        loss, stats = policy_loss(
            logprobs,
            old,
            advantages_NT,
            weights,
            surrogate=surrogate,
            ratio=ratio,
            dual_clip=3.0,
            ref_logprobs_NT=reference,
            kl_coef=0.1,
            mask_NT=REAL,
        )
        loss.backward()
        results.append((loss.detach(), logprobs.grad, stats))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    assert math.isfinite(results[0][0])


def test_advantages_per_completion_are_those_of_each_token():
    per_token = torch.tensor([[1.5] * 4, [-0.8] * 4], dtype=torch.float64)
    weights = token_weights(REAL).double()
    old = LOGPROBS - LOG_RATIOS
    assert policy_loss(LOGPROBS, old, per_token[:, 0], weights)[0] == policy_loss(LOGPROBS, old, per_token, weights)[0]


def test_weights_decide_what_is_real_unless_a_mask_is_given():
    weights = token_weights(REAL).double()
    weights[0, 0] = 0  # a real token that is not trained still belongs to its sequence
    arguments = (LOGPROBS, LOGPROBS - LOG_RATIOS, torch.tensor([1.0, 1.0], dtype=torch.float64), weights)
    by_weights = policy_loss(*arguments, ratio="sequence", surrogate="plain")[1]["ratio_max"]
    by_mask = policy_loss(*arguments, ratio="sequence", surrogate="plain", mask_NT=REAL)[1]["ratio_max"]
    assert float(by_weights) == pytest.approx(math.exp(0.35 / 2), rel=1e-9)  # row 1: (0.5 - 0.15) / 2
    assert float(by_mask) == pytest.approx(math.exp(0.35 / 2), rel=1e-9)
    first = policy_loss(*(tensor[:1] for tensor in arguments), ratio="sequence", surrogate="plain")[1]["ratio_max"]
    masked = policy_loss(*(t[:1] for t in arguments), ratio="sequence", surrogate="plain", mask_NT=REAL[:1])[1]
    assert float(first) == pytest.approx(math.exp(-0.2 / 3), rel=1e-9)
    assert float(masked["ratio_max"]) == pytest.approx(math.exp(-0.1 / 4), rel=1e-9)


def test_a_kl_term_needs_a_reference():
    with pytest.raises(ValueError, match="ref_logprobs_NT"):
        policy_loss(ONE, ONE, torch.ones(1), ONE, kl_coef=0.1)


@pytest.mark.parametrize("options", [{"surrogate": "ppo"}, {"ratio": "group"}])
def test_unknown_options_are_refused(options: dict[str, str]):
    with pytest.raises(ValueError, match=next(iter(options.values()))):
        policy_loss(ONE, ONE, torch.ones(1), ONE, **options)


@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 3), (2, 2), (2,), (2, 3)],
        [(2, 3), (2, 3), (2,), (2, 1)],
        [(2, 3), (2, 3), (3,), (2, 3)],
        [(2, 3), (2, 3), (2, 1), (2, 3)],
        [(3,), (3,), (3,), (3,)],
    ],
)
def test_shapes_that_differ_are_refused(shapes: list[tuple[int, ...]]):
    with pytest.raises(ValueError, match="shape"):
        policy_loss(*(torch.zeros(shape) for shape in shapes))


def test_each_side_of_the_clip_is_counted_where_it_cuts():
    """Ten tokens: below, three have A < 0 and one A > 0; above, two have A > 0 and three A < 0; one stays inside."""
    ratios = torch.tensor([[0.5, 0.6, 0.7, 0.5, 1.5, 2.0, 1.5, 1.5, 1.5, 1.0]])
    advantages = torch.tensor([[-1.0, -1.0, -1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0]])
    _, stats = policy_loss(ratios.log(), torch.zeros(1, 10), advantages, torch.full((1, 10), 0.1))
    assert float(stats["clip_low_fraction"]) == pytest.approx(0.3)
    assert float(stats["clip_high_fraction"]) == pytest.approx(0.2)


@pytest.mark.parametrize("surrogate", ["clip", "plain"])
def test_the_old_log_probs_are_constants(surrogate: str):
    """On policy, with the policy's own log-probs as the old ones: the gradient is -A, not 0."""
    logprobs = torch.full((1, 3), -0.5, requires_grad=True)
    loss, _ = policy_loss(logprobs, logprobs, torch.tensor([2.0]), torch.full((1, 3), 1 / 3), surrogate=surrogate)
    loss.backward()
    torch.testing.assert_close(logprobs.grad, torch.full((1, 3), -2 / 3))


@pytest.mark.parametrize(
    "moves", [{"surrogate": "gmpo"}, {"ratio": "sequence"}, {"surrogate": "sapo", "ratio": "sequence"}], ids=str
)
@pytest.mark.parametrize("limit", ["divergence_tv", "divergence_kl"])
def test_a_limit_of_single_tokens_is_refused_beside_a_ratio_of_the_completion(moves: dict[str, str], limit: str):
    """The first of three tokens rose from 0.1 to 0.6: by itself it has no gradient, in a mean it would keep a third."""
    new = torch.tensor([[0.6, 0.5, 0.5]]).log().requires_grad_()
    old = torch.tensor([[0.1, 0.5, 0.5]]).log()
    weights = torch.full((1, 3), 1 / 3)
    loss, _ = policy_loss(new, old, torch.tensor([1.0]), weights, surrogate="plain", **{limit: 0.15})
    loss.backward()
    assert new.grad is not None
    assert new.grad.tolist() == [[0, pytest.approx(-1 / 3), pytest.approx(-1 / 3)]]
    with pytest.raises(ValueError, match="whose one ratio moves the whole completion"):
        policy_loss(new, old, torch.tensor([1.0]), weights, **moves, **{limit: 0.15})
    policy_loss(
        new, old, torch.tensor([1.0]), weights, **{**moves, "surrogate": "cispo", "ratio": "sequence"}, **{limit: 0.15}
    )


@pytest.mark.parametrize("name", ["gmpo", "gspo", "luspo"])
@pytest.mark.parametrize("limit", ["divergence_tv", "divergence_kl"])
def test_algorithms_of_one_ratio_refuse_a_limit_of_single_tokens(name: str, limit: str):
    with pytest.raises(UserError, match=f"expected another value with algorithm.{limit}"):
        variant(name, **{limit: 0.15})
