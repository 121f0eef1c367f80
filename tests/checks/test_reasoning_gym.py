from __future__ import annotations

import builtins
import json
import pickle
import random
import subprocess
import sys
from typing import Any

import pytest
from sympy.parsing import sympy_parser

from grouprl.checks.gym_scorers import SCORERS
from grouprl.checks.reasoning_gym import GymReward, ReasoningGym, default_arguments, gym_names
from grouprl.tasks.base import Split
from grouprl.tasks.named import load_task
from grouprl.types import Problem, UserError
from verifying import verdict

pytest.importorskip("reasoning_gym")

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
WITHOUT_GOLD = {"boxnet", "rush_hour"}  # the library has no solution of theirs
MARK = 71771  # in no problem: were a model's text run, this would be seen in it
CHEAP = ("", "0", "1", "-1", "yes", "nan", "inf", "[]", "{}", "x")


def small(name: str, **options: Any) -> ReasoningGym:
    return ReasoningGym(name, **{"train_problems": 100, "eval_problems": 5, **options})


def test_a_data_set_by_name_with_its_own_difficulty() -> None:
    task = load_task(
        "reasoning_gym:spell_backward",
        arguments={"min_word_len": 3, "max_word_len": 5},
        train_problems=50,
        eval_problems=10,
        seed=2,
    )
    problems = [p for split in SPLITS for p in task.problems(split)]
    words = [p.prompt_text.rpartition(": ")[2] for p in problems]
    assert len(problems) == 70
    assert {len(word) for word in words} <= {3, 4, 5}
    assert task.name == "reasoning_gym:spell_backward"
    assert problems[0].id == "reasoning_gym:spell_backward/train/0"
    for problem, word in zip(problems, words, strict=True):
        assert verdict(task, problem, rf"\boxed{{{word[::-1]}}}") == 1.0
        assert verdict(task, problem, f"<answer>{word[::-1]}</answer>") == 1.0
        assert verdict(task, problem, word[::-1]) == 0.0
        assert verdict(task, problem, rf"\boxed{{{word[:0:-1]}-}}") == 0.0  # the library gives it part marks


def test_splits_share_no_question_and_seeds_differ() -> None:
    tasks = [ReasoningGym("leg_counting", train_problems=300, eval_problems=40, seed=seed) for seed in (0, 1)]
    texts = [{split: {p.prompt_text for p in task.problems(split)} for split in SPLITS} for task in tasks]
    together = {split: texts[0][split] | texts[1][split] for split in SPLITS}
    assert sum(map(len, together.values())) == len(set.union(*together.values()))
    assert len(texts[0]["test"]) == len(texts[0]["validation"]) == 40
    assert texts[0]["train"] != texts[1]["train"]
    assert list(small("leg_counting").problems("test")) == list(tasks[0].problems("test")[:5])


def test_the_random_numbers_of_the_run_are_left_alone_and_change_nothing() -> None:
    random.seed(1)
    first = [p.prompt_text for p in small("list_functions", seed=5).problems("train")[:3]]
    after = random.random()
    random.seed(1)
    assert after == random.random()
    script = (
        "from grouprl.checks.reasoning_gym import ReasoningGym; import random; random.seed(99); "
        "task = ReasoningGym('list_functions', train_problems=100, seed=5); "
        "print([p.prompt_text for p in task.problems('train')[:3]])"
    )
    again = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert again.stdout.strip() == str(first)


