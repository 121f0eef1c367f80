"""Divides a batch into packs by token counts alone, for the learner, which packs, and the planner, which counts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from grouprl.forward.devices import traits_of

_TOKENS_FOR_A_GROUP = 16384
# On a CPU several packs are a multiple of this and equally large, so that 2 or 4 threads that take them end together.
_EVEN = 4
# Of a model whose packs run side by side. At 135 million weights two threads are 1.8 to 2.0 times as fast as one, 1.5
# times inside the products (Zen 3, AVX2; two processes of such products gain 1.9 to 2.0).
_MOST_WEIGHTS = 150_000_000
# The same for sampling on all threads, without gradients: on 2 cores 1.1 to 1.2 times as fast at 135 and 360 million
# weights, 0.9 times at 494 million with a vocabulary of 151,936.
_MOST_SAMPLED = 400_000_000
_GRADIENTS = 1 << 30  # most weights of all workers' gradients, 4 GiB of float32


@dataclass(frozen=True)
class GroupSize:
    """The numbers of tokens that a forward pass reads of a group."""

    prompt: int
    completions: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens of the whole group, counting its prompt once."""
        return self.prompt + sum(self.completions)


@dataclass(frozen=True)
class PackedUnit:
    """Completions of one group that follow their prompt in one pack."""

    group: int  # index of the group
    completions: tuple[int, ...]  # indices within the group
    tokens: int  # tokens to read, including the prompt
    longest: int  # tokens of the longest completion


def pack_tokens(setting: int, device_type: str, *, largest: int = 0) -> int:
    """The tokens of a pack: the setting, or for 0 the number that suits the device and the largest group (tokens)."""
    return setting or max(traits_of(device_type).pack_tokens, min(largest, _TOKENS_FOR_A_GROUP))


def pack_groups(groups: Sequence[GroupSize], setting: int, device_type: str) -> list[list[PackedUnit]]:
    """Packs groups into packs of at most `pack_tokens` tokens.

    A group that does not fit is divided, and each part reads its prompt again. Groups of similar length go together,
    longest first, so that padding inside attention stays small and memory peaks early. Without a setting, packs on a
    CPU are equally large.

    Args:
        groups: the token counts of each group.
        setting: tokens of a pack, 0 = by device and groups; a single completion with its prompt may exceed it.
        device_type: as torch calls it.
    """
    budget = pack_tokens(setting, device_type, largest=max((group.tokens for group in groups), default=0))
    units = []
    for index, group in enumerate(groups):
        part: list[int] = []
        used = group.prompt
        for number, length in enumerate(group.completions):
            if part and used + length > budget:
                units.append(_unit(index, group, part))
                part, used = [], group.prompt
            part.append(number)
            used += length
        units.append(_unit(index, group, part))
    units.sort(key=lambda unit: unit.longest, reverse=True)
    packs = _filled(units, budget)
    if setting or device_type != "cpu" or len(packs) < 2:
        return packs
    count = -(-len(packs) // _EVEN) * _EVEN
    sizes = range(max(unit.tokens for unit in units), budget)
    # The smallest packs of which there are this many.
    smallest = bisect_left(sizes, True, key=lambda size: len(_filled(units, size)) <= count)
    return _filled(units, sizes[smallest] if smallest < len(sizes) else budget)


def _filled(units: Sequence[PackedUnit], budget: int) -> list[list[PackedUnit]]:
    """Fills packs in the order of the units with at most `budget` tokens, or one unit."""
    packs: list[list[PackedUnit]] = []
    room = 0
    for unit in units:
        if not packs or unit.tokens > room:
            packs.append([])
            room = budget
        packs[-1].append(unit)
        room -= unit.tokens
    return packs


def _unit(index: int, group: GroupSize, part: Sequence[int]) -> PackedUnit:
    lengths = [group.completions[number] for number in part]
    return PackedUnit(index, tuple(part), group.prompt + sum(lengths), max(lengths))


def workers_on_cpu(weights: int, parts: int, threads: int, *, sampling: bool = False) -> int:
    """Computes `workers.worker_count` from the number of a model's weights and the number of torch's threads."""
    if sampling and parts >= threads and weights <= _MOST_SAMPLED:
        return threads
    return 0 if weights > _MOST_WEIGHTS else max(1, min(threads, parts, _GRADIENTS // max(1, weights)))
