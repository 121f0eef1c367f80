"""A regular expression as an automaton over the bytes of UTF-8 text.

Python's own parser and matcher decide which characters an expression means; the subset construction makes the states
(Rabin, Scott: Finite Automata and Their Decision Problems, IBM Journal 3 (2), 1959).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import cache
from re import _compiler, _parser  # type: ignore[attr-defined]
from typing import Any

import numpy as np

from grouprl.types import UserError

NONE = -1  # no state
MOST_STATES = 1 << 14
_ACCEPTS = (NONE, NONE)  # in a set of pairs: the text may end
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
    nodes = list(tree)
    if nodes and str(nodes[0][1]) in _AT_START:
        nodes = nodes[1:]
    if nodes and str(nodes[-1][1]) in _AT_END:
        nodes = nodes[:-1]
    automaton = _NondeterministicAutomaton(key, regex)
    last = automaton.add(nodes, tree.state.flags, 0)
    return automaton.determinized(last)


class _NondeterministicAutomaton:
    """States with free moves, and with moves by one character of a set (Thompson's construction)."""

    def __init__(self, key: str, regex: str) -> None:
        self._key, self._regex = key, regex
        self._free: list[list[int]] = [[]]  # [states] where free moves lead
        self._reads: list[tuple[int, int] | None] = [None]  # [states] (first row of a set, state after its character)
        self._rows: list[np.ndarray] = []  # [256] the row after each byte; -1 = none, 0 = the character ends
        self._sets: dict[str, int] = {}  # first row of each set of characters, by node and flags

    def _too_large(self) -> UserError:
        return UserError(
            f"{self._key}: expected at most {MOST_STATES} states, got more for {self._regex!r}: use smaller counts in "
            "{n,m}, or * and a limit by rollout.max_tokens"
        )

    def _new(self) -> int:
        if len(self._free) > 8 * MOST_STATES:
            raise self._too_large()
        self._free.append([])
        self._reads.append(None)
        return len(self._free) - 1

    def add(self, nodes: Iterable[tuple[Any, Any]], flags: int, start: int) -> int:
        """Adds a sequence of nodes of Python's parser after a state; gives the state after them."""
        for kind, value in nodes:
            name = str(kind)
            if name in _SINGLE:
                node_name = f"{kind} {value} {flags}"
                if node_name not in self._sets:
                    state = _parser.State()
                    state.flags = flags
                    node = _parser.SubPattern(state, [(kind, value)])
                    repeated = _parser.SubPattern(state, [(_parser.MAX_REPEAT, (1, _parser.MAXREPEAT, node))])
                    pattern = _compiler.compile(repeated, flags)
                    matches = np.zeros(len(_CHARACTERS), bool)
                    for run in pattern.finditer(_CHARACTERS):
                        matches[run.start() : run.end()] = True
                    surrogates = np.zeros(_SURROGATES.stop - _SURROGATES.start, bool)
                    members = np.insert(matches, _SURROGATES.start, surrogates)
                    self._rows += _byte_rows(members, len(self._rows) + 1)
                    self._sets[node_name] = len(self._rows)
                first, end = self._new(), self._new()
                self._free[start].append(first)
                self._reads[first] = self._sets[node_name], end
                start = end
            elif name == "SUBPATTERN":
                _, more, fewer, inner = value
                start = self.add(inner, (flags | more) & ~fewer, start)
            elif name == "BRANCH":
                end = self._new()
                for branch in value[1]:
                    first = self._new()
                    self._free[start].append(first)
                    self._free[self.add(branch, flags, first)].append(end)
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

    def _repeat(self, fewest: int, most: Any, inner: Any, flags: int, start: int) -> int:
        for _ in range(fewest):
            start = self.add(inner, flags, start)
        if most is _parser.MAXREPEAT:
            again, end = self._new(), self._new()
            self._free[start].append(again)
            self._free[again].append(end)
            self._free[self.add(inner, flags, again)].append(again)
            return end
        end = self._new()
        for _ in range(most - fewest):
            self._free[start].append(end)
            start = self.add(inner, flags, start)
        self._free[start].append(end)
        return end

    def determinized(self, last: int) -> tuple[np.ndarray, np.ndarray]:
        """The table and the accepting states of `byte_automaton`, where a text may end in state `last`."""

        @cache
        def reached(state: int) -> frozenset[tuple[int, int]]:
            """The pairs of `_reads` that free moves lead to; _ACCEPTS stands for the last state."""
            closure, waiting = {state}, [state]
            while waiting:
                new = [target for target in self._free[waiting.pop()] if target not in closure]
                closure.update(new)
                waiting += new
            pairs = frozenset(pair for state in closure if (pair := self._reads[state]) is not None)
            return pairs | {_ACCEPTS} if last in closure else pairs

        # Bytes that no row tells apart are one class.
        rows_RC, class_of = np.unique(np.stack([np.full(256, NONE), *self._rows]), axis=1, return_inverse=True)
        columns = rows_RC.T.tolist()
        same_end = dict[frozenset[tuple[int, int]], int]()  # states after which the same follows
        ends = [same_end.setdefault(reached(state), state) for state in range(len(self._free))]
        start = reached(0)
        number, sets, moves = {frozenset[tuple[int, int]](): NONE, start: 0}, [start], list[list[int]]()
        for pairs in sets:  # grows
            moves.append([])
            for column in columns:
                targets = set[tuple[int, int]]()
                for row, end in pairs - {_ACCEPTS}:
                    if column[row] == 0:
                        targets |= reached(end)
                    elif column[row] != NONE:
                        targets.add((column[row], ends[end]))
                target_set = frozenset(targets)
                if target_set not in number:
                    number[target_set] = len(sets)
                    sets.append(target_set)
                    if len(sets) > MOST_STATES:
                        raise self._too_large()
                moves[-1].append(number[target_set])
        return np.array(moves, np.int32)[:, class_of.reshape(-1)], np.array([_ACCEPTS in pairs for pairs in sets])


def _byte_rows(members: np.ndarray, number: int) -> list[np.ndarray]:
    """A set of characters, [0x110000] bool, as rows over the bytes of UTF-8; the last reads the first byte.

    Returns:
        [256] the row after each byte, numbered from `number` on; -1 = none, 0 = the character ends.
    """
    rows = list[np.ndarray]()
    row_of: dict[bytes, int] = {}  # by the characters that may follow

    def row_after(block: np.ndarray) -> int:
        """The row that reads the last bytes of 64, 64 * 64 or 64 * 64 * 64 characters."""
        if not block.any():
            return NONE
        characters = block.tobytes()
        if characters not in row_of:
            row = np.full(256, NONE)
            parts = block.reshape(64, -1)
            row[0x80:0xC0] = np.where(block, 0, NONE) if len(block) == 64 else [row_after(part) for part in parts]
            rows.append(row)
            row_of[characters] = number + len(rows) - 1
        return row_of[characters]

    first = np.full(256, NONE)
    first[:0x80] = np.where(members[:0x80], 0, NONE)
    for lead, size, start, end in (
        (0xC0, 64, 0x80, 0x800),
        (0xE0, 64**2, 0x800, 1 << 16),
        (0xF0, 64**3, 1 << 16, _LAST),
    ):
        longer = np.zeros(-(-end // size) * size, bool)
        longer[start:end] = members[start:end]  # UTF-8 forbids more bytes than a character needs
        first[lead : lead + len(longer) // size] = [row_after(block) for block in longer.reshape(-1, size)]
    return [*rows, first]
