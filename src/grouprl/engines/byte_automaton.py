"""A regular expression as an automaton over the bytes of UTF-8 text.

Python's own parser and matcher decide which characters an expression means; the subset construction makes states of
sets of places in it (Rabin, Scott: Finite Automata and Their Decision Problems, IBM Journal 3 (2), 1959).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from re import _compiler, _parser  # type: ignore[attr-defined]
from typing import Any

import numpy as np

from grouprl.types import UserError

NONE = -1  # no state
MOST_STATES = 1 << 14
_LAST = sys.maxunicode + 1
_SINGLE = {"LITERAL", "NOT_LITERAL", "ANY", "IN"}
_REPEATS = {"MAX_REPEAT", "MIN_REPEAT"}
_AT_START, _AT_END = ("AT_BEGINNING", "AT_BEGINNING_STRING"), ("AT_END", "AT_END_STRING")
_SURROGATES = slice(0xD800, 0xE000)  # no characters, so that UTF-8 has no bytes for them
_CHARACTERS = "".join(map(chr, [*range(0xD800), *range(0xE000, _LAST)]))


def byte_automaton(regex: str, key: str) -> tuple[np.ndarray, np.ndarray]:
    """The states of a regular expression that matches a whole text; state 0 is before the first byte.

    Args:
        regex: in Python's syntax, without look-around, references and word boundaries; with an anchor at its start and
            its end at most, where it changes nothing.
        key: the setting, for errors.

    Returns:
        [states, 256] int32 the state after each byte, -1 = none; [states] bool, whether the text may end there.

    Raises:
        UserError: the expression cannot be read, or has too many states.
    """
    try:
        tree = _parser.parse(regex)
    except re.error as error:
        raise UserError(f"{key}: expected a regular expression, got {regex!r}: {error}") from error
    places = _FreeMoves(key, regex)
    places.last = places.add(_without_anchors(list(tree)), tree.state.flags, 0)
    class_of, symbols = _classes(list(places.characters.values()))
    moves, accepting = _determinized(places, symbols, class_of.max() + 1)
    return _of_bytes(moves, accepting, _Tree(class_of), places.too_large)


def _without_anchors(nodes: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The nodes between ^ and $, which a whole text is matched between anyway."""
    first = 1 if nodes and str(nodes[0][1]) in _AT_START else 0
    last = len(nodes) - 1 if len(nodes) > first and str(nodes[-1][1]) in _AT_END else len(nodes)
    return nodes[first:last]


class _FreeMoves:
    """An automaton with free moves, over sets of characters (Thompson's construction)."""

    def __init__(self, key: str, regex: str) -> None:
        self._key, self._regex = key, regex
        self.characters: dict[str, np.ndarray] = {}  # [0x110000] bool of each set, by its node and flags
        self.free: list[list[int]] = [[]]  # [places] where one may be, too
        self.reads: list[tuple[int, int] | None] = [None]  # [places] (set of characters, place after one of them)
        self.last = 0

    def too_large(self) -> UserError:
        """The error of an expression that needs too many states."""
        return UserError(
            f"{self._key}: expected at most {MOST_STATES} states, got more for {self._regex!r}: use smaller counts in "
            "{n,m}, or * and a limit by rollout.max_tokens"
        )

    def _new(self) -> int:
        if len(self.free) > 8 * MOST_STATES:
            raise self.too_large()
        self.free.append([])
        self.reads.append(None)
        return len(self.free) - 1

    def add(self, nodes: Iterable[tuple[Any, Any]], flags: int, start: int) -> int:
        """Adds a sequence of nodes of Python's parser after a place; gives the place after them."""
        for kind, value in nodes:
            name = str(kind)
            if name in _SINGLE:
                start = self._read(kind, value, flags, start)
            elif name == "SUBPATTERN":
                _, more, fewer, inner = value
                start = self.add(inner, (flags | more) & ~fewer, start)
            elif name == "BRANCH":
                end = self._new()
                for branch in value[1]:
                    first = self._new()
                    self.free[start].append(first)
                    self.free[self.add(branch, flags, first)].append(end)
                start = end
            elif name in _REPEATS:
                fewest, most, inner = value
                start = self._repeat(fewest, most, inner, flags, start)
            else:
                raise UserError(
                    f"{self._key}: expected an expression of characters, sets, groups, | and repetitions, got "
                    f"{name.lower()} in {self._regex!r}: remove it; the whole completion is matched, as between ^ and $"
                )
        return start

    def _read(self, kind: Any, value: Any, flags: int, start: int) -> int:
        name = f"{kind} {value} {flags}"
        if name not in self.characters:
            self.characters[name] = _matching(kind, value, flags)
        end = self._new()
        self.free[start].append(first := self._new())
        self.reads[first] = (list(self.characters).index(name), end)
        return end

    def _repeat(self, fewest: int, most: Any, inner: Any, flags: int, start: int) -> int:
        for _ in range(fewest):
            start = self.add(inner, flags, start)
        if most is _parser.MAXREPEAT:
            again, end = self._new(), self._new()
            self.free[start].append(again)
            self.free[again].append(end)
            self.free[self.add(inner, flags, again)].append(again)
            return end
        end = self._new()
        for _ in range(most - fewest):
            self.free[start].append(end)
            start = self.add(inner, flags, start)
        self.free[start].append(end)
        return end

    def reached(self, places: Iterable[int]) -> frozenset[int]:
        """The places that free moves lead to."""
        found, waiting = set(places), list(places)
        while waiting:
            for place in self.free[waiting.pop()]:
                if place not in found:
                    found.add(place)
                    waiting.append(place)
        return frozenset(place for place in found if self.reads[place] is not None or place == self.last)


