"""Counter-based random numbers, and the draw of a token from one of them."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grouprl.rollout.sampler import draw, row_key, uniforms
from grouprl.types import Sampling

ALMOST_ONE = 1 - 2.0**-53


def numbers(key: int, count: int) -> list[float]:
    return uniforms(torch.full((count,), key), torch.arange(count)).tolist()


def split_mix(key: int, position: int) -> float:
    """SplitMix64 with Python's integers, modulo 2^64."""
    bits = 2**64 - 1
    state = (key + (position + 1) * 0x9E3779B97F4A7C15) & bits
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & bits
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & bits
    return ((state ^ (state >> 31)) >> 11) / 2**53


def test_the_published_sequence():
    """The first five numbers of the generator's reference implementation from seed 1234567."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert numbers(1234567, 5) == [number // 2**11 / 2**53 for number in published]


@given(key=st.integers(-(2**63), 2**63 - 1), position=st.integers(0, 10**6))
def test_any_key_equals_python_integers(key: int, position: int):
    got = uniforms(torch.tensor([key]), torch.tensor([position]))
    assert got.dtype == torch.float64
    assert got.tolist() == [split_mix(key, position)]
    assert 0 <= float(got) < 1


def test_every_part_of_a_key_matters():
    parts = itertools.product((0, 1, 12), ("", "2", "epoch 1"), ("train-1", "1", "12"), (0, 1, 2))
    keys = [row_key(*part) for part in parts]
    assert len(set(keys)) == len(keys) == 81
    same_text = [(1, "2", "34", 5), (12, "", "34", 5), (1, "23", "4", 5), (1, "2", "3", 45), (1, "", "234", 5)]
    assert len({row_key(*part) for part in same_text}) == 5
    assert all(-(2**63) <= key < 2**63 for key in keys)


# The draw


def drawn(probabilities: list[float], uniform: float, sampling: Sampling | None = None) -> tuple[int, float, float]:
    logits = torch.tensor([probabilities]).log() + 3.0
    results = draw(logits, torch.tensor([uniform], dtype=torch.float64), sampling or Sampling())
    return tuple(float(result) for result in results)


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.499, 0), (0.501, 1), (0.749, 1), (0.751, 3), (ALMOST_ONE, 3)]
)
def test_a_number_picks_its_share_of_the_distribution(uniform: float, token: int):
    probabilities = [0.5, 0.25, 0.0, 0.25]
    got, logprob, plain = drawn(probabilities, uniform)
    assert got == token
    assert logprob == plain == pytest.approx(math.log(probabilities[token]), abs=1e-6)


@pytest.mark.parametrize("uniform", [0.0, 1e-300, 0.5, ALMOST_ONE])
def test_a_cut_token_is_never_drawn(uniform: float):
    got, logprob, plain = drawn([0.1, 0.2, 0.6, 0.06, 0.04], uniform, Sampling(top_k=1))
    assert (got, logprob) == (2, 0.0)
    assert plain == pytest.approx(math.log(0.6), abs=1e-6)


def test_temperature_and_cuts_are_in_the_first_log_prob_alone():
    # Squares of 0.6 and 0.2 are 9 : 1.
    got, logprob, plain = drawn([0.6, 0.2, 0.2 - 1e-3, 1e-3], 0.95, Sampling(temperature=0.5, top_k=2))
    assert (got, logprob, plain) == pytest.approx((1, math.log(0.1), math.log(0.2)), abs=1e-5)


def test_greedy_takes_the_largest_whatever_the_number():
    for uniform in (0.0, 0.5, ALMOST_ONE):
        assert drawn([0.3, 0.4, 0.3], uniform, Sampling(temperature=0.0)) == pytest.approx((1, 0.0, math.log(0.4)))


def test_tokens_far_down_the_tail_stay_apart():
    """One likely token and 100,000 of probability 1e-8: a float32 running sum near 1 cannot resolve six of them."""
    logits = torch.cat([torch.zeros(1), torch.full((100_000,), math.log(1e-8))])
    aims = 0.9995 + 1e-8 * torch.arange(100, dtype=torch.float64)
    tokens, _, _ = draw(logits.expand(100, -1), aims, Sampling())
    assert len(tokens.unique()) >= 98
    assert (tokens.diff() >= 0).all()


def test_no_number_falls_off_the_end():
    """Rounded probabilities add up to a little less or more than 1, and the last token is cut."""
    logits = torch.randn(500, 50, generator=torch.Generator().manual_seed(0))
    logits[:, -1] = -30.0
    tokens, logprobs, _ = draw(logits, torch.full((500,), ALMOST_ONE, dtype=torch.float64), Sampling(top_k=20))
    assert logprobs.isfinite().all()
    assert 49 not in tokens.tolist()
