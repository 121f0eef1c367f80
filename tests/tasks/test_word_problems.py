from __future__ import annotations

import hashlib
import random
import re
import string
from collections import Counter
from collections.abc import Iterator

import pytest

from grouprl.problems.word_problems import WordProblems, cold_start_pairs, direct_guess, operations, worked_solution
from grouprl.tasks import base
from grouprl.tasks.answers import gold_answer, last_boxed
from grouprl.tasks.base import DrawnProblems, Split
from grouprl.tasks.named import load_task
from grouprl.types import Problem, UserError
from verifying import verdict

TASK = WordProblems()
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def questions(task: WordProblems, split: Split) -> list[str]:
    return [problem.columns["question"] for problem in task.problems(split)]


def solve(question: str) -> int:
    """Solves a question by the effect of each phrase on the number of things, independently of the generator."""
    text = question.lower()
    rules = [
        (r"(?:has|packs|fills|buys) (\d+) (\w+) with (\d+) \w+ (?:each|in each)", lambda _, a, __, b: int(a) * int(b)),
        (r"buys (\d+) (\w+) of \w+ with (\d+) in each", lambda _, a, __, b: int(a) * int(b)),
        (r"(\d+) times as many", lambda value, k: value * int(k)),
        (r"trades each of the \w+ for (\d+)", lambda value, k: value * int(k)),
        (r"for (\d+) dollars each", lambda value, k: value * int(k)),
        (r"(?:into|among) (\d+) ", lambda value, k: value // int(k)),
        (r"(?:gets|borrows) (\d+)[ \w]* from", lambda value, k: value + int(k)),
        (r"(?:finds|buys|gets|wins|picks up) (\d+) more", lambda value, k: value + int(k)),
        (r"(?:gives|loses|sells|lends|throws away|leaves) (\d+)", lambda value, k: value - int(k)),
        (r"(?:has|starts the day with|owns|collects|brings|buys) (\d+) (?!times|cousins|more)", lambda _, k: int(k)),
    ]
    found = [(m.start(), n, m) for n, (rule, _) in enumerate(rules) for m in re.finditer(rule, text)]
    taken: dict[int, tuple[int, re.Match[str]]] = {}
    for start, n, match in sorted(found, key=lambda item: item[:2]):
        taken.setdefault(start, (n, match))
    value = -1
    for _, (n, match) in sorted(taken.items()):
        value = rules[n][1](value, *match.groups())
    return value


def test_an_independent_reader_agrees_with_every_gold_answer() -> None:
    problems = [*TASK.problems("train")[:1500], *TASK.problems("test")]
    wrong = [
        p.columns["question"] for p in problems if solve(p.columns["question"]) != int(gold_answer(p.columns["answer"]))
    ]
    assert wrong == []


def test_splits_are_disjoint_across_seeds_even_where_few_questions_exist() -> None:
    small = [WordProblems(difficulty=1, train_problems=1000, eval_problems=200, seed=seed) for seed in range(2)]
    by_split = {split: {text for task in small for text in questions(task, split)} for split in SPLITS}
    assert sum(map(len, by_split.values())) == len(set.union(*by_split.values()))


def test_the_split_follows_from_the_text_alone() -> None:
    # The number of stories is so large that chance alone keeps samples apart: hold the rule itself to its definition.
    def expected(text: str) -> str:
        tenth = 10 * int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest()) // 2**48
        return {0: "test", 1: "validation"}.get(tenth, "train")

    for split in SPLITS:
        assert {expected(text) for text in questions(WordProblems(seed=5, train_problems=500), split)} == {split}


class Letters(DrawnProblems):
    """Draws the letters of a text, one text for each problem."""

    name, train_problems = "letters", 1

    def __init__(self, *texts: str) -> None:
        self.texts, self.eval_problems = texts, len(texts)

    def draw(self, split: Split, index: int) -> Iterator[tuple[str, Problem]]:
        return ((letter, Problem(str(index), letter)) for letter in self.texts[index])


def test_a_problem_met_before_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "split_of", lambda letter: "train" if letter == "z" else "test")
    assert [(p.id, p.prompt) for p in Letters("ab", "zac", "cabd").problems("test")] == [
        ("0", "a"),
        ("1", "c"),
        ("2", "b"),
    ]
    with pytest.raises(UserError, match=r"no more different problems for test than letters .*about 2.*got 3"):
        Letters("ab", "ac", "cza").problems("test")


def test_a_problem_depends_on_seed_split_and_number_alone() -> None:
    other = WordProblems(train_problems=50, eval_problems=20)
    assert other.problems("train")[49] == TASK.problems("train")[49]
    assert list(other.problems("test")) == list(TASK.problems("test")[:20])
    assert WordProblems(seed=1).problems("train")[49].prompt != TASK.problems("train")[49].prompt


def test_a_split_is_a_sequence() -> None:
    train = WordProblems(train_problems=10).problems("train")
    assert len(train) == len(list(train)) == 10
    assert train[-1] == train[9]
    assert [p.id for p in train[7:]] == [f"word_problems/train/{n}" for n in (7, 8, 9)]
    with pytest.raises(IndexError):
        train[10]