def _matching(kind: Any, value: Any, flags: int) -> np.ndarray:
    """[0x110000] bool: which characters Python's matcher takes for a node."""
    state = _parser.State()
    state.flags = flags
    node = _parser.SubPattern(state, [(kind, value)])
    pattern = _compiler.compile(_parser.SubPattern(state, [(_parser.MAX_REPEAT, (1, _parser.MAXREPEAT, node))]), flags)
    found = np.zeros(len(_CHARACTERS), bool)
    for run in pattern.finditer(_CHARACTERS):
        found[run.start() : run.end()] = True
    return np.insert(found, _SURROGATES.start, np.zeros(_SURROGATES.stop - _SURROGATES.start, bool))


def _classes(sets: Sequence[np.ndarray]) -> tuple[np.ndarray, list[list[int]]]:
    """Characters that are in the same sets are one class.

    Returns:
        [0x110000] class of each character, and the classes of each set.
    """
    if not sets:
        return np.zeros(_LAST, np.int64), []
    starts = np.unique(np.concatenate([[0], *(np.flatnonzero(np.diff(members)) + 1 for members in sets)]))
    kinds, class_of = np.unique(np.stack([members[starts] for members in sets], 1), axis=0, return_inverse=True)
    lengths = np.diff(np.append(starts, _LAST))
    return np.repeat(class_of.reshape(-1), lengths), [np.flatnonzero(column).tolist() for column in kinds.T]


def _determinized(places: _FreeMoves, symbols: Sequence[Sequence[int]], classes: int) -> tuple[np.ndarray, np.ndarray]:
    """[states, classes] the state after a character of each class, -1 = none; [states] accepting."""
    start = places.reached([0])
    number, sets, moves = {start: 0}, [start], list[list[int]]()
    for current in sets:  # grows
        targets: dict[int, set[int]] = {}
        for place in current:
            if (read := places.reads[place]) is not None:
                for one in symbols[read[0]]:
                    targets.setdefault(one, set()).add(read[1])
        row = [NONE] * classes
        for one, after in targets.items():
            found = places.reached(after)
            if found not in number:
                number[found] = len(sets)
                sets.append(found)
                if len(sets) > MOST_STATES:
                    raise places.too_large()
            row[one] = number[found]
        moves.append(row)
    return np.array(moves, np.int32), np.array([places.last in one for one in sets])


class _Tree:
    """The classes of characters by the bytes of UTF-8: equal blocks of 64, and equal blocks of 64 such blocks, once."""

    def __init__(self, class_of: np.ndarray) -> None:
        self.ascii = class_of[:0x80]
        blocks = class_of.reshape(-1, 64).copy()
        blocks[:2] = blocks[2]  # one byte writes these: no states for them
        self.leaves, leaf_of = np.unique(blocks, axis=0, return_inverse=True)
        self.leaf_of = leaf_of.reshape(-1)
        blocks = self.leaf_of.reshape(-1, 64).copy()
        nothing = len(self.leaves)
        blocks[0, :32] = nothing  # two bytes write these; UTF-8 forbids three for them
        blocks[0xD, 32:] = nothing  # surrogates
        self.middles, middle_of = np.unique(blocks, axis=0, return_inverse=True)
        self.middle_of = middle_of.reshape(-1)
        self.tops = np.full((5, 64), len(self.middles))
        self.tops.reshape(-1)[16 : len(self.middle_of)] = self.middle_of[16:]  # below 16: three bytes write these


def _of_bytes(
    moves: np.ndarray, accepting: np.ndarray, tree: _Tree, too_large: Callable[[], UserError]
) -> tuple[np.ndarray, np.ndarray]:
    """The same automaton over the bytes of UTF-8, with further states inside characters."""
    rows = [np.full(256, NONE, np.int32) for _ in moves]
    number: dict[bytes, int] = {}  # of states inside a character, by what follows

    def state(row: np.ndarray) -> int:
        """The state that these 64 follow after one of the bytes 0x80 .. 0xBF."""
        if (row == NONE).all():
            return NONE
        key = row.tobytes()
        if key not in number:
            if len(rows) >= MOST_STATES:
                raise too_large()
            number[key] = len(rows)
            rows.append(np.full(256, NONE, np.int32))
            rows[-1][0x80:0xC0] = row
        return number[key]

    for own, after in zip(list(rows), moves, strict=True):
        own[:0x80] = after[tree.ascii]
        leaves = np.array([*(state(after[leaf]) for leaf in tree.leaves), NONE], np.int32)
        middles = np.array([*(state(leaves[middle]) for middle in tree.middles), NONE], np.int32)
        own[0xC2:0xE0] = leaves[tree.leaf_of[2:32]]
        own[0xE0:0xF0] = middles[tree.middle_of[:16]]
        own[0xF0:0xF5] = [state(middles[top]) for top in tree.tops]
    return np.stack(rows), np.append(accepting, np.zeros(len(rows) - len(accepting), bool))
