"""Rewards with `scope="batch"` get the completions of all groups in one call, as in TRL."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from grouprl import Trainer, UserError, WeightedReward
from grouprl.config.run import RewardConfig, RunConfig, ScoringConfig
from grouprl.problems.word_problems import WordProblems
from grouprl.ranks import Ranks
from grouprl.rewards.calls import TrainingState
from grouprl.rewards.configured import configured_rewards, open_scorer
from grouprl.rewards.scorer import Scoring
from grouprl.types import Group, Problem, RewardOutcome
from groups import group_of
from judging import judged
from letter_rewards import letters
from small_runs import ROWS, as_killed, assert_same_run, metrics, rollouts, small_config
from variants import variant


def group(name: str, *texts: str, **columns: Any) -> Group:
    return group_of(Problem(name, f"{name}?", columns), *texts)


GROUPS = [group("a", "xxx", "x", answer="1"), group("b", "xx", "x", "xxxxx", source="book"), group("c", "x", "xx")]


def rank(completions: list[str], **_: Any) -> list[float]:
    """The number of completions that are shorter."""
    return [float(sum(len(other) < len(text) for other in completions)) for text in completions]


def duplicates(completions: list[str], **_: Any) -> list[float]:
    found = Counter(completions)
    return [float(found[text] - 1) for text in completions]


def count(completions: list[str], **_: Any) -> list[float]:
    return [float(len(completions)) for _ in completions]


def components(outcomes: list[tuple[RewardOutcome, ...]], name: str) -> list[list[float | None]]:
    return [[one.components[name] for one in row] for row in outcomes]


def test_a_batch_is_ranked_and_its_duplicates_are_counted_over_all_groups() -> None:
    whole = [WeightedReward("rank", rank, 2.0, scope="batch"), WeightedReward("same", duplicates, -1.0, scope="batch")]
    found = judged(GROUPS, [*whole, WeightedReward("count", count, 10.0)])
    # Lengths 3 1 | 2 1 5 | 1 2: three of length 1, two of length 2, then 3 and 5.
    assert components(found, "rank") == [[5.0, 0.0], [3.0, 0.0, 6.0], [0.0, 3.0]]
    assert components(found, "same") == [[0.0, 2.0], [1.0, 2.0, 0.0], [2.0, 1.0]]
    assert components(found, "count") == [[2.0] * 2, [3.0] * 3, [2.0] * 2]  # beside them a call per group
    assert [[one.total for one in row] for row in found] == [[30.0, 18.0], [35.0, 28.0, 42.0], [18.0, 25.0]]


def noted(path: Path) -> Any:
    def reward(trainer_state: Any, log_extra: Any, log_metric: Any, **lists: Any) -> list[float]:
        log_extra("place", list(range(len(lists["completions"]))))
        log_metric("calls", len(lists["completions"]))
        with path.open("a") as file:
            print(json.dumps({**lists, "step": trainer_state.global_step}), file=file)
        return [0.0] * len(lists["completions"])

    return reward


def test_one_call_has_the_keywords_that_trl_gives(tmp_path: Path) -> None:
    with open_scorer(
        [WeightedReward("it", noted(tmp_path / "calls"), scope="batch")], state=TrainingState(0, 9)
    ) as scorer:
        scorer.begin_step(3)
        scoring = Scoring(scorer)
        for place in (2, 0, 1):  # groups are in the order of their problems, whichever is sampled first
            scoring.begin(place, GROUPS[place])
        assert not (tmp_path / "calls").exists()
        found = scoring.finish()
        assert scorer.logged() == {"reward_logs/calls": 7.0}
    (call,) = map(json.loads, (tmp_path / "calls").read_text().splitlines())
    assert call == {
        "prompts": ["a?", "a?", "b?", "b?", "b?", "c?", "c?"],
        "completions": ["xxx", "x", "xx", "x", "xxxxx", "x", "xx"],
        "completion_ids": [[0, 7], [1, 7], [0, 7], [1, 7], [2, 7], [0, 7], [1, 7]],
        "answer": ["1", "1", None, None, None, None, None],
        "source": [None, None, "book", "book", "book", None, None],
        "step": 2,
    }
    assert [[one.extra for one in row] for row in found] == [
        [{"it/place": 0}, {"it/place": 1}],
        [{"it/place": 2}, {"it/place": 3}, {"it/place": 4}],
        [{"it/place": 5}, {"it/place": 6}],
    ]


def raises(completions: list[str], log_extra: Any, **_: Any) -> list[float]:
    log_extra("text", completions)
    return [1.0 / (len(text) - 5) for text in completions]


def short(completions: list[str], **_: Any) -> list[float]:
    return [1.0] * (len(completions) - 1)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (raises, "it raised ZeroDivisionError"),
        (short, "it gave a wrong result: expected a list of 7 values, one per completion, got 6"),
    ],
)
def test_a_batch_that_fails_is_invalid_as_a_whole_and_other_rewards_keep_their_values(
    function: Any, reason: str
) -> None:
    rewards = [WeightedReward("it", function, scope="batch"), WeightedReward("count", count)]
    limits = ScoringConfig(workers=2, seconds=0.5, max_invalid=1.0)
    with open_scorer(rewards, limits=limits) as scorer:
        found = scorer.finish([scorer.begin(one) for one in GROUPS])
    outcomes = [one for row in found for one in row]
    assert len(outcomes) == 7
    for outcome in outcomes:
        assert math.isnan(outcome.total)
        assert outcome.reason.startswith(reason)
        assert (outcome.components["it"], outcome.extra) == (None, {})
    assert components(found, "count") == [[2.0] * 2, [3.0] * 3, [2.0] * 2]


def fails_once(path: Path) -> Any:
    """Fails in a process that did other work, such as one whose memory is full."""
    worked: list[int] = []

    def reward(completions: list[str], **_: Any) -> list[float]:
        with path.open("a") as file:
            print(len(completions), file=file)
        worked.append(1)
        return [1.0 / (len(worked) == 1) for _ in completions]

    return reward


def test_a_whole_call_gets_one_more_try_in_a_fresh_process(tmp_path: Path) -> None:
    rewards = [WeightedReward("it", fails_once(tmp_path / "calls"), scope="batch")]
    with open_scorer(rewards, limits=ScoringConfig(workers=1)) as scorer:
        for _ in range(2):
            found = scorer.finish([scorer.begin(one) for one in GROUPS])
            assert components(found, "it") == [[1.0] * 2, [1.0] * 3, [1.0] * 2]
    assert (tmp_path / "calls").read_text().split() == ["7", "7", "7"]  # never for a part of them


def test_process_rewards_and_no_groups() -> None:
    reward = WeightedReward("it", rank, scope="batch")
    with open_scorer([reward], verifier=reward) as scorer:
        assert scorer.finish([]) == []
        assert scorer.verify([]) == []
        assert scorer.verify(GROUPS[:2]) == [(True, False), (True, False, True)]  # a rank of 1 or more


def test_ranks_that_see_a_part_of_the_batch_are_refused() -> None:
    reward = WeightedReward("it", rank, scope="batch")
    message = "reward it: expected a single process with scope=batch, got 2 ranks, .*: start one process, or set scope"
    for rewards, verifier in (([reward], None), ([WeightedReward("other", rank)], reward)):
        with pytest.raises(UserError, match=message), open_scorer(rewards, verifier=verifier, ranks=Ranks(0, 2)):
            pass
    with open_scorer([WeightedReward("it", rank)], ranks=Ranks(0, 2)):
        pass


def test_an_unknown_scope_is_refused() -> None:
    with pytest.raises(UserError, match="reward it: expected a scope of 'group' or 'batch', got 'step'"):
        WeightedReward("it", rank, scope="step")  # type: ignore[arg-type]


def test_a_configuration_sets_the_scope(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def rank(completions, **_):\n    return [0.0] * len(completions)\n")
    rewards = (
        RewardConfig(name="rank", path=str(path), scope="batch"),
        RewardConfig(name="correct_answer", scope="batch"),
        RewardConfig(name="boxed_format"),
    )
    found = configured_rewards(RunConfig(rewards=rewards), WordProblems())
    assert [(one.name, one.scope) for one in found] == [
        ("rank", "batch"), ("correct_answer", "batch"), ("boxed_format", "group")
    ]  # fmt: skip


def ranked(completions: list[str], log_metric: Any, **_: Any) -> list[float]:
    """The share of completions of the batch with fewer letters."""
    log_metric("completions", len(completions))
    shares = letters([], completions, [])
    return [sum(other < own for other in shares) / len(shares) for own in shares]


def test_a_run_calls_it_once_a_step_and_a_resume_repeats_it(tiny: Path, tmp_path: Path) -> None:
    def run(runs: Path, *, resume: bool = False) -> Path:
        config = small_config(runs, steps=2, checkpoint={"every": 1, "keep": 9})
        reward = WeightedReward("ranked", ranked, scope="batch")
        return Trainer(tiny, ROWS, [reward], config=config).train(resume=resume).directory

    whole = run(tmp_path / "whole")
    assert "scope: batch" in (whole / "config.yaml").read_text()
    assert [row["reward_logs/completions"] for row in metrics(whole)] == [8.0, 8.0]  # 2 problems, 4 completions each
    for step in (1, 2):
        recorded = rollouts(whole, f"SELECT text, reward FROM completions WHERE step = {step} ORDER BY 1")
        shares = letters([], [text for text, _ in recorded], [])
        lower = [sum(other < own for other in shares) / 8 for own in shares]
        assert [reward for _, reward in recorded] == pytest.approx(lower)

    as_killed(whole, tmp_path / "stopped" / "run", after=1)
    assert_same_run(whole, run(tmp_path / "stopped", resume=True), step=2)


def test_a_round_of_replacements_is_a_batch_of_its_own(tiny: Path, tmp_path: Path) -> None:
    def first_equal(completions: list[str], log_metric: Any, **_: Any) -> list[float]:
        log_metric(f"of_{len(completions)}", 1)
        return [1.0 if n < len(completions) - 4 else float(n % 2) for n in range(len(completions))]

    config, reward = small_config(tmp_path, steps=1), WeightedReward("it", first_equal, scope="batch")
    run = Trainer(tiny, ROWS, [reward], variant(drop_equal=True, refills=2), config).train()
    (row,) = metrics(run.directory)
    logged = {key: value for key, value in row.items() if key.startswith("reward_logs/")}
    # Of 2 problems with 4 completions the first has equal rewards, so that 1 problem replaces it.
    assert logged == {"reward_logs/of_8": 1.0, "reward_logs/of_4": 1.0}
    assert len(rollouts(run.directory)) == 12