def test_the_reward_travels_to_another_process_and_columns_are_json() -> None:
    task = load_task("reasoning_gym:arc_1d", arguments={"min_size": 10})
    problem = task.problems("train")[0]
    reward = pickle.loads(pickle.dumps(task.own_rewards))["reasoning_gym"]
    assert reward == GymReward("arc_1d", {"min_size": 10})
    columns = json.loads(json.dumps(dict(problem.columns)))
    assert columns == dict(problem.columns)
    assert verdict(task, Problem(problem.id, problem.prompt, columns), task.gold(problem) or "") == 1.0


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "spell_backwards",
            {},
            r"NAME\): did you mean 'spell_backward'\? expected one of 105 names, got 'spell_backwards': see `",
        ),
        ("composite", {}, r"task\.name \(reasoning_gym:NAME\): .*expected one of 105 names, got 'composite'"),
        (
            "spell_backward",
            {"arguments": {"max_len": 5}},
            "task.arguments of reasoning_gym:spell_backward: expected one of data_file, max_word_len, min_word_len, "
            "got 'max_len': did you mean 'max_word_len'",
        ),
        ("spell_backward", {"arguments": {"seed": 5}}, "expected one of .*got 'seed'"),
        ("spell_backward", {"arguments": {"min_word_len": 9, "max_word_len": 5}}, "expected arguments of its gen"),
        ("spell_backward", {"arguments": {"min_word_len": "five"}}, "expected arguments of its gen"),
    ],
)
def test_unknown_names_and_arguments_are_reported(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ReasoningGym(name, **options)


def test_too_few_different_problems_are_reported() -> None:
    with pytest.raises(UserError, match=r"no more different problems for test than .*got 100: lower it"):
        ReasoningGym("tower_of_hanoi").problems("test")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(UserError, match=r"pip install 'grouprl\[gym\]'"):
        ReasoningGym("spell_backward")


# Scorers in place of the library's


@pytest.mark.parametrize(
    ("dataset", "answer", "right"),
    [
        ("countdown", "49*(85 - 1)/14 - 42 - 73", True),
        ("countdown", "-73 + 49*(85 - 1)/14 - 42", True),
        ("countdown", "179", False),
        ("countdown", "49*84/14 - 42 - 73", False),
        ("puzzle24", "8*(5*1 - 2)", True),
        ("puzzle24", "6 + 6 + 6 + 6", False),  # full marks from the library
        ("puzzle24", "8*(5 - 2)", False),
        ("coin_flip", "4095/4096", True),
        ("coin_flip", "0.99976", True),
        ("coin_flip", "0", False),  # full marks from the library
        ("coin_flip", "1", True),  # within a thousandth
        ("coin_flip", "0.99", False),
        ("complex_arithmetic", "2 - 12i", True),
        ("complex_arithmetic", "2.00-12.00i", True),
        ("complex_arithmetic", "nan", False),  # full marks from the library
        ("complex_arithmetic", "2 + 12i", False),
        ("complex_arithmetic", "2", False),
        ("complex_arithmetic", "-12i", False),
        ("complex_arithmetic", "", False),
        ("game_of_life_halting", "true", True),
        ("game_of_life_halting", "False", False),  # full marks from the library
        ("prime_factorization", "2 × 7 × 3", True),
        ("prime_factorization", r"2 \times 3 \times 7", True),
        ("prime_factorization", "2 × 21", False),
        ("prime_factorization", "none", False),
        ("prime_factorization", "2 3 7", False),
        ("string_insertion", "AB", True),
        ("string_insertion", "['A', 'B']", False),
        ("n_queens", "Q _", True),
        ("n_queens", "[['Q', '_']]", False),
    ],
)
def test_right_and_wrong_answers(dataset: str, answer: str, right: bool) -> None:
    facts = {
        "countdown": ("", {"numbers": [73, 85, 1, 42, 14, 49], "target": 179}),
        "puzzle24": ("", {"numbers": [5, 1, 2, 8]}),
        "coin_flip": ("", {"rational": {"numerator": 4095, "denominator": 4096}}),
        "complex_arithmetic": ("", {"result": [2, -12]}),
        "game_of_life_halting": ("True", {}),
        "prime_factorization": ("", {"factors": [2, 3, 7]}),
        "string_insertion": ("AB", {}),
        "n_queens": ("", {"valid_answers": ["Q _", "_ Q"]}),
    }
    assert SCORERS[dataset](answer, *facts[dataset]) is right


@pytest.mark.parametrize(
    ("integrand", "answer", "right"),
    [
        ("3*x**2", "x**3 + C", True),
        ("3*x**2", "x^3", True),
        ("3*x**2", "x**3 + 5*x", False),
        ("3*x**2", "x**3 + C*x", False),
        ("3*x**2", "Integral(3*x**2, x)", False),  # full marks from the library
        ("9*x**8/1000000", "0", False),
        ("2*exp(x)*cos(x)", "exp(x)*sin(x) + exp(x)*cos(x) + C", True),
        ("2*exp(x)*cos(x)", "E**x*(sin(x) + cos(x))", True),
        ("2*exp(x)*cos(x)", "exp(x)*sin(x)", False),
        ("asin(3*x)", "x*asin(3*x) + sqrt(1 - 9*x**2)/3 + C", True),
        ("4*sqrt(4*x + 2)", "2*(4*x + 2)**(3/2)/3 + C", True),
        ("3*atan(x)", "3*x*atan(x) - 3*log(x**2 + 1)/2 + C", True),
        ("1/x", "log(x) + C", True),
        ("1/x", "ln(7*x)", True),
        ("-(5*x - 5)**4", "-125*x**5 + 625*x**4 - 1250*x**3 + 1250*x**2 - 625*x + C", True),
        ("tan(x)", "-log(cos(x))", True),
        ("x", "x*" * 400, False),
        ("x", "__import__('os')", False),
        ("x", "9**9**9**9", False),
    ],
)
def test_an_antiderivative_is_known_by_its_slope(integrand: str, answer: str, right: bool) -> None:
    assert SCORERS["intermediate_integration"](answer, "", {"variable": "x", "integrand": integrand}) is right


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("x**2 - x - 6", True),
        ("-6 - x + x^2", True),
        ("x*x + 2*x - 3*x - 6", True),
        ("(x + 2)*(x - 3)", False),  # the question, not multiplied out
        ("x**2 - x", False),
        ("x**2 - x - 6 + 0*x**9", True),
        ("x**2 - x - 3*2", True),
        ("x**2 - y - 6", False),
        ("", False),
        ("2**9999999", False),
    ],
)
def test_a_product_is_written_out(answer: str, right: bool) -> None:
    assert SCORERS["polynomial_multiplication"](answer, "x**2 - x - 6", {}) is right


