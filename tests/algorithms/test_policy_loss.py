"""The policy loss: worked numbers, where the clipped gradient dies, and what padding may hold."""

import math

import pytest
import torch

from grouprl.algorithms import policy_loss, token_weights
from grouprl.algorithms.surrogates import left_out

NAN, INF = math.nan, math.inf
ONE = torch.ones(1, 1)


def one_token(ratio: float, advantage: float, **options: object) -> tuple[float, float]:
    """Loss and d loss / d logprob of one token of weight 1 whose old probability was 1/8."""
    old = torch.full((1, 1), 0.125).log()
    logprob = (old + math.log(ratio)).requires_grad_()
    loss, _ = policy_loss(logprob, old, torch.tensor([advantage]), ONE, **options)
    loss.backward()
    return float(loss.detach()), float(logprob.grad)


# The old probability is 1/8, the reference's 1/4: log r = log 2, k3 = 2 - 1 - log 2 = 0.306853, its slope 1 - r = -1.
ANCHORED = {"ref_logprobs_NT": torch.full((1, 1), 0.25).log(), "kl_coef": 0.5}
DUAL, CISPO, PLAIN = {"dual_clip": 3.0}, {"surrogate": "cispo"}, {"surrogate": "plain"}
SOFT = {"surrogate": "sapo", "tau_pos": 1.0, "tau_neg": 2.0}
VESPO, DRIFT = {"surrogate": "vespo"}, {"drift_coef": 0.5}


@pytest.mark.parametrize(
    ("options", "ratio", "advantage", "loss", "gradient"),
    [
        ({}, 1.0, 2.0, -2.0, -2.0),  # on policy: the gradient is -A
        ({}, 1.25, 2.0, -2.5, -2.5),  # trusted
        ({}, 1.5, 2.0, -2.6, 0.0),  # good and already likelier: clipped at 1.3
        ({}, 1.5, -2.0, 3.0, 3.0),  # bad and likelier: pushed back
        ({}, 0.5, 2.0, -1.0, -1.0),  # good and less likely: pulled back
        ({}, 0.5, -2.0, 1.6, 0.0),  # bad and already less likely: clipped at 0.8
        ({}, 0.79, -1.0, 0.8, 0.0),
        ({}, 0.81, -1.0, 0.81, 0.81),
        ({}, 1.25, 0.0, 0.0, 0.0),
        ({}, 1.29, 1.0, -1.29, -1.29),
        ({}, 1.31, 1.0, -1.3, 0.0),
        # the weight is bounded and the gradient stays
        (CISPO, 0.5, 2.0, -1.6 * math.log(0.0625), -1.6),
        (CISPO, 1.1, -2.0, 2.2 * math.log(0.1375), 2.2),
        (CISPO, 1.5, -2.0, 2.6 * math.log(0.1875), 2.6),
        (PLAIN, 3.0, 2.0, -6.0, -6.0),
        # bad tokens alone have a bounded loss
        ({}, 5.0, -1.0, 5.0, 5.0),
        (DUAL, 5.0, -1.0, 3.0, 0.0),
        (DUAL, 2.0, -1.0, 2.0, 2.0),
        (DUAL, 0.1, 1.0, -0.1, -0.1),
        (ANCHORED, 1.0, 2.0, -2.0 + 0.5 * 0.306853, -2.5),
        ({**ANCHORED, "kl": "k1"}, 1.0, 2.0, -2.0 - 0.5 * math.log(2), -1.5),
        ({**ANCHORED, "kl_coef": 0.0}, 1.0, 2.0, -2.0, -2.0),
        # 4 / tau * sigmoid(tau (r - 1)); of the slope 4 * 0.196612 is left at 2, and 4 * 0.104994 with tau 2
        (SOFT, 1.0, 2.0, -4.0, -2.0),
        (SOFT, 2.0, 2.0, -8 / (1 + math.exp(-1)), -3.145791),
        (SOFT, 2.0, -1.0, 2 / (1 + math.exp(-2)), 0.839949),
        # w^k e^(lambda (1 - w)): 2^2 e^-3 with a good completion, 2^3 e^-2 with a bad one, without a gradient
        (VESPO, 1.0, 2.0, -2 * math.log(0.125), -2.0),
        (VESPO, 2.0, 2.0, -8 * math.exp(-3) * math.log(0.25), -8 * math.exp(-3)),
        (VESPO, 2.0, -1.0, 8 * math.exp(-2) * math.log(0.25), 8 * math.exp(-2)),
        (
            {**VESPO, "k_neg": 1.0, "lambda_neg": 4.0},
            0.5,
            -1.0,
            0.5 * math.exp(2) * math.log(0.0625),
            0.5 * math.exp(2),
        ),
        # 0.5 (log 2)^2, whose slope is log 2
        (DRIFT, 1.0, 2.0, -2.0, -2.0),
        (DRIFT, 2.0, -1.0, 2.0 + 0.5 * math.log(2) ** 2, 2.0 + math.log(2)),
        (DRIFT, 2.0, 0.0, 0.5 * math.log(2) ** 2, math.log(2)),
        (SOFT, 1.0, -1.0, 1.0, 1.0),
    ],
)
def test_one_token_by_hand(options: dict[str, object], ratio: float, advantage: float, loss: float, gradient: float):
    got = one_token(ratio, advantage, clip_low=0.2, clip_high=0.3, **options)
    assert got == pytest.approx((loss, gradient), abs=2e-5)


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


