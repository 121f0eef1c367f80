"""Learning from episodes: what the policy was shown between its turns is read, and nothing is learned of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grouprl.learner import make_batch
from grouprl.learner.packs import make_packs, pack_forward, with_observations
from grouprl.types import Completion, Episode, Group, ObservedTokens, Problem, Sampling, StopReason
from learner_setting import CPU, loaded
from oracles import own_model

PLAIN = Sampling(max_tokens=12)


def completion(index: int, token_ids: tuple[int, ...], *shown: tuple[Any, ...]) -> Completion:
    nothing = (0.0,) * len(token_ids)
    observations = tuple(ObservedTokens(*one) for one in shown)
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
            # A fork that keeps 2 of the prompt's 3 tokens, and one that keeps all but the end of what was read then.
            completion(3, (14, 15, 16, 17, 18), (1, (107,)), (2, (108, 109), 2), (3, (110,)), (4, (111,), 5)),
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
    # A common token that saves no more than the prompt's repetition costs.
    few = (completion(0, (5, 6), (1, (100,))), completion(1, (5, 7)), completion(2, (8, 9)))
    [pack] = make_packs(make_batch([replace(ALIKE, completions=few)], PLAIN), range(3), 100, CPU)
    assert pack.input_ids_S.tolist() == [9, 5, 100, 5, 8]


def test_completions_of_one_turn_share_their_prompt_alone():
    """As they were before there were episodes, to the last bit."""
    plain = replace(ALIKE, completions=tuple(replace(one, episode=None) for one in ALIKE.completions))
    [pack] = make_packs(make_batch([plain], PLAIN), range(4), 100, CPU)
    assert pack.input_ids_S.tolist() == [9, 5, 6, 40, 5, 6, 11, 5, 6, 40, 42]


@pytest.mark.parametrize("budget", [1, 12, 1000])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_log_probs_and_gradient_are_those_of_the_plain_model_with_a_mask(tiny: Path, budget: int, penalty: float):
    """One token at a time through transformers' own modules, after what the policy had read by then."""
    sampling = replace(PLAIN, repetition_penalty=penalty)
    model, own, batch = loaded(tiny), own_model(tiny), make_batch([*GROUPS, ALIKE], PLAIN)
    batch = replace(batch, sampling=sampling)
    weights = torch.linspace(-1.0, 1.0, int(batch.mask_NT.sum()))
    weights_NT = torch.zeros(batch.mask_NT.shape).masked_scatter(batch.mask_NT, weights)
    for pack in make_packs(batch, range(len(batch.group_of_N)), budget, CPU):
        found = pack_forward(model, pack, sampling).logprobs_C
        (found * weights_NT[list(pack.rows)][pack.row_C, pack.column_C]).sum().backward()
    rows = [(group.prompt_ids, one) for group in [*GROUPS, ALIKE] for one in group.completions]
    for (prompt, one), weights_T in zip(rows, weights_NT, strict=True):
        read, shown = list(prompt), {entry.after: entry for entry in one.observations}
        for column, token in enumerate(one.token_ids):
            if entry := shown.get(column):
                read = [*read[: entry.kept], *entry.token_ids]
            row = own(torch.tensor([read]), use_cache=False).logits[0, -1]
            seen = torch.zeros(len(row), dtype=torch.bool).scatter_(0, torch.tensor(read), True)
            row = torch.where(seen, torch.where(row > 0, row / penalty, row * penalty), row)
            (row.log_softmax(-1)[token] * weights_T[column]).backward()
            read.append(token)
    theirs = dict(own.named_parameters())
    for name, weight in model.named_parameters():
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad, theirs[name].grad, rtol=1e-4, atol=2e-5)


def test_a_fork_by_hand():
    """The second stretch keeps 2 of the 6 tokens read so far, the third one 5 of 7: each is a group of its own."""
    (pack,) = make_packs(make_batch(GROUPS[:1], PLAIN), [1, 3], 100, CPU)
    #                            prompt, 5, 14, shown | kept, fork, 16, shown      | kept, fork, no last token
    assert pack.input_ids_S.tolist() == [9, 8, 7, 5, 14, 107, 9, 8, 108, 109, 16, 110, 9, 8, 108, 109, 16, 111]
    assert pack.layout.prompt_lengths == (3, 4, 6)
    assert pack.layout.completion_lengths == ((1, 2), (2,), (0,))
    assert pack.predictors_C.tolist() == [2, 3, 2, 5, 9, 11, 17]
