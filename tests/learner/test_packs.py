"""Groups as a padded batch, and the batch as packs: every token once, beside the one that predicts it."""

from dataclasses import replace

import pytest
import torch

from grouprl.forward.packing import pack_tokens
from grouprl.learner import make_batch
from grouprl.learner.packs import averaged, combined, make_packs, minibatches
from grouprl.types import Completion, Episode, Group, ObservedTokens, Problem, Sampling, StopReason

CPU = torch.device("cpu")


def completion(index: int, token_ids: tuple[int, ...]) -> Completion:
    logprobs = tuple(-0.5 * (at + 1) for at in range(len(token_ids)))
    return Completion(index, token_ids, logprobs, logprobs, "", StopReason.LENGTH, 0)


HAND_MADE = [
    Group(Problem("a", ""), (9, 8), (completion(0, (5, 6)), completion(1, (7,)))),
    Group(Problem("b", ""), (4, 3, 2), (completion(0, (1, 1, 1)),)),
]


def test_a_batch_by_hand():
    batch = make_batch(HAND_MADE, Sampling(max_tokens=10))
    assert batch.prompts == ((9, 8), (4, 3, 2))
    assert batch.group_of_N == (0, 0, 1)
    assert batch.token_ids_NT.tolist() == [[5, 6, 0], [7, 0, 0], [1, 1, 1]]
    assert batch.mask_NT.tolist() == [[True, True, False], [True, False, False], [True, True, True]]
    assert batch.old_logprobs_NT.tolist() == [[-0.5, -1.0, 0], [-0.5, 0, 0], [-0.5, -1.0, -1.5]]
    assert batch.trained_NT is batch.mask_NT


def test_truncated_completions_alone_are_masked_on_request():
    ends = (StopReason.END, StopReason.LENGTH), (StopReason.STOP_STRING,)
    groups = [
        replace(group, completions=tuple(map(lambda one, end: replace(one, stop_reason=end), group.completions, own)))
        for group, own in zip(HAND_MADE, ends, strict=True)
    ]
    batch = make_batch(groups, Sampling(), mask_overlong=True)
    assert batch.trained_NT.tolist() == [[True, True, False], [False] * 3, [True] * 3]
    assert batch.mask_NT.sum(1).tolist() == [2, 1, 3]  # they are still read
    assert make_batch(groups, Sampling()).trained_NT.sum(1).tolist() == [2, 1, 3]


def test_a_pack_by_hand():
    batch = make_batch(HAND_MADE, Sampling())
    packs = make_packs(batch, [0, 1, 2], 100, CPU)
    assert len(packs) == 1  # the longest completion comes first
    assert [len(make_packs(batch, [0, 1, 2], budget, CPU)) for budget in (8, 7)] == [1, 2]
    assert packs[0].rows == (2, 0, 1)
    assert packs[0].input_ids_S.tolist() == [4, 3, 2, 1, 1, 9, 8, 5]
    assert packs[0].layout.prompt_lengths == (3, 2)
    assert packs[0].layout.completion_lengths == ((2,), (1, 0))
    assert packs[0].predictors_C.tolist() == [2, 3, 4, 6, 7, 6]
    assert packs[0].row_C.tolist() == [0, 0, 0, 1, 1, 2]
    assert packs[0].column_C.tolist() == [0, 1, 2, 0, 1, 0]

    whole = make_packs(batch, [0, 1, 2], 100, CPU, read_last=True)[0]
    assert whole.input_ids_S.tolist() == [4, 3, 2, 1, 1, 1, 9, 8, 5, 6, 7]
    assert whole.predictors_C.tolist() == [2, 3, 4, 7, 8, 7]


PROMPT_LENGTHS, LENGTHS = (7, 1, 3, 9), ((4, 12, 1), (5,), (2, 2, 2, 6, 3), (8, 7))
MANY = [
    Group(
        Problem(str(number), ""),
        tuple(range(100 * number, 100 * number + prompt)),
        tuple(completion(at, tuple(range(10 * at, 10 * at + length))) for at, length in enumerate(own)),
    )
    for number, (prompt, own) in enumerate(zip(PROMPT_LENGTHS, LENGTHS, strict=True))
]


@pytest.mark.parametrize("budget", [1, 20, 10**6])
def test_every_token_is_predicted_by_the_one_before_it(budget: int):
    batch = make_batch(MANY, Sampling())
    for pack in make_packs(batch, range(11), budget, CPU):
        before = pack.input_ids_S[pack.predictors_C].tolist()
        for token, row, column in zip(before, pack.row_C.tolist(), pack.column_C.tolist(), strict=True):
            row = pack.rows[row]
            prompt = batch.prompts[batch.group_of_N[row]]
            assert token == (prompt[-1] if column == 0 else int(batch.token_ids_NT[row, column - 1]))