def test_the_stats_describe_real_tokens():
    logprobs = torch.tensor([[1.5, 0.5, 1.0], [1.5, 0.5, 9.0]]).log()
    mask = torch.tensor([[True, True, True], [True, True, False]])
    reference = torch.full((2, 3), 2.0).log()
    _, stats = policy_loss(
        logprobs.requires_grad_(),
        torch.zeros(2, 3),
        torch.tensor([1.0, -1.0]),
        token_weights(mask),
        ref_logprobs_NT=reference,
        kl="k1",
    )
    assert float(stats["ratio_mean"]) == pytest.approx(1.0)
    assert float(stats["ratio_max"]) == pytest.approx(1.5)
    assert float(stats["kl"]) == pytest.approx((2 * math.log(1.5) + 2 * math.log(0.5)) / 5 - math.log(2), abs=1e-6)
    assert not any(value.requires_grad for value in stats.values())


LOGPROBS = torch.tensor([[-1.0, -2.2, -0.3, -3.0], [-0.7, -1.1, -9.9, -9.9]], dtype=torch.float64)
# Away from the kinks at ratio 0.8 and 1.3, on every side of them, for tokens and for sequences.
LOG_RATIOS = torch.tensor([[0.1, -0.5, 0.4, -0.1], [0.5, -0.15, 0.0, 0.0]], dtype=torch.float64)
REFERENCE = LOGPROBS + torch.tensor([[0.3, -0.2, 0.15, -0.4], [-0.25, 0.1, 0.0, 0.0]], dtype=torch.float64)
REAL = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()


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
    """Mean gaps of 3/8, 3/8 and 1/4 nats: of those above 1/4, the one with a negative advantage is left out."""
    old = torch.zeros(3, 2)
    logprobs = torch.tensor([[-0.75, 0.0], [-0.75, 0.0], [-0.5, 0.0]]).requires_grad_()
    arguments = (torch.tensor([-1.0, 1.0, -1.0]), torch.ones(3, 2))
    options = {"surrogate": "plain", "off_policy_delta": 0.25}
    loss, _ = policy_loss(logprobs, old, *arguments, **options)
    loss.backward()
    ratios = logprobs.detach().exp()
    torch.testing.assert_close(logprobs.grad, torch.stack([0 * ratios[0], -ratios[1], ratios[2]]))
    # Beside a correction the gap is that to the sampler: all three are 0.5 nats from it.
    options["sampler_logprobs_NT"] = logprobs.detach() + 0.5
    loss, _ = policy_loss(logprobs.detach(), old, *arguments, **options)
    assert float(loss) == pytest.approx(-float(ratios[1].sum()))


