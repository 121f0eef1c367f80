"""Learning from episodes: what the policy was shown between its turns is read, and nothing is learned of it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grouprl.learner import make_batch
from grouprl.learner.packs import make_packs, pack_forward, with_observations
from grouprl.types import Completion, Episode, Group, ObservedTokens, Problem, Sampling, StopReason
from learner_setting import CPU, loaded
from oracles import own_model

PLAIN = Sampling(max_tokens=12)


def completion(index: int, token_ids: tuple[int, ...], *shown: tuple[int, tuple[int, ...]]) -> Completion:
    nothing = (0.0,) * len(token_ids)
    observations = tuple(ObservedTokens(after, ids) for after, ids in shown)
    episode = Episode(observations, (), ends=(len(token_ids) - 1,)) if shown else None
    return Completion(index, token_ids, nothing, nothing, "", StopReason.END, 0, episode)


GROUPS = [
    Group(
        Problem("a", ""),
        (9, 8, 7),
        (
            completion(0, (5, 6, 40, 41), (2, (100, 101, 102)), (3, (103,))),
            completion(1, (5, 6)),
            completion(2, (11, 12, 13), (1, (104, 105))),
        ),
    ),
    Group(Problem("b", ""), (4,), (completion(0, (30, 31), (1, (106,) * 5)), completion(1, (33,)))),
]
ALIKE = Group(
    Problem("c", ""),
    (9,),
    (
        completion(0, (5, 6, 40, 41), (2, (100, 101, 102))),
        completion(1, (5, 6, 50), (2, (100, 101, 102))),
        completion(2, (11, 12), (1, (104,))),
        completion(3, (5, 6, 40, 42, 43), (2, (100, 101, 102)), (4, (103,))),
    ),
)


def test_the_tokens_in_their_order_and_the_places_of_the_own_ones():
    ids_T, places_T = with_observations(torch.tensor([5, 6, 40, 41]), GROUPS[0].completions[0].observations)
    assert ids_T.tolist() == [5, 6, 100, 101, 102, 40, 103, 41]
    assert places_T.tolist() == [0, 1, 5, 7]


def test_a_pack_by_hand():
    packs = make_packs(make_batch(GROUPS[1:], PLAIN), [0, 1], 100, CPU)
    assert packs[0].input_ids_S.tolist() == [4, 30, 106, 106, 106, 106, 106]
    assert packs[0].predictors_C.tolist() == [0, 6, 0]
    assert packs[0].token_ids_C.tolist() == [30, 31, 33]


def test_what_completions_begin_with_is_read_once_where_it_is_longer_than_the_prompt():
    """Rows 0, 1 and 3 share 5 tokens, of which 10 are read less, and the prompt of one token once more."""
    [pack] = make_packs(make_batch([ALIKE], PLAIN), range(4), 100, CPU)
    assert pack.rows == (0, 3, 1, 2)
    assert pack.input_ids_S.tolist() == [9, 5, 6, 100, 101, 102, 40, 40, 42, 103, 9, 11, 104]
    assert pack.layout.position_ids_S.tolist() == [0, 1, 2, 3, 4, 5, 6, 6, 7, 8, 0, 1, 2]
    assert pack.token_ids_C.tolist() == [5, 6, 40, 41, 5, 6, 40, 42, 43, 5, 6, 50, 11, 12]
    assert pack.predictors_C.tolist() == [0, 1, 5, 6, 0, 1, 5, 7, 9, 0, 1, 5, 10, 12]


def test_completions_of_one_turn_share_their_prompt_alone():
    """As they were before there were episodes, to the last bit."""
    plain = replace(ALIKE, completions=tuple(replace(one, episode=None) for one in ALIKE.completions))
    [pack] = make_packs(make_batch([plain], PLAIN), range(4), 100, CPU)
    assert pack.input_ids_S.tolist() == [9, 5, 6, 40, 5, 6, 11, 5, 6, 40, 42]


@pytest.mark.parametrize("budget", [1, 12, 1000])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_log_probs_and_gradient_are_those_of_the_plain_model_with_a_mask(tiny: Path, budget: int, penalty: float):
    """One row at a time through transformers' own modules, with a loss on the policy's tokens alone."""
    sampling = replace(PLAIN, repetition_penalty=penalty)
    model, own, batch = loaded(tiny), own_model(tiny), make_batch([*GROUPS, ALIKE], PLAIN)
    batch = replace(batch, sampling=sampling)
    weights = torch.linspace(-1.0, 1.0, int(batch.mask_NT.sum()))
    weights_NT = torch.zeros(batch.mask_NT.shape).masked_scatter(batch.mask_NT, weights)
    for pack in make_packs(batch, range(9), budget, CPU):
        found = pack_forward(model, pack, sampling).logprobs_C
        (found * weights_NT[list(pack.rows)][pack.row_C, pack.column_C]).sum().backward()
    rows = [(group.prompt_ids, one) for group in [*GROUPS, ALIKE] for one in group.completions]
    for (prompt, one), weights_T in zip(rows, weights_NT, strict=True):
        ids_T, places_T = with_observations(torch.tensor(one.token_ids), one.observations)
        whole = torch.cat([torch.tensor(prompt), ids_T])
        logits = own(whole[None], use_cache=False).logits[0]
        for column, place in enumerate(places_T.tolist()):
            at = len(prompt) + place
            row = logits[at - 1]
            seen = torch.zeros(len(row), dtype=torch.bool).scatter_(0, whole[:at], True)
            row = torch.where(seen, torch.where(row > 0, row / penalty, row * penalty), row)
            (row.log_softmax(-1)[whole[at]] * weights_T[column]).backward(retain_graph=True)
    theirs = dict(own.named_parameters())
    for name, weight in model.named_parameters():
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad, theirs[name].grad, rtol=1e-4, atol=2e-5)
