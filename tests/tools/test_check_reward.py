"""Rewards tried before training: the completions, the verdicts that a person would give, the screen, the JSON."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from rich.console import Console

import tempting
from grouprl import Trainer
from grouprl.config.run import RolloutConfig, RunConfig, ScoringConfig, load_config
from grouprl.problems.word_problems import WordProblems
from grouprl.record.read import read_rollouts
from grouprl.rewards import built_in
from grouprl.rewards.functions import WeightedReward
from grouprl.tasks import Split
from grouprl.tools.check_reward import KINDS, KindScores, RewardCheck, check_reward, trial_completions, try_rewards
from grouprl.tools.check_reward.findings import Totals, judged_otherwise, verdict_of
from grouprl.tools.check_reward.screen import show
from grouprl.tools.check_reward.trials import Kind
from grouprl.tools.proof.replay import replay
from grouprl.types import Problem, RewardOutcome, UserError
from small_runs import small_config
from variants import variant

ANSWERS = ("7", "7", "12", "5")  # of 3 + 4, 4 + 3, 8 + 4 and 3 + 2
SUMS = ((3, 4), (4, 3), (8, 4), (3, 2))
CONFIG = RunConfig(rollout=RolloutConfig(scoring=ScoringConfig(workers=1)))


def worked(problem: Problem) -> str:
    return f"{problem.prompt_text.split('?')[0]} = {problem.columns['answer']}. \\boxed{{{problem.columns['answer']}}}"


@dataclass(frozen=True)
class Sums:
    """Four problems, and whatever solutions a test gives them."""

    solve: Callable[[Problem], str | None] = worked
    verifier: str | None = "correct_answer"
    name: str = "sums"
    default_rewards: Mapping[str, float] = field(default_factory=dict)
    default_step_rewards: Mapping[str, float] = field(default_factory=dict)

    @property
    def own_rewards(self) -> Mapping[str, Callable[..., Any]]:
        return {}

    def problems(self, split: Split) -> Sequence[Problem]:
        pairs = zip(SUMS, ANSWERS, strict=True)
        return [Problem(f"sums/{n}", f"{a} + {b}?", {"answer": gold}) for n, ((a, b), gold) in enumerate(pairs)]

    def gold(self, problem: Problem) -> str | None:
        return self.solve(problem)

    def traits(self, text: str) -> Mapping[str, bool]:
        return {}


def tried(
    *functions: Callable[..., Any], task: Sums | None = None, config: RunConfig = CONFIG, **options: Any
) -> RewardCheck:
    rewards = [WeightedReward(function.__name__, function) for function in functions]
    return try_rewards(config, task or Sums(), rewards, **options)


def by_name(checked: RewardCheck) -> dict[str, KindScores]:
    return {scores.kind.name: scores for scores in checked.kinds}


def warned(checked: RewardCheck, text: str) -> bool:
    return any(text in warning for warning in checked.warnings)


def texts_of(task: Sums, task_format: Any = "boxed") -> list[dict[str, str]]:
    problems = task.problems("train")
    return trial_completions(problems, [task.gold(problem) for problem in problems], task_format)


def test_the_completions_of_a_boxed_solution() -> None:
    rows = texts_of(Sums())
    assert [list(row) for row in rows] == [[kind.name for kind in KINDS]] * 4
    third = rows[2]
    assert third["gold"] == r"8 + 4 = 12. \boxed{12}"
    assert third["padded gold"].endswith(third["gold"])
    assert len(third["padded gold"]) > 2000
    assert third["answer alone"] == r"\boxed{12}"
    assert third["gold three times"].split("\n") == [third["gold"]] * 3
    assert third["shuffled gold"] in {row["gold"] for n, row in enumerate(rows) if n != 2}
    assert third["wrong answer"] in (r"8 + 4 = 12. \boxed{7}", r"8 + 4 = 12. \boxed{5}")
    assert sorted(third["many answers"].split()) == [r"\boxed{12}", r"\boxed{5}", r"\boxed{7}"]
    assert third["many answers"].split()[-1] != r"\boxed{12}"
    assert third["a or b or c"] == f"\\boxed{{{' or '.join(t[7:-1] for t in third['many answers'].split())}}}"
    assert third["answer in thought"].startswith("<think>\n\\boxed{12}\n</think>\n\\boxed{")
    assert not third["answer in thought"].endswith(r"\boxed{12}")
    assert third["commonest answer"] == r"\boxed{7}"
    assert third["last number"] == r"\boxed{4}"
    assert third["empty form"] == r"\boxed{}"
    assert third["copied prompt"] == "8 + 4?"
    assert third["word 200 times"].split() == ["the"] * 200
    assert third["empty"] == ""
    for row in rows[:2]:  # an equal answer is no wrong one
        for kind in ("shuffled gold", "wrong answer", "answer in thought"):
            assert row[kind].rpartition("boxed{")[2] in ("12}", "5}")


def test_answers_in_tags_get_tricks_in_tags() -> None:
    def solve(problem: Problem) -> str:
        return f"<think>\nI add.\n</think>\n<answer>{problem.columns['answer']}</answer>"

    row = texts_of(Sums(solve))[2]
    assert not any("boxed" in text for text in row.values())
    assert row["wrong answer"] in (f"<think>\nI add.\n</think>\n<answer>{wrong}</answer>" for wrong in ("7", "5"))
    assert row["padded gold"].startswith("<think>Let me")
    assert row["commonest answer"] == "<think>\nI know this one.\n</think>\n<answer>7</answer>"
    assert row["empty form"] == "<think></think>\n<answer></answer>"
    assert row["many answers"].count("<answer>") == 3
    assert row["a or b or c"].count("<answer>") == 1
    assert row["answer in thought"].startswith("<think>\n<answer>12</answer>\n</think>\n<answer>")
    untagged = texts_of(Sums(lambda problem: f"<answer>{problem.columns['answer']}</answer>"))[2]
    assert untagged["answer alone"] == "<answer>12</answer>"


def test_what_cannot_be_made_is_skipped_and_said() -> None:
    code = tried(tempting.long, task=Sums(lambda problem: f"```python\nf = {problem.id!r}\n```", verifier=None))
    marks = ("answer alone", "wrong answer", "many answers", "a or b or c", "answer in thought", "commonest answer")
    assert tuple(code.left_out) == (*marks, "last number")
    assert code.left_out["answer alone"] == "gold answers in a box or tags"
    assert "Skipped without gold answers in a box or tags: answer alone, commonest answer\n" in drawn(code, 120)
    assert by_name(code)["empty form"].example == "```python\n\n```"
    bare = texts_of(Sums(lambda problem: f"It is {problem.id}."))
    assert all(row["shuffled gold"] in {other["gold"] for other in bare} - {row["gold"]} for row in bare)
    without = {*marks, "last number", "empty form"}
    assert list(bare[0]) == [kind.name for kind in KINDS if kind.name not in without]


def test_a_task_without_gold_gets_no_verdict() -> None:
    checked = tried(tempting.long, task=Sums(lambda problem: None))
    shown = [scores.kind.name for scores in checked.kinds]
    assert shown == ["last number", "empty form", "copied prompt", "word 200 times", "empty"]
    assert (checked.verdict.status, checked.passed) == ("no verdict", True)
    assert checked.verdict.text == "No verdict: the task has no gold completions."
    assert {checked.left_out[name] for name in ("gold", "padded gold", "gold three times")} == {"gold completions"}
    assert texts_of(Sums(lambda problem: None), "think")[0]["empty form"] == "<think></think>\n<answer></answer>"


def test_a_right_reward_passes_with_means_that_can_be_counted_by_hand() -> None:
    checked = tried(tempting.right)
    found = by_name(checked)
    assert [found[name].total.mean for name in ("gold", "padded gold", "answer alone", "gold three times")] == [1.0] * 4
    assert found["commonest answer"].total.mean == 0.5  # 7 is right for two of four
    assert (found["commonest answer"].total.smallest, found["commonest answer"].total.largest) == (0.0, 1.0)
    assert {scores.total.mean for scores in checked.kinds if scores.kind.trick} == {0.0, 0.5, 1.0}
    assert (checked.verdict.status, checked.verdict.best_trick) == ("ok", "commonest answer")
    assert (checked.beaten, checked.passed, checked.warnings) == (False, True, ())
    assert found["gold"].correct == 1.0
    assert found["shuffled gold"].correct == 0.0


HARDLY = "the answer hardly counts"


@pytest.mark.parametrize(
    ("reward", "weight", "status", "best", "mean", "beaten_by", "warnings"),
    [
        (tempting.anywhere, 1.0, "tied", "many answers", 1.0, set(), {HARDLY: False}),
        (tempting.boxed, 1.0, "tied", "shuffled gold", 1.0, set(), {HARDLY: True}),
        # A penalty that gold alone pays.
        (tempting.boxed, -1.0, "beaten", "copied prompt", 0.0, {"word 200 times", "empty"}, {}),
    ],
    ids=["anywhere", "form", "penalty"],
)
def test_a_reward_that_a_trick_earns(
    reward: Any, weight: float, status: str, best: str, mean: float, beaten_by: set[str], warnings: dict[str, bool]
) -> None:
    checked = try_rewards(CONFIG, Sums(), [WeightedReward("it", reward, weight)])
    assert (checked.verdict.status, checked.passed, checked.beaten) == (status, status == "tied", status == "beaten")
    assert set(checked.verdict.beaten_by) == (beaten_by | {best} if beaten_by else set())
    assert (checked.verdict.best_trick, by_name(checked)[best].total.mean) == (best, pytest.approx(mean))
    assert {text: warned(checked, text) for text in warnings} == warnings


def test_a_reward_that_likes_length_is_beaten_by_the_longest_trick() -> None:
    checked = tried(tempting.right, tempting.long)
    assert by_name(checked)["word 200 times"].total.mean == pytest.approx(7.99)  # 200 words, 199 spaces
    assert "For example: 'the the the" in drawn(checked, 80)
    assert warned(checked, "padding pays")
    assert (checked.passed, checked.verdict.beaten_by) == (False, ("word 200 times", "gold three times"))
    assert warned(checked, "gold scores low")


def scores(name: str, trick: bool, mean: float, median: float, right: bool = False) -> KindScores:
    kind = next((kind for kind in KINDS if kind.name == name), Kind(name, trick, "", "", right))
    return KindScores(kind, 4, 0, "", Totals(mean, median, mean, mean), {}, None, None, None, example=f"<{name}>")


@pytest.mark.parametrize(
    ("trick", "status"),
    [
        (scores("trick", True, 1.0, 1.0), "tied"),
        (scores("trick", True, 1.0 + 1e-15, 1.0), "tied"),
        (scores("trick", True, 1.01, 0.0), "beaten"),
        (scores("trick", True, 0.99, 5.0), "ok"),
        # Problems that pay 1, 1, 1 and 5: gold's mean is above its own median, and repeating it is no trick.
        (scores("trick", True, 2.0, 1.0, right=True), "ok"),
        (scores("trick", True, 2.1, 1.0, right=True), "beaten"),
        (scores("padded gold", False, 9.0, 9.0), "ok"),  # padding is never a trick
    ],
)
def test_a_trick_must_be_strictly_above_the_median_of_gold(trick: KindScores, status: str) -> None:
    assert verdict_of([scores("gold", False, 2.0, 1.0), trick]).status == status


@pytest.fixture(scope="module")
def misbehaved() -> RewardCheck:
    """A right reward, a random one, one that looks at the other completions, and one that raises on an empty text."""
    task = Sums(lambda problem: worked(problem) if problem.id != "sums/3" else None)  # one problem without gold
    return tried(tempting.right, tempting.noise, tempting.counts_the_call, tempting.first_word, task=task)


def test_a_reward_that_differs_from_itself_is_named_with_an_example(misbehaved: RewardCheck) -> None:
    right, noise, counts, _ = misbehaved.rewards
    assert (right.repeats, noise.repeats) == ("yes", "no")
    assert warned(misbehaved, "noise is not deterministic: 0.")
    assert "for the same completion (gold, sums/0)" in noise.difference
    # One that looks at the other completions is no random one.
    assert counts.repeats == "depends on the other completions of its call"
    assert counts.difference == f"{len(KINDS)} beside others and 1 alone (gold, sums/0)"


def test_a_reward_that_raises_on_an_empty_text(misbehaved: RewardCheck) -> None:
    found = by_name(misbehaved)
    empty = found["empty"]
    assert (empty.invalid, empty.completions, empty.total, empty.milliseconds) == (4, 4, None, None)
    assert empty.reason.startswith("first_word raised IndexError")
    assert (empty.components["right"], empty.components["first_word"]) == (0.0, None)
    assert [scores.kind.name for scores in misbehaved.kinds if scores.invalid] == ["empty"]
    ((reason, times),) = misbehaved.rewards[3].failures.items()
    assert times == 4
    assert reason.startswith("raised IndexError: list index out of range")
    assert misbehaved.rewards[0].failures == {}
    assert found["gold"].completions == 3


def test_a_reward_that_hangs_on_a_copied_prompt() -> None:
    config = RunConfig(rollout=RolloutConfig(scoring=ScoringConfig(workers=2, seconds=0.5)))
    checked = tried(tempting.hangs_on_copies, tempting.right, config=config, problems=2)
    assert {scores.kind.name: scores.reason for scores in checked.kinds if scores.invalid} == {
        "copied prompt": "hangs_on_copies took longer than 0.5 s"
    }
    assert warned(checked, "hangs_on_copies is constant: it gave 0 to every completion")
    gold = by_name(checked)["gold"]
    assert 0 < gold.milliseconds <= gold.slowest_milliseconds < 500


def test_a_reward_that_cannot_judge_gold_does_not_pass() -> None:
    checked = tried(tempting.refuses_boxes)
    assert (checked.verdict.status, checked.beaten, checked.passed) == ("no verdict", False, False)
    assert "refuses_boxes raised ValueError: a box" in checked.verdict.text
    assert warned(checked, "4 of 4 gold completions are invalid")


def test_gold_that_the_verifier_refuses_or_the_policy_cannot_write() -> None:
    config = RunConfig(rollout=RolloutConfig(max_tokens=4, scoring=ScoringConfig(workers=1)))
    checked = tried(tempting.one, task=Sums(lambda problem: r"I think it is \boxed{9}"), config=config)
    assert warned(checked, "correct_answer, rejects 4 of 4 gold completions")
    assert warned(checked, "4 of 4 gold completions are longer than rollout.max_tokens=4")
    assert warned(checked, "one is constant: it gave 1 to every completion")


def test_process_rewards_are_components_beside_the_total() -> None:
    config = RunConfig(algorithm=variant(credit="step"), rollout=RolloutConfig(scoring=ScoringConfig(workers=1)))
    rewards = [WeightedReward("right", tempting.right), WeightedReward("words", tempting.words, 2.0, per_step=True)]
    checked = try_rewards(config, Sums(), rewards)
    gold = by_name(checked)["gold"]
    assert gold.components["words"] == pytest.approx((2 / 6 * 3 + 2 / 6) / 4)  # "3", "+", "4", "=", "7.", the box
    assert gold.total.mean == 1.0
    assert [facts.per_step for facts in checked.rewards] == [False, True]


def test_the_penalty_for_length_is_part_of_the_total() -> None:
    config = RunConfig(
        algorithm=variant(overlong_buffer=0.5),
        rollout=RolloutConfig(max_tokens=128, scoring=ScoringConfig(workers=1)),
    )
    found = by_name(tried(tempting.right, config=config))
    assert found["padded gold"].components == {"right": 1.0, "soft_overlong": -1.0}
    assert found["padded gold"].total.mean == 0.0
    assert found["gold"].total.mean == 1.0


def test_a_column_that_no_problem_has_is_refused() -> None:
    def needs(completions: Any, solution: Any) -> list[float]:
        return [0.0 for _ in completions]

    with pytest.raises(UserError, match="column 'solution'"):
        tried(needs)
    with pytest.raises(UserError, match="expected at least 1"):
        tried(tempting.one, problems=0)


def drawn(checked: RewardCheck, width: int) -> str:
    file = io.StringIO()
    show(Console(file=file, width=width), checked)
    return file.getvalue()


def test_the_screen_fits_80_columns_and_joins_its_tables_at_120() -> None:
    checked = tried(tempting.right, tempting.first_word)
    narrow, wide = drawn(checked, 80), drawn(checked, 120)
    assert max(map(len, narrow.splitlines())) <= 80
    assert narrow.count("gold three times") == 2
    assert wide.count("gold three times") == 1
    for text in (narrow, wide):
        assert "…" not in text
        assert "empty, 4 invalid: first_word raised IndexError" in text
        assert " ".join(checked.verdict.text.split()) in " ".join(text.split())
    rows = [line.split() for line in narrow.splitlines()]
    assert ["gold", "1.00", "1.00", "1.00", "1.00", "0"] in [row[:6] for row in rows]
    assert narrow.index("tricks") < narrow.index("gold three times") < narrow.index("copied prompt")


def test_markup_in_a_reason_is_text() -> None:
    assert "[bold]" in drawn(tried(tempting.one, task=Sums(name="[bold]sums")), 80)


def test_the_bundled_task_by_its_configuration_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    checked = check_reward(CONFIG, problems=8, as_json=True)
    told = json.loads(capsys.readouterr().out, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    assert (told["task"], told["problems"], told["beaten"], told["passed"]) == ("word_problems", 8, False, True)
    assert told["verdict"]["status"] == "ok"
    kinds = {kind["name"]: kind for kind in told["kinds"]}
    assert list(kinds) == [scores.kind.name for scores in checked.kinds]
    assert kinds["gold"]["median"] == 1.5
    assert kinds["wrong answer"]["components"] == {"boxed_format": 1.0, "correct_answer": 0.0}
    assert [(reward["name"], reward["weight"]) for reward in told["rewards"]] == [
        ("boxed_format", 0.5), ("correct_answer", 1.0),
    ]  # fmt: skip
    assert math.isfinite(kinds["gold"]["slowest_milliseconds"])
    assert list(kinds["gold"]) == [
        "name", "trick", "about", "right", "completions", "invalid", "reason", "components", "correct",
        "milliseconds", "slowest_milliseconds", "example", "mean", "median", "smallest", "largest",
    ]  # fmt: skip


def test_every_trick_of_the_bundled_task_is_wrong_but_lucky_guesses() -> None:
    task = WordProblems()
    checked = try_rewards(CONFIG, task, [built_in("correct_answer")])
    lucky = {"commonest answer", "last number"}
    for scores in checked.kinds:
        kind, mean = scores.kind, scores.total.mean
        if kind.name not in lucky:
            assert (mean == 1.0) is (not kind.trick or kind.right), kind.name
            assert mean in (0.0, 1.0)
        assert mean == scores.correct


def test_the_episodes_of_a_run_are_judged_again_with_what_was_said(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = small_config(
        tmp_path,
        steps=2,
        model={"path": str(tiny), "chat_template": "tools"},
        task={"name": "guess_number"},
        rollout={"problems_per_step": 2, "group_size": 4, "max_tokens": 24},
        environment={"max_tokens": 140, "turns": 3},
        evaluation={"problems": 0},
    )
    Trainer(str(tiny), "guess_number", config=config).train()
    run = tmp_path / "run"
    found = check_reward(config, problems=3, run=run, as_json=True)
    recorded = {scores.kind.name: scores for scores in found.kinds}["recorded"]
    before = [one for step in (2, 1) for group in read_rollouts(run, step) for one in group.outcomes][:12]
    assert recorded.completions == 12  # three groups, the last first
    assert recorded.components == {"environment": fmean(one.components["environment"] or 0.0 for one in before)}
    assert recorded.invalid == 0
    assert not [line for line in found.warnings if "another one" in line]
    assert '"recorded"' in capsys.readouterr().out
    assert replay(run, 2, load_config(RunConfig, [run / "config.yaml"], ())).is_identical
    with pytest.raises(UserError):
        check_reward(config, run=tmp_path / "nowhere")


def test_a_reward_that_changed_since_the_run_is_named():
    then = [RewardOutcome(1.0, {"right": 1.0, "old": 2.0}), RewardOutcome(0.0, {"right": 0.0, "old": 2.0})]
    now = [RewardOutcome(1.0, {"right": 1.0, "new": 3.0}), RewardOutcome(0.5, {"right": 0.5, "new": 3.0})]
    assert list(judged_otherwise(then, then)) == []
    assert list(judged_otherwise(now, then)) == [
        "right is another one for 1 of 2 recorded completions, such as 0.5 in place of 0"
    ]