@pytest.mark.parametrize(
    ("dataset", "answer"), [("boxnet", "7"), ("boxnet", "[" * 9000), ("game_of_life", "{}"), ("game_of_life", "no")]
)
def test_where_the_library_raises_at_another_kind_of_json_the_answer_is_wrong(dataset: str, answer: str) -> None:
    task = small(dataset)
    assert verdict(task, task.problems("train")[0], f"<answer>{answer}</answer>") == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", gym_names())
def test_every_data_set_makes_problems_and_knows_their_solutions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = small(name)
    train = task.problems("train")[:3]
    golds = [task.gold(problem) for problem in train]
    assert any(golds) == (name not in WITHOUT_GOLD)
    assert all(golds) or name in WITHOUT_GOLD | {"intermediate_integration"}
    assert default_arguments(name) is not None

    for problem, gold in zip(train, golds, strict=True):
        assert gold is None or verdict(task, problem, gold) == 1.0
        assert verdict(task, problem, "no answer") == 0.0
    run = []
    evaluate, parse = builtins.eval, sympy_parser.eval_expr
    monkeypatch.setattr(builtins, "eval", lambda source, *scopes: run.append(source) or evaluate(source, *scopes))
    monkeypatch.setattr(sympy_parser, "eval_expr", lambda code, *rest: run.append(code) or parse(code, *rest))
    for text in (f"{MARK}", f"[{MARK}]", f"[[{MARK}]]", f"x + {MARK}", f'{{"a": {MARK}}}', f"{MARK}\n{MARK}"):
        assert _mean(task, train, text) == 0.0
    assert not any(str(MARK) in str(source) for source in run)
    scores = [_mean(task, train, answer) for answer in CHEAP]
    assert min(scores) == 0.0


def _mean(task: ReasoningGym, problems: Any, answer: str) -> float:
    given = []
    for problem in problems:
        try:
            given.append(verdict(task, problem, f"<answer>{answer}</answer>") or 0.0)
        except (TypeError, KeyError, ValueError, AttributeError, IndexError):  # the library's scorer may raise
            given.append(0.0)
    return sum(given) / len(given)
