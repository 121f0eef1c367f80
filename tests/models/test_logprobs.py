"""Log-probs and entropies from hidden states, and the cuts of top-k, top-p and min-p, against slow references."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from grouprl.forward.logprobs import Context, token_logprobs, truncate_logits
from grouprl.types import Sampling
from oracles import slow_policy

S, H, V = 11, 6, 37


def random_case(seed: int = 0, vocabulary: int = V, tokens: int = S) -> tuple[nn.Linear, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    head = nn.Linear(H, vocabulary, bias=False)
    head.weight.data = torch.randn(vocabulary, H, generator=generator)
    hidden_SH = torch.randn(tokens, H, generator=generator).requires_grad_()
    return head, hidden_SH, torch.randint(vocabulary, (tokens,), generator=generator)


def with_gradients(logprobs: Tensor, head: nn.Linear, hidden_SH: Tensor) -> list[Tensor]:
    """The values, and the gradients of a sum that weighs every token differently."""
    weights = torch.linspace(-1, 2, len(logprobs), dtype=logprobs.dtype)
    gradients = torch.autograd.grad((logprobs * weights).sum(), [hidden_SH, head.weight])
    return [logprobs.detach().double(), *(gradient.double() for gradient in gradients)]


def full(head: nn.Linear, hidden_SH: Tensor, targets_S: Tensor, temperature: float = 1.0) -> Tensor:
    logits = hidden_SH.double() @ head.weight.double().T / temperature
    return torch.log_softmax(logits, -1)[torch.arange(len(targets_S)), targets_S]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.0])
@pytest.mark.parametrize("chunk_elements", [1, V, 3 * V, 4 * V - 1, 10**6])
def test_values_and_gradients_are_those_of_full_logits(chunk_elements: int, temperature: float):
    case = random_case()
    logprobs, _ = token_logprobs(*case, Sampling(temperature=temperature), chunk_elements=chunk_elements)
    assert (logprobs.dtype, logprobs.shape) == (torch.float32, (S,))
    expected = with_gradients(full(*case, temperature), *case[:2])
    torch.testing.assert_close(with_gradients(logprobs, *case[:2]), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.5), Sampling(top_k=3), Sampling(top_p=0.6)])
@pytest.mark.parametrize("chunk_elements", [2 * V, 10**6])
def test_entropy_by_brute_force(sampling: Sampling, chunk_elements: int):
    head, hidden_SH, targets_S = random_case(2)
    _, entropies = token_logprobs(head, hidden_SH, targets_S, sampling, chunk_elements=chunk_elements)
    assert not entropies.requires_grad
    logits_SV = (hidden_SH.double() @ head.weight.double().T).detach()
    for logits, target, entropy in zip(logits_SV.tolist(), targets_S.tolist(), entropies.tolist(), strict=True):
        probabilities = slow_policy(logits, sampling, target)
        assert entropy == pytest.approx(-sum(p * math.log(p) for p in probabilities if p), abs=1e-4)


# Repetition penalty

PENALTY = Sampling(temperature=0.9, repetition_penalty=1.6)


def context_of(rows: list[list[int]], prompts: list[int]) -> Context:
    """Of all tokens after the first `prompts[row]` of each row."""
    width = max(map(len, rows))
    pairs = [(row, place) for row, ids in enumerate(rows) for place in range(prompts[row], len(ids))]
    padded = torch.tensor([ids + [36] * (width - len(ids)) for ids in rows])  # 36 is in no row
    rows_S, before_S = torch.tensor(pairs).T
    return Context(padded, rows_S, before_S, torch.zeros(len(pairs), dtype=torch.long))


ROWS_OF_TOKENS = [[3, 5, 3, 8, 8, 1, 5], [7, 2, 2, 9, 4, 4, 7, 30]]  # prompts of 2 and 2 tokens: 5 + 6 = S predicted
CONTEXT = context_of(ROWS_OF_TOKENS, [2, 2])
BEFORE = [ids[:place] for ids in ROWS_OF_TOKENS for place in range(2, len(ids))]


@pytest.mark.parametrize("chunk_elements", [8 * V, 24 * V, 10**6])
def test_a_repetition_penalty_changes_the_logits_of_tokens_that_stand_before(chunk_elements: int):
    head, hidden_SH, targets_S = random_case(6)
    logprobs, entropies = token_logprobs(
        head, hidden_SH, targets_S, PENALTY, context=CONTEXT, chunk_elements=chunk_elements
    )
    logits_SV = (hidden_SH.double() @ head.weight.double().T).tolist()
    logprobs = logprobs.detach()
    assert {logits_SV[place][token] > 0 for place, ids in enumerate(BEFORE) for token in ids} == {True, False}
    for place, (row, target) in enumerate(zip(logits_SV, targets_S.tolist(), strict=True)):
        policy = slow_policy(row, PENALTY, before=BEFORE[place])
        assert float(logprobs[place]) == pytest.approx(math.log(policy[target]), abs=1e-5)
        assert float(entropies[place]) == pytest.approx(-sum(p * math.log(p) for p in policy if p), abs=1e-4)


@pytest.mark.parametrize("chunk_elements", [8 * V, 10**6])
def test_the_gradient_under_a_repetition_penalty_by_finite_differences(chunk_elements: int):
    head, hidden_SH, targets_S = random_case(7)
    weights = torch.linspace(-1, 2, S).tolist()

    def total(hidden: Tensor, weight: Tensor) -> float:
        rows = zip((hidden @ weight.T).tolist(), targets_S.tolist(), BEFORE, weights, strict=True)
        return sum(w * math.log(slow_policy(row, PENALTY, before=before)[token]) for row, token, before, w in rows)

    found, _ = token_logprobs(head, hidden_SH, targets_S, PENALTY, context=CONTEXT, chunk_elements=chunk_elements)
    _, *gradients = with_gradients(found, head, hidden_SH)
    values = [hidden_SH.detach().double(), head.weight.detach().double()]
    generator = torch.Generator().manual_seed(0)
    for at, gradient in enumerate(gradients):
        direction = torch.randn(gradient.shape, generator=generator).double()
        ends = [[one + sign * 1e-6 * direction if n == at else one for n, one in enumerate(values)] for sign in (1, -1)]
        slope = (total(*ends[0]) - total(*ends[1])) / 2e-6
        assert float((gradient * direction).sum()) == pytest.approx(slope, rel=1e-4, abs=1e-4)


# Memory


# Truncation


CUTS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 2, 5, 12, 99]),
    top_p=st.sampled_from([1.0, 0.97, 0.83, 0.51, 0.09]),
    min_p=st.sampled_from([0.0, 0.013, 0.17, 0.9]),
)


@given(sampling=CUTS, seed=st.integers(0, 10**6))
def test_the_cuts_equal_the_slow_reference(sampling: Sampling, seed: int):
    logits_NV = 2 * torch.randn(3, 12, generator=torch.Generator().manual_seed(seed))
    got = truncate_logits(logits_NV, sampling).softmax(-1)
    expected = torch.tensor([slow_policy(row, sampling) for row in logits_NV.tolist()])
    assert torch.equal(got > 0, expected > 0)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("cuts", "kept"),
    [
        ({}, [0, 1, 2, 3]),
        ({"top_k": 3}, [0, 2, 3]),
        ({"top_p": 0.41}, [0, 2]),
        ({"min_p": 0.6}, [0, 2]),
        # Of the two that top_k leaves, the first alone has 4/7 = 0.571 of the mass.
        ({"top_k": 2, "top_p": 0.55}, [0]),
        # At temperature 0.5 the probabilities are 16, 1, 9, 4 of 30.
        ({"temperature": 0.5, "min_p": 0.3}, [0, 2]),
    ],
    ids=str,
)
def test_the_cuts_by_hand(cuts: dict[str, float], kept: list[int]):
    logits = torch.tensor([[0.4, 0.1, 0.3, 0.2]]).log()
    assert truncate_logits(logits, Sampling(**cuts))[0].isfinite().nonzero()[:, 0].tolist() == kept


def test_a_token_that_reaches_top_p_alone_is_enough():
    """A half, a quarter and a quarter, exact in float32."""
    halves = torch.tensor([[math.log(2), 0.0, 0.0]])
    assert halves.softmax(1).tolist() == [[0.5, 0.25, 0.25]]
    assert truncate_logits(halves, Sampling(top_p=0.5))[0].isfinite().tolist() == [True, False, False]


@pytest.mark.parametrize("cuts", [{"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.99}])
def test_ties_at_a_threshold_are_kept(cuts: dict[str, float]):
    got = truncate_logits(torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0]]), Sampling(**cuts))
    assert got.isfinite().tolist() == [[False, True, True, True, False]]


@pytest.mark.parametrize("cuts", [{"top_k": 2}, {"top_p": 0.3}, {"min_p": 0.5}])
@pytest.mark.parametrize("chunk_elements", [V, 10**6])
def test_a_target_is_never_cut(cuts: dict[str, float], chunk_elements: int):
    """The policy may have moved since a token was drawn; its log-prob is over the kept tokens and itself."""
    head, hidden_SH, _ = random_case(5)
    logits_SV = hidden_SH.double() @ head.weight.double().T
    targets_S = logits_SV.argmin(-1)  # the first that any cut takes
    sampling = Sampling(temperature=0.8, **cuts)
    logprobs, _ = token_logprobs(head, hidden_SH, targets_S, sampling, chunk_elements=chunk_elements)
    expected = torch.tensor(
        [
            slow_policy(row, sampling, target)
            for row, target in zip(logits_SV.tolist(), targets_S.tolist(), strict=True)
        ],
        dtype=torch.float64,
    )
    kept_SV = expected > 0
    assert (kept_SV.sum(1) > 1).all()
    torch.testing.assert_close(
        logprobs.double(), expected.gather(1, targets_S[:, None])[:, 0].log(), atol=1e-4, rtol=1e-5
    )
    reference = (logits_SV / 0.8).masked_fill(~kept_SV, -torch.inf).log_softmax(-1)
    torch.testing.assert_close(
        with_gradients(logprobs, head, hidden_SH),
        with_gradients(reference[torch.arange(S), targets_S], head, hidden_SH),
        atol=1e-4,
        rtol=1e-4,
    )