def test_the_form_of_a_problem() -> None:
    for problem in TASK.problems("validation"):
        assert problem.prompt == ({"role": "user", "content": problem.columns["question"]},)
        *lines, last = problem.columns["answer"].split("\n")
        assert 1 <= len(lines) <= 4
        value = lines[0].split()[0]
        for line in lines:
            left, symbol, right, result, shown = re.fullmatch(
                r"(\d+) ([-+*/]) (\d+) = <<\1\2\3=(\d+)>>(\d+)", line
            ).groups()
            exact = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}
            assert left == value
            assert int(result) * int(right) == int(left) if symbol == "/" else int(result) == exact[symbol]
            assert symbol in "+-" or 2 <= int(right) <= 9
            assert result == shown
            assert 0 <= int(result) <= 100
            value = result
        assert last == f"#### {value}"
        words = re.findall(r"\w+", problem.columns["question"])
        assert 8 <= len(words) <= 90
        assert "{" not in problem.columns["question"]


def test_the_language_is_small_and_every_operation_and_length_is_common() -> None:
    sample = TASK.problems("train")[:2000]
    words = {word for p in sample for word in re.findall(r"[A-Za-z]+", p.columns["question"])}
    assert 200 <= len(words) <= 400
    characters = {character for p in sample for character in p.columns["question"]}
    assert characters <= set(string.ascii_letters + string.digits + " .,?")
    lengths = Counter(len(operations(p)) for p in sample)
    assert set(lengths) == {1, 2, 3, 4}
    assert min(lengths.values()) > 400
    symbols = Counter(step.symbol for p in sample for step in operations(p))
    assert min(symbols[s] for s in "+-*/") > 500
    extra = [len(re.findall(r"\d+", p.columns["question"])) - len(operations(p)) - 1 for p in sample]
    assert {0, 1, 2} == set(extra)


@pytest.mark.parametrize("difficulty", [1, 2, 3, 4])
def test_difficulty_bounds_operations_and_numbers(difficulty: int) -> None:
    sample = WordProblems(difficulty=difficulty).problems("train")[:300]
    assert {len(operations(p)) for p in sample} == set(range(1, difficulty + 1))
    assert max(max(step.left, step.result) for p in sample for step in operations(p)) <= 25 * difficulty


def test_worked_solutions_are_right_and_worked() -> None:
    for problem in TASK.problems("validation"):
        text = worked_solution(problem)
        assert TASK.gold(problem) == text
        assert verdict(TASK, problem, text) == 1.0
        assert TASK.traits(text) == {"worked": True}
    example = Problem("x", "?", {"answer": "15 - 3 = <<15-3=12>>12\n12 - 5 = <<12-5=7>>7\n#### 7"})
    assert worked_solution(example) == r"15 - 3 = 12. 12 - 5 = 7. \boxed{7}"


def test_direct_guesses_are_right_a_quarter_of_the_time_and_the_likeliest_is_wrong() -> None:
    problems = TASK.problems("train")[:40]
    modes_right, right = 0, 0
    for problem in problems:
        guesses = [direct_guess(problem, random.Random(f"{problem.id}/{n}")) for n in range(100)]
        assert not any(TASK.traits(guess)["worked"] for guess in guesses)
        boxes = Counter(map(last_boxed, guesses))
        gold = gold_answer(problem.columns["answer"])
        right += boxes[gold]
        modes_right += boxes.most_common(1)[0][0] == gold
    assert 0.235 < right / 4000 < 0.265  # two standard errors around a quarter; the draws are fixed
    assert modes_right <= 2


def test_cold_start_pairs_mix_worked_and_direct() -> None:
    pairs = list(cold_start_pairs(WordProblems(train_problems=300), 1000, 0.3, seed=0))
    assert len(pairs) == 1000
    assert all(problem.id.startswith("word_problems/train/") for problem, _ in pairs)
    assert 0.25 < sum(TASK.traits(text)["worked"] for _, text in pairs) / 1000 < 0.35
    assert pairs == list(cold_start_pairs(WordProblems(train_problems=300), 1000, 0.3, seed=0))
    assert pairs != list(cold_start_pairs(WordProblems(train_problems=300), 1000, 0.3, seed=1))
    assert all(TASK.traits(text)["worked"] for _, text in cold_start_pairs(TASK, 50, 1.0, seed=0))


def test_the_task_by_name() -> None:
    assert load_task("word_problems", difficulty=2, seed=3) == WordProblems(difficulty=2, seed=3)


@pytest.mark.parametrize(
    ("option", "value"), [("difficulty", 0), ("difficulty", 5), ("train_problems", 0), ("eval_problems", 0)]
)
def test_values_out_of_range_are_refused(option: str, value: int) -> None:
    with pytest.raises(UserError, match=rf"task\.{option}.*got {value}"):
        WordProblems(**{option: value})
