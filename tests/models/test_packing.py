"""How groups are divided into packs: every completion once, within the budget, longest first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from grouprl.forward.packing import GroupSize, PackedUnit, pack_groups

GROUPS = st.lists(
    st.builds(GroupSize, st.integers(1, 40), st.lists(st.integers(0, 30), min_size=1, max_size=9).map(tuple)),
    max_size=9,
)


def test_packs_by_hand() -> None:
    groups = [GroupSize(4, (3, 3, 3)), GroupSize(2, (8,)), GroupSize(1, (1, 1))]
    # Budget 10: the first group is divided, its prompt read again; the longest completion comes first.
    assert pack_groups(groups, 10, "cpu") == [
        [PackedUnit(1, (0,), 10, 8)],
        [PackedUnit(0, (0, 1), 10, 3)],
        [PackedUnit(0, (2,), 7, 3), PackedUnit(2, (0, 1), 3, 1)],
    ]
    assert [len(pack) for pack in pack_groups(groups, 0, "cpu")] == [3]
    assert pack_groups([], 10, "cpu") == []
    # A single completion may exceed the budget with its prompt.
    assert pack_groups([GroupSize(9, (9, 9))], 10, "cuda") == [
        [PackedUnit(0, (0,), 18, 9)],
        [PackedUnit(0, (1,), 18, 9)],
    ]


@given(GROUPS, st.integers(1, 200))
def test_every_completion_is_packed_once_and_packs_keep_to_the_budget(groups: list[GroupSize], budget: int) -> None:
    packs = pack_groups(groups, budget, "cpu")
    found = [(unit.group, place) for pack in packs for unit in pack for place in unit.completions]
    assert sorted(found) == [
        (index, place) for index, group in enumerate(groups) for place in range(len(group.completions))
    ]
    for pack in packs:
        for unit in pack:
            lengths = [groups[unit.group].completions[place] for place in unit.completions]
            assert (unit.tokens, unit.longest) == (groups[unit.group].prompt + sum(lengths), max(lengths))
        assert sum(unit.tokens for unit in pack) <= budget or len(pack) == len(pack[0].completions) == 1
    longest = [unit.longest for pack in packs for unit in pack]
    assert longest == sorted(longest, reverse=True)
    for group in range(len(groups)):  # whole where it fits
        units = [unit for pack in packs for unit in pack if unit.group == group]
        assert len(units) == 1 or groups[group].tokens > budget


@given(st.lists(st.integers(20, 900), min_size=2, max_size=60))
def test_packs_on_a_cpu_are_even(completions: list[int]) -> None:
    groups = [GroupSize(10, (length,)) for length in completions]
    sizes = [sum(unit.tokens for unit in pack) for pack in pack_groups(groups, 0, "cpu")]
    total = sum(group.tokens for group in groups)
    assert sum(sizes) == total
    assert max(sizes) <= 1024
    if total > 1024:
        # No packs in the same order could be as many and smaller: one of them would exceed every smaller budget.
        smaller = pack_groups(groups, max(sizes) - 1, "cpu")
        assert len(smaller) > -(-len(pack_groups(groups, 1024, "cpu")) // 4) * 4 or max(sizes) == 10 + max(completions)


def test_even_packs_by_hand() -> None:
    groups = [GroupSize(100, (200,))] * 9  # 2,700 tokens: three packs of 900 tokens would do
    assert [len(pack) for pack in pack_groups(groups, 0, "cpu")] == [3, 3, 3]
    assert [len(pack) for pack in pack_groups(groups[:8], 0, "cpu")] == [2, 2, 2, 2]
    assert [len(pack) for pack in pack_groups(groups, 0, "cuda")] == [9]