def test_a_token_is_left_out_by_either_limit():
    """Row 0 fell from 0.5 to 0.1, bad: too far, and diverged. Row 1 rose from 0.1 to 0.6, good: diverged. Row 2 fell
    from 0.02 to 0.01, bad: too far alone."""
    policy, sampler = torch.tensor([[0.1], [0.6], [0.01]]).log(), torch.tensor([[0.5], [0.1], [0.02]]).log()
    arguments = policy, sampler, torch.tensor([[-1.0], [1.0], [-1.0]]), torch.ones(3, 1, dtype=torch.bool)
    for delta, tv, expected in ((0.5, 0.15, [1, 1, 1]), (0.5, None, [1, 0, 1]), (None, 0.15, [1, 1, 0])):
        assert left_out(*arguments, delta, tv, None)[:, 0].tolist() == expected


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
@pytest.mark.parametrize("surrogate", ["clip", "cispo", "plain", "sapo", "gmpo", "vespo"])
def test_padding_may_hold_anything(surrogate: str, ratio: str, junk: float):
    advantages = torch.tensor([[1.0, -2.0, 0.5, 3.0], [-1.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    inputs = [LOGPROBS, LOGPROBS - LOG_RATIOS, advantages, token_weights(REAL).double(), REFERENCE]
    results = []
    for pad in (0.0, junk):
        logprobs, old, advantages_NT, weights, reference = (tensor.masked_fill(~REAL, pad) for tensor in inputs)
        logprobs.requires_grad_()
        options = {"ref_logprobs_NT": reference, "kl_coef": 0.1, "mask_NT": REAL, "dual_clip": 3.0, "drift_coef": 0.1}
        loss, stats = policy_loss(logprobs, old, advantages_NT, weights, surrogate=surrogate, ratio=ratio, **options)
        loss.backward()
        results.append((loss.detach(), logprobs.grad, stats))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    assert math.isfinite(results[0][0])


def test_weights_decide_what_is_real_unless_a_mask_is_given():
    """The first of the log-ratios 0.1, -0.5, 0.4, -0.1 is not trained, and by the mask belongs to its sequence."""
    weights = token_weights(REAL[:1]).double()
    weights[0, 0] = 0
    arguments = (LOGPROBS[:1], LOGPROBS[:1] - LOG_RATIOS[:1], torch.ones(1, dtype=torch.float64), weights)
    for mask, mean in ((None, -0.2 / 3), (REAL[:1], -0.1 / 4)):
        _, stats = policy_loss(*arguments, ratio="sequence", surrogate="plain", mask_NT=mask)
        assert float(stats["ratio_max"]) == pytest.approx(math.exp(mean), rel=1e-9)


@pytest.mark.parametrize(
    ("options", "named"),
    [({"kl_coef": 0.1}, "ref_logprobs_NT"), ({"surrogate": "ppo"}, "ppo"), ({"ratio": "group"}, "group")],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], named: str):
    with pytest.raises(ValueError, match=named):
        policy_loss(ONE, ONE, torch.ones(1), ONE, **options)


@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 3), (2, 2), (2,), (2, 3)], [(2, 3), (2, 3), (2,), (2, 1)], [(2, 3), (2, 3), (3,), (2, 3)],
        [(2, 3), (2, 3), (2, 1), (2, 3)], [(3,), (3,), (3,), (3,)],
    ],
)  # fmt: skip
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


def test_a_drift_is_that_from_the_sampler():
    """The old log-probs are the policy's own; the sampler's probability was 1/4 instead of 1/2."""
    logprobs = torch.full((1, 1), 0.5).log().requires_grad_()
    sampler = torch.full((1, 1), 0.25).log()
    options = {"drift_coef": 0.5, "sampler_logprobs_NT": sampler, "surrogate": "plain"}
    loss, _ = policy_loss(logprobs, logprobs, torch.tensor([0.0]), torch.ones(1, 1), **options)
    loss.backward()
    assert (float(loss.detach()), float(logprobs.grad)) == pytest.approx((0.5 * math.log(2) ** 2, math.log(2)))


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
