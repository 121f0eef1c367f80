"""The rule rewards against values worked by hand."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouprl.checks.json_schema import JsonSchema
from grouprl.problems.formats import Regex, ThinkFormat
from grouprl.problems.lengths import CosineLength, NearLength
from grouprl.problems.repetition import Repetition
from grouprl.rewards.rules import LONGEST_TEXT
from grouprl.types import UserError


def value(reward: Callable[..., Any], text: str, ids: list[int] | None = None, **columns: Any) -> float | None:
    """Of one completion, asked for as text and as a chat message."""
    others = {name: [column] for name, column in columns.items()}
    given_ids = [[1, 2] if ids is None else ids]
    (plain,) = reward(prompts=["?"], completions=[text], completion_ids=given_ids, **others)
    chat = [{"role": "assistant", "content": text}]
    assert reward(prompts=[[]], completions=[chat], completion_ids=given_ids, **others) == [plain]
    return plain


# think_format


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>so</think><answer>7</answer>", 1.0), ("\n<think>\nso\n</think>\n\n<answer>\n7\n</answer>\n", 1.0),
        ("<think>a < b</think><answer><b>7</b></answer>", 1.0), ("<think>so</think> so <answer>7</answer>", 0.0),
        ("so <think>so</think><answer>7</answer>", 0.0), ("<think>so</think><answer>7</answer> so", 0.0),
        ("<think> </think><answer>7</answer>", 0.0), ("<think>so</think><answer>\n</answer>", 0.0),
        ("<think>so</think><answer>7", 0.0), ("<think>so<answer>7</answer>", 0.0),
        ("so</think><answer>7</answer>", 0.0), ("<answer>7</answer><think>so</think>", 0.0),
        ("<think>so</think><answer>7</answer><answer>8</answer>", 0.0),
        ("<think><think>so</think></think><answer>7</answer>", 0.0), ("<think>so<answer></think>7</answer>", 0.0),
        ("<think>so</think><answer>7<think></answer>", 0.0), ("<THINK>so</THINK><ANSWER>7</ANSWER>", 0.0), ("", 0.0),
    ],
)  # fmt: skip
def test_think_format(text: str, expected: float) -> None:
    assert value(ThinkFormat(), text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so</think><answer>7</answer>", 1.0),
        ("\nso\n</think>\n<answer>7</answer>\n", 1.0),
        ("<think>so</think><answer>7</answer>", 0.0),
        ("</think><answer>7</answer>", 0.0),
        ("so<answer>7</answer>", 0.0),
    ],
)
def test_think_format_where_the_prompt_opens_the_thought(text: str, expected: float) -> None:
    assert value(ThinkFormat(opened=True), text) == expected


# regex


@pytest.mark.parametrize(
    ("pattern", "full", "text", "expected"),
    [
        (r"\d+", False, "it is 7.", 1.0), (r"\d+", True, "it is 7.", 0.0), (r"\d+", True, "77", 1.0),
        (r"\d+", True, "77\n", 0.0), (r"a.b", False, "a\nb", 0.0), (r"(?s)a.b", False, "a\nb", 1.0),
        (r"^$", False, "", 1.0),
    ],
)  # fmt: skip
def test_regex(pattern: str, full: bool, text: str, expected: float) -> None:
    assert value(Regex(pattern, full), text) == expected


def test_a_text_too_long_for_a_pattern_is_not_judged() -> None:
    assert value(Regex("7$"), "7" * LONGEST_TEXT) == 1.0
    with pytest.raises(ValueError, match=f"at most {LONGEST_TEXT:,} characters, got {LONGEST_TEXT + 1:,}"):
        value(Regex("7$"), "7" * (LONGEST_TEXT + 1))


# repetition


@pytest.mark.parametrize(
    ("ngram", "ids", "expected"),
    [
        (2, [1, 2, 3, 4], 0.0),
        (2, [1, 2, 1, 2], -1 / 3),  # 12, 21, 12
        (2, [5, 5, 5, 5, 5], -3 / 4),  # 55 four times
        (1, [5, 5, 5, 6], -1 / 2),
        (3, [1, 2, 3, 1, 2, 3, 1, 2, 3], -4 / 7),  # 123, 231, 312, and four again
        (3, [1, 2], 0.0),
        (3, [1, 2, 3], 0.0),
        (3, [], 0.0),
        (20, [7] * 20, 0.0),
        (20, [7] * 21, -1 / 2),
    ],
)
def test_repetition(ngram: int, ids: list[int], expected: float) -> None:
    assert value(Repetition(ngram), "", ids) == pytest.approx(expected, abs=1e-15)


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 5))
def test_repetition_is_the_share_of_grams_seen_before(ids: list[int], n: int) -> None:
    grams = [ids[start : start + n] for start in range(len(ids) - n + 1)]
    again = sum(gram in grams[:place] for place, gram in enumerate(grams))
    got = value(Repetition(n), "", ids)
    assert got == pytest.approx(-again / max(len(grams), 1), abs=1e-12)
    assert -1.0 < got <= 0.0


# cosine_length

COSINE = CosineLength(
    max_tokens=12, correct_short=2.0, correct_long=1.0, wrong_short=-10.0, wrong_long=0.0, at_limit=-9
)


@pytest.mark.parametrize(
    ("length", "correct", "wrong"),
    [
        (0, 2.0, -10.0),
        (3, 1 + (1 + math.sqrt(0.5)) / 2, -5 * (1 + math.sqrt(0.5))),  # cos 45°
        (4, 1.75, -7.5),  # cos 60° = 1/2
        (6, 1.5, -5.0),  # cos 90° = 0
        (8, 1.25, -2.5),  # cos 120° = -1/2
        (12, -9.0, -9.0),
        (13, -9.0, -9.0),
    ],
)
def test_cosine_length(length: int, correct: float, wrong: float) -> None:
    ids = list(range(length))
    assert value(COSINE, r"\boxed{7}", ids, answer="7") == pytest.approx(correct, abs=1e-12)
    assert value(COSINE, r"\boxed{8}", ids, answer="7") == pytest.approx(wrong, abs=1e-12)


@given(st.integers(1, 200), st.booleans(), st.data())
def test_cosine_length_stays_in_its_range_and_falls_or_rises_steadily(limit: int, right: bool, data: Any) -> None:
    a, b = sorted(data.draw(st.tuples(st.integers(0, limit - 1), st.integers(0, limit - 1))))
    text = r"\boxed{7}" if right else "no"
    short, long = (value(CosineLength(limit), text, [0] * n, answer="7") for n in (a, b))
    assert 1.0 >= short >= long >= 0.5 if right else -1.0 <= short <= long <= -0.5


def test_cosine_length_takes_another_verifier() -> None:
    def at_least(scores: list[float | None], **_: Any) -> list[float | None]:
        return scores

    reward = CosineLength(max_tokens=4, verifier=at_least)
    expected = {1.0: 0.75, 0.99: -0.75, 5.0: 0.75, None: None}
    assert {score: value(reward, "", [1, 2], scores=score) for score in expected} == expected
    with pytest.raises(ValueError, match="nan"):
        value(reward, "", [1, 2], scores=math.nan)
    assert value(CosineLength(max_tokens=4), r"\boxed{7}", [1, 2], answer=None) is None


# json_schema

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "Ann"}', 1.0), (' \n{"name": "Ann", "age": 7}\n', 1.0),
        ('Here:\n```json\n{"name": "Ann"}\n```\nDone.', 1.0), ('  ```JSON\r\n{"name": "Ann"}\r\n  ```', 1.0),
        ('```json\n{"nom": "Ann"}\n```\n```json\n{"name": "Ann"}\n```', 1.0),
        ('```json\n{"name": "Ann"}\n```\n```json\n{"nom": "Ann"}\n```', 0.0),
        ('```json\n{"name": "Ann"}\n```\n```json\n{"name', 1.0), ('```json\n{"name": "A\u2028n"}\n```', 1.0),
        ('```json\n{"name": "Ann"}', 0.0), ('```\n{"name": "Ann"}\n```', 0.0), ('Here: {"name": "Ann"}', 0.0),
        ('{"name": ""}', 0.0), ('{"name": "Ann", "age": 7.5}', 0.0), ('{"name": "Ann", "more": 1}', 0.0),
        ('{"name": "Bob", "name": "Ann"}', 0.0), ("{'name': 'Ann'}", 0.0), ('{"name": "Ann", "age": NaN}', 0.0),
        ('{"name": "Ann", "age": -Infinity}', 0.0), ('{"name": "Ann", "age": 1e999}', 0.0), ("[]", 0.0), ("", 0.0),
    ],
)  # fmt: skip
def test_json_schema(text: str, expected: float) -> None:
    assert value(JsonSchema(SCHEMA), text) == expected
    assert value(JsonSchema(), text, schema=SCHEMA) == expected
    assert value(JsonSchema(column="shape"), text, shape=json.dumps(SCHEMA)) == expected


def test_a_problem_without_a_schema_is_not_judged_and_a_missing_column_is_told() -> None:
    assert value(JsonSchema(), "[]", schema=None) is None
    # As deep as any Python's parser and checker go, and one level more.
    assert value(JsonSchema({}), "[" * 100 + "]" * 100) == 1.0
    assert value(JsonSchema({}), "[" * 101 + "]" * 101) == 0.0
    with pytest.raises(ValueError, match="column 'schema', got answer"):
        value(JsonSchema(), "[]", answer="7")
    with pytest.raises(ValueError, match="expected a JSON Schema"):
        value(JsonSchema(), "[]", schema={"type": "thing"})


def test_a_remote_reference_is_never_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[object] = []

    def connect(*address: object) -> None:
        tried.append(address)
        raise OSError

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    reward = JsonSchema({"$ref": "http://localhost:9/schema.json"})
    with pytest.raises(Exception, match="Unresolvable"):
        value(reward, "{}")
    assert tried == []
    known = JsonSchema({"$ref": "https://json-schema.org/draft/2020-12/schema"})  # comes with the package
    assert [value(known, text) for text in ('{"type": "object"}', '{"type": "thing"}')] == [1.0, 0.0]
    inside = JsonSchema({"$defs": {"n": {"type": "integer"}}, "items": {"$ref": "#/$defs/n"}})
    assert [value(inside, text) for text in ("[1, 2]", '["1"]')] == [1.0, 0.0]


# near_length


@pytest.mark.parametrize(
    ("text", "tokens", "by_characters", "by_tokens"),
    [
        ("", 1, -5.0, -2.0),
        ("seven", 3, 0.0, 0.0),
        ("naïve", 4, 0.0, -1.0),  # five characters, six bytes
        ("👍🏽 ok", 7, 0.0, -4.0),  # five code points
        ("a longer text", 2, -8.0, -1.0),
    ],
)
def test_near_length(text: str, tokens: int, by_characters: float, by_tokens: float) -> None:
    ids = list(range(tokens))
    assert value(NearLength(5, "characters"), text, ids) == by_characters
    assert value(NearLength(3), text, ids) == by_tokens


# Settings


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ThinkFormat(opened="yes"), "reward think_format: expected opened to be true or false, got 'yes'"),
        (lambda: Regex("("), r"reward regex: expected a regular expression, got '\('.*fix"),
        (lambda: Regex(7), "reward regex: expected pattern to be a regular expression as text, got 7"),
        (lambda: Regex("7", full=1), "reward regex: expected full to be true or false, got 1"),
        (lambda: Repetition(0), "reward repetition: expected ngram .* at least 1, got 0"),
        (lambda: Repetition(2.5), "reward repetition: expected ngram .* whole number"),
        (lambda: CosineLength(0), "reward cosine_length: expected max_tokens to be at least 1, got 0"),
        (lambda: CosineLength(9, at_limit=math.inf), "reward cosine_length: expected at_limit to be a finite number"),
        (lambda: CosineLength(9, wrong_long="0"), "reward cosine_length: expected wrong_long .* got '0'"),
        (lambda: CosineLength(9, verifier="oracle"), "reward cosine_length: expected verifier .* got 'oracle'"),
        (lambda: NearLength(-1), "reward near_length: expected ideal .* at least 0, got -1"),
        (lambda: NearLength(50.0), "reward near_length: expected ideal to be a whole number.* got 50.0"),
        (lambda: NearLength(50, "words"), "reward near_length: expected unit to be one of characters, tokens, got 'w"),
        (lambda: JsonSchema({"type": "thing"}), "reward json_schema: expected a JSON Schema, got .*thing"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_rule_rewards_load_neither_torch_nor_what_their_extras_bring() -> None:
    names = ("problems.formats", "problems.lengths", "problems.repetition", "checks.json_schema", "checks.symbolic")
    modules = ", ".join(f"grouprl.{name}" for name in names)
    heavy = "torch", "transformers", "sympy", "math_verify", "jsonschema"
    program = f"import sys, {modules}; print([n for n in {heavy!r} if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"
