"""The automaton of a regular expression, against Python's own matcher."""

import random
import re
from collections.abc import Iterable

import numpy as np
import pytest

from grouprl.engines.byte_automaton import NONE, byte_automaton
from grouprl.types import UserError


def end_of(next_XB: np.ndarray, text: Iterable[int]) -> int:
    state = 0
    for byte in text:
        state = int(next_XB[state, byte]) if state != NONE else NONE
    return state


def accepts(automaton: tuple[np.ndarray, np.ndarray], text: bytes) -> bool:
    next_XB, accepting = automaton
    state = end_of(next_XB, text)
    return state != NONE and bool(accepting[state])


EXPRESSIONS = [
    "a", "", "ab|ac|", "(a|b)*abb", "a{2,4}b?", "(ab){0,2}c+", "a*?b+?", "[^a]b", r"\d+(\.\d{1,2})?", r"\w\s\W", ".",
    "(?s).", "(?i)aB|é", "(?i:a)b", "(?:a(?P<x>b)|c)+", "[à-ÿ]é?", "a.{0,3}b", "(a|ab)(c|bcd)(d*)", r"[\x00-\x7f]",
    "é|€|😀", "[^😀]*", "^(a|b)*$", r"\Aa?b\Z", "^$", "^a", "b$",
]  # fmt: skip


@pytest.mark.parametrize("regex", EXPRESSIONS)
def test_the_same_texts_match_as_in_python(regex: str):
    automaton, random_ = byte_automaton(regex, "key"), random.Random(regex)
    wide = "abcdABé€😀 \n.5ÀſK"
    texts = [
        "",
        *"abcdABé€😀 \n.5ÀſK\x00",
        "aabb",
        "abb",
        "c1 .",
        "5.5",
        "12.34",
        "a_ ?",
        "abcd",
        "axxb",
        "àé",
        "ab",
        "bb",
    ]
    for letters in ("ab", "abcd", wide):
        texts += ["".join(random_.choices(letters, k=random_.randrange(7))) for _ in range(400)]
    expected = [re.fullmatch(regex, text) is not None for text in texts]
    assert [accepts(automaton, text.encode()) for text in texts] == expected
    assert {*expected} == {True, False}


def test_any_character_is_what_utf8_allows():
    """All pairs of bytes, and the edges of longer characters: surrogates, overlong forms, beyond the last."""
    automaton = byte_automaton("(?s).", "key")
    edges = [0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF]
    texts = [bytes([one]) for one in range(256)] + [bytes([one, two]) for one in range(256) for two in range(256)]
    texts += [bytes([one, two, three]) for one in range(0xDF, 0xF1) for two in edges for three in edges]
    texts += [
        bytes([one, two, three, four])
        for one in range(0xEF, 0xF7)
        for two in edges
        for three in edges
        for four in edges
    ]
    for text in texts:
        try:
            is_one = len(text.decode()) == 1
        except UnicodeDecodeError:
            is_one = False
        assert accepts(automaton, text) == is_one, text


@pytest.mark.parametrize(
    ("regex", "message"),
    [
        ("(", r"key: expected a regular expression, got '\(': missing \)"),
        ("b|^a$", "got at in .*the whole completion is matched"),
        ("a^b", "got at in .*the whole completion is matched"),
        ("$a", "got at in .*the whole completion is matched"),
        (r"a\b", "got at in"),
        ("(?=a)b", "got assert in"),
        (r"(a)\1", "got groupref in"),
        ("(?>a)", "got atomic_group in"),
        ("a*+", "got possessive_repeat in"),
        ("(a|b)*a(a|b){20}", r"expected at most 16384 states, got more for .*use smaller counts"),
        ("(a{1000}){1000}", "expected at most 16384 states"),
    ],
)
def test_an_expression_that_cannot_be_used_says_why(regex: str, message: str):
    with pytest.raises(UserError, match=message):
        byte_automaton(regex, "key")