def test_packs_by_device_and_largest_group():
    assert [pack_tokens(77, device, largest=5000) for device in ("cpu", "cuda")] == [77, 77]
    assert [pack_tokens(0, "cpu", largest=size) for size in (10, 1024, 5000, 10**6)] == [1024, 1024, 5000, 16384]
    assert [pack_tokens(0, "cuda", largest=size) for size in (10, 10**6)] == [16384, 16384]


def test_a_long_prompt_is_read_once_without_a_setting():
    prompt = tuple([3] * 2000)
    batch = make_batch(
        [Group(Problem("long", ""), prompt, tuple(completion(i, (5,) * 30) for i in range(8)))], Sampling()
    )
    assert [len(pack.input_ids_S) for pack in make_packs(batch, range(8), 0, CPU)] == [2000 + 8 * 29]
    assert len(make_packs(batch, range(8), 1024, CPU)) == 8


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_minibatches_are_whole_groups_and_none_is_empty(count: int):
    parts = minibatches(make_batch(HAND_MADE, Sampling()), count, seed=4)
    assert sorted(parts) == ([[0, 1, 2]] if count == 1 else [[0, 1], [2]])


def test_another_pass_has_other_minibatches():
    batch = make_batch(MANY, Sampling())
    assert len({str(minibatches(batch, 2, seed)) for seed in range(8)}) > 1
    assert {str(minibatches(batch, 1, seed)) for seed in range(8)} == {str([[*range(11)]])}


def shown(index: int, own: tuple[int, ...], observed: tuple[int, ...], kept: int | None = None) -> Completion:
    """A completion of two turns, the first of one token."""
    return replace(completion(index, own), episode=Episode((ObservedTokens(1, observed, kept),), ()))


@pytest.mark.parametrize(
    ("groups", "shared", "tokens"),
    [
        # 1 5 5 5 5 of two rows behind a prompt of their own, with one token of each; and 3 behind another prompt.
        (
            [((9, 8), (shown(0, (1, 1, 1), (5,) * 4), shown(1, (1, 2, 1), (5,) * 4), completion(2, (3, 3))))],
            0,
            (2 + 5 + 1 + 1) + (2 + 1),
        ),
        # 1 5 of two rows: two tokens are fewer than a prompt of three once more.
        ([((9, 8, 7), (shown(0, (1, 1), (5,)), shown(1, (1, 2), (5,)), completion(2, (3, 3))))], 0, 3 + 2 + 2 + 1),
        # Two tokens of each prompt are read elsewhere.
        (
            [((9, 8, 1), (completion(0, (5, 6)), completion(1, (7,)))), ((9, 8, 2), (completion(0, (1, 1, 1)),))],
            2,
            (1 + 1) + (1 + 2),
        ),
        # A fork: nothing behind the prompt, then the prompt with 6, of both without their first two tokens.
        ([((9, 8, 1), (shown(0, (5, 7), (6,), kept=3),))], 2, 1 + 2),
        ([((9, 8), (completion(0, (5, 6)), completion(1, ())))], 0, 2 + 1),
    ],
)
def test_packs_read_fewer_tokens_and_their_budget_counts_these(
    groups: list[tuple[tuple[int, ...], tuple[Completion, ...]]], shared: int, tokens: int
):
    made = [Group(Problem(str(at), ""), prompt, completions) for at, (prompt, completions) in enumerate(groups)]
    batch = make_batch(made, Sampling())
    packs = make_packs(batch, range(len(batch.group_of_N)), tokens, CPU, shared=shared)
    assert [pack.tokens for pack in packs] == [tokens]
    assert sorted(packs[0].rows) == [row for row, mask_T in enumerate(batch.mask_NT) if mask_T.any()]


def test_metrics_of_packs_and_of_updates_by_hand():
    packs = [
        {"loss": (1.0, 3), "router_aux_loss": (0.5, 3), "entropy": (2.0, 1), "ratio_max": (1.5, 3), "kl": (9.0, 0)},
        {"loss": (2.0, 1), "router_aux_loss": (0.25, 1), "entropy": (4.0, 3), "ratio_max": (1.2, 1), "kl": (8.0, 0)},
    ]
    gaps = [{"sampler_learner_gap": (0.3, 4)}, {"sampler_learner_gap": (0.1, 4)}]
    assert combined(packs) == {"loss": 3.0, "router_aux_loss": 0.75, "entropy": (2 + 3 * 4) / 4, "ratio_max": 1.5}
    assert (combined(gaps), combined([])) == ({"sampler_learner_gap": 0.3}, {})
    assert averaged([{"kl": 1.0, "ratio_max": 2.0}, {"kl": 3.0, "ratio_max": 5.0, "entropy": 4.0}]) == {
        "kl": 2.0,
        "ratio_max": 5.0,
        "entropy": 4.0,
    }
