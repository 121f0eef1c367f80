"""How work is divided, and in what order partial sums are added."""

from __future__ import annotations

import multiprocessing
import tempfile
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from grouprl.config.checks import check_sections
from grouprl.config.run import RunConfig
from grouprl.ranks import Ranks, TreeSum, open_ranks, shares
from grouprl.types import UserError


@given(st.lists(st.integers(1, 1000), max_size=40), st.integers(1, 8))
def test_shares_hold_every_place_once_and_are_even(costs: list[int], count: int) -> None:
    taken = shares(costs, count)
    assert sorted(place for one in taken for place in one) == list(range(len(costs)))
    loads = [sum(costs[place] for place in one) for one in taken]
    assert max(loads) - min(loads) <= max(costs, default=0)


def test_a_tree_adds_neighbors_first() -> None:
    tree = TreeSum[str](lambda left, right: f"({left}{right})")
    for letter in "abcdefgh":
        tree.push(letter)
    assert tree.total() == "(((ab)(cd))((ef)(gh)))"


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_ranks_with_exact_add_the_parts_of_one_tree(world: int) -> None:
    costs = [7, 3, 3, 9, 1, 1, 1, 4, 4, 2]
    together = TreeSum[str](lambda left, right: f"({left}+{right})")
    for rank in range(world):
        own = TreeSum[str](lambda left, right: f"({left}+{right})")
        for shard in Ranks(rank, world, exact=True).shards(costs):
            own.push(str(shard))
        together.push(own.total())
    alone = TreeSum[str](lambda left, right: f"({left}+{right})")
    for shard in Ranks(exact=True).shards(costs):
        alone.push(str(shard))
    assert together.total() == alone.total()


def test_every_piece_of_work_is_some_ranks_own() -> None:
    for exact in (False, True):
        parts = [Ranks(rank, 4, exact=exact).own([5] * 11) for rank in range(4)]
        assert sorted(place for part in parts for place in part) == list(range(11))


def test_exact_needs_a_number_of_ranks_that_divides_the_tree() -> None:
    with pytest.raises(UserError, match=r"distributed\.exact: expected 1, 2, 4 or 8 ranks, got 3"):
        Ranks(0, 3, exact=True)


def test_sharded_weights_have_no_exact_sums() -> None:
    with pytest.raises(UserError, match="distributed: expected exact or shard, got both"):
        check_sections(RunConfig(distributed={"exact": True, "shard": True}))


@pytest.mark.parametrize(("variables", "message"), [({"WORLD_SIZE": "2"}, "RANK"), ({"WORLD_SIZE": "two"}, "'two'")])
def test_variables_that_torchrun_did_not_set_are_named(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=f"WORLD_SIZE.*expected.*{message}"), open_ranks():
        pass


def test_a_rank_with_less_work_repeats_the_cheapest_where_weights_are_sharded() -> None:
    """3 pieces on 2 ranks: 9 and 5 + 4; the mesh stands for sharding and is not asked anything."""
    costs, mesh = [9, 5, 4], cast(Any, object())
    assert [Ranks(rank, 2, mesh=mesh).passes(costs) for rank in (0, 1)] == [[0, 2], [1, 2]]
    assert [Ranks(rank, 2).passes(costs) for rank in (0, 1)] == [[0], [1, 2]]
    assert [Ranks(rank, 4, mesh=mesh).passes(costs) for rank in range(4)] == [[0], [1], [2], [2]]


def _add_on(rank: int, world: int, folder: Path, found: SimpleQueue[Any]) -> None:
    """One of the ranks of the test below, in a process of its own."""
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    tiny = 2.0**-24
    own = torch.tensor([[1.0, 1.0, tiny], [tiny, tiny, 1.0], [tiny, -1.0, tiny], [tiny, tiny, -1.0]][rank])
    found.put((rank, Ranks(rank, world, exact=True, seconds=20, store=store).add(own, "gradients").tolist()))
    dist.destroy_process_group()


def test_exact_sums_of_ranks_round_as_the_tree_of_neighbors() -> None:
    """Worked by hand in float32, where 1 + 2^-24 is 1 and 1 - 2^-24 is not, as ((a + b) + (c + d)).

    Columns: 1, t, t, t is 1 + 2t in the tree and 1 from left to right; 1, t, -1, t is t in the tree, 2t from left to
    right and where 1 meets -1 first; t, 1, t, -1 likewise.
    """
    with tempfile.TemporaryDirectory() as folder:
        fork = multiprocessing.get_context("fork")
        found: SimpleQueue[Any] = fork.SimpleQueue()
        ranks = [fork.Process(target=_add_on, args=(rank, 4, Path(folder), found)) for rank in range(4)]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join(30)
        assert [one.exitcode for one in ranks] == [0] * 4
        assert sorted(found.get() for _ in ranks) == [(rank, [1 + 2.0**-23, 2.0**-24, 2.0**-24]) for rank in range(4)]
