"""How a batch is divided into packs, in numbers alone: the learner packs by it, and the planner counts by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

# 512 to 16,384 tokens are as fast as one another on a CPU, whose caches hold none of them, and memory grows with them.
# A GPU wants enough tokens to fill it. A group is worth more than that: divided, its prompt is read again.
PACK_TOKENS: Mapping[str, int] = MappingProxyType({"cpu": 1024, "cuda": 16384})
"""Tokens of a pack by kind of device."""
_TOKENS_FOR_A_GROUP = 16384


@dataclass(frozen=True)
class GroupSize:
    """Tokens that are read of a group."""

    prompt: int
    completions: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Of the whole group, its prompt once."""
        return self.prompt + sum(self.completions)


@dataclass(frozen=True)
class PackedUnit:
    """Completions of one group that stand in one pack behind their prompt."""

    group: int  # index of the group
    completions: tuple[int, ...]  # indices within the group
    tokens: int  # read, the prompt included
    longest: int  # tokens of the longest completion


def pack_tokens(setting: int, device_type: str, *, largest: int = 0) -> int:
    """The tokens of a pack: the setting, or for 0 the number that suits the device and the largest group (tokens)."""
    return setting or max(PACK_TOKENS[device_type], min(largest, _TOKENS_FOR_A_GROUP))


def pack_groups(groups: Sequence[GroupSize], setting: int, device_type: str) -> list[list[PackedUnit]]:
    """The groups as packs of at most so many tokens.

    Groups stay whole where they fit; one that does not is divided, and its prompt read again. Groups of similar
    length are packed together, longest first, so that padding inside attention stays small and memory peaks early.

    Args:
        groups: what is read of each.
        setting: tokens of a pack, 0 = by device and groups; a single completion may exceed it with its prompt.
        device_type: "cpu" or "cuda".
    """
    budget = pack_tokens(setting, device_type, largest=max((group.tokens for group in groups), default=0))
    units = [unit for index, group in enumerate(groups) for unit in _divided(index, group, budget)]
    units.sort(key=lambda unit: unit.longest, reverse=True)
    packs: list[list[PackedUnit]] = []
    room = 0
    for unit in units:
        if not packs or unit.tokens > room:
            packs.append([])
            room = budget
        packs[-1].append(unit)
        room -= unit.tokens
    return packs


def _divided(index: int, group: GroupSize, budget: int) -> Iterator[PackedUnit]:
    part: list[int] = []
    used = group.prompt
    for place, length in enumerate(group.completions):
        if part and used + length > budget:
            yield _unit(index, group, part)
            part, used = [], group.prompt
        part.append(place)
        used += length
    yield _unit(index, group, part)


def _unit(index: int, group: GroupSize, part: Sequence[int]) -> PackedUnit:
    lengths = [group.completions[place] for place in part]
    return PackedUnit(index, tuple(part), group.prompt + sum(lengths), max(lengths))
