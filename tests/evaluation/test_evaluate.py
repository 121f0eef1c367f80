"""Evaluation and the metrics of a step, against groups that are counted by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from grouprl.evaluation import ProblemResults
from grouprl.evaluation.evaluate import evaluate
from grouprl.evaluation.metrics import step_metrics
from grouprl.evaluation.statistics import mean_interval
from grouprl.models.load import load_model, load_tokenizer
from grouprl.models.prompts import prompt_token_ids
from grouprl.rewards.configured import open_scorer
from grouprl.rewards.functions import WeightedReward
from grouprl.rewards.scorer import Scorer
from grouprl.rollout import NativeEngine, Request
from grouprl.tasks import task_from_list
from grouprl.tasks.mixture import Mixture
from grouprl.types import Completion, Group, Problem, RewardOutcome, Sampling, StopReason
from small_runs import ROWS

# A text is right when it says "yes", and worked when it holds an equation.
UNJUDGED = task_from_list([{"prompt": str(n)} for n in range(20)])
TASK = replace(UNJUDGED, verifier="says_yes")


class SaysYes:
    in_process = True

    def __call__(self, prompts: list[str], completions: list[str], **columns: object) -> list[float | None]:
        right = [float("yes" in text and prompt != "never") for prompt, text in zip(prompts, completions, strict=True)]
        return [None if text == "?" else value for text, value in zip(completions, right, strict=True)]


@pytest.fixture(scope="module")
def scorer() -> Iterator[Scorer]:
    with open_scorer([], verifier=WeightedReward("says_yes", SaysYes())) as made:
        yield made


WORKED = "2 + 2 = 4. "


def group(identity: str, *texts: str, stops: Mapping[int, StopReason] | None = None) -> Group:
    """Completions whose lengths in tokens are those of their texts in characters."""
    completions = tuple(
        Completion(n, tuple(range(len(text))), (-1.0,) * len(text), (-1.0,) * len(text), text,
                   (stops or {}).get(n, StopReason.END), 0)
        for n, text in enumerate(texts)
    )  # fmt: skip
    return Group(Problem(identity, identity), (1,), completions)


@dataclass
class ScriptedEngine:
    """An engine that returns given completions and keeps the requests it gets."""

    greedy: Mapping[str, str]
    sampled: Mapping[str, Sequence[str]]
    asked: list[tuple[list[Request], Sampling]] = field(default_factory=list)

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, on_finished: Callable[[int], None] | None = None
    ) -> list[Group]:
        self.asked.append((list(requests), sampling))
        for request in requests:
            if on_finished is not None:
                on_finished(request.completions)
        texts = {name: [text] for name, text in self.greedy.items()} if sampling.temperature == 0 else self.sampled
        return [group(request.problem.id, *texts[request.problem.id]) for request in requests]

    def load_weights(self, version: int) -> None:
        raise AssertionError("evaluation does not change weights")


def requests(*names: str) -> list[Request]:
    return [Request(Problem(name, name), (1,), 1) for name in names]


def test_evaluation_of_three_problems_counted_by_hand(scorer: Scorer) -> None:
    engine = ScriptedEngine(
        greedy={"a": "no", "b": "yes", "c": "no"},
        sampled={
            "a": ["no", "no", WORKED, "no"],  # 0 of 4 right
            "b": ["yes", "no", "no", "no"],  # 1 of 4
            "c": [WORKED + "yes", WORKED + "yes", WORKED + "yes", "yes"],  # 4 of 4
        },
    )
    finished: list[int] = []
    found = evaluate(
        engine, TASK, scorer, requests("a", "b", "c"), samples=4, sampling=Sampling(33), on_finished=finished.append
    ).metrics
    assert found["greedy_accuracy"] == pytest.approx(1 / 3)
    assert found["pass_at_1"] == pytest.approx((0 + 1 / 4 + 1) / 3)
    assert found["pass_at_2"] == pytest.approx((0 + 1 / 2 + 1) / 3)  # of the 6 pairs of b, 3 hold the right one
    assert found["pass_at_4"] == pytest.approx((0 + 1 + 1) / 3)
    assert "pass_at_3" not in found
    assert "pass_at_8" not in found
    assert found["worked_share"] == pytest.approx(4 / 12)
    lengths = [2, 2, 11, 2, 3, 2, 2, 2, 14, 14, 14, 3]
    assert found["mean_length"] == pytest.approx(sum(lengths) / 12)
    assert found["problems"] == 3
    # Wilson's interval for 1 of 3 and 2 of 3; of the clustered one below.
    assert found["greedy_interval"] == pytest.approx((0.0615, 0.7923), abs=1e-4)
    assert found["pass_at_4_interval"] == pytest.approx((0.2077, 0.9385), abs=1e-4)
    # 0, 1/4, 1 with z^2/2 = 1.9207 zeros and as many ones: mean 3.1707/6.8415 = 0.46346, variance 2.9832/6.8415 - its
    # square = 0.22125 of 0.24867, so that 3 problems count as 3.3717: Wilson's interval of the share 5/12 of so many.
    assert found["pass_at_1_interval"] == pytest.approx((0.0985, 0.8236), abs=1e-3)
    assert sum(finished) == 3 * (1 + 4)


def test_a_mixture_has_the_accuracy_of_each_part(scorer: Scorer) -> None:
    texts = {"a": "yes", "b": "no", "c": "yes", "d": "yes"}
    prompts = [
        Request(Problem(name, name, {"part": part}), (1,), 1)
        for name, part in zip(texts, ("sums", "sums", "words", "sums"), strict=True)
    ]
    mixture = Mixture()  # its verifier is not called here
    found = evaluate(ScriptedEngine(texts, {}), mixture, scorer, prompts, samples=0, sampling=Sampling(5)).metrics
    assert found["greedy_accuracy"] == 3 / 4
    assert (found["sums_solved_share"], found["words_solved_share"]) == (2 / 3, 1.0)
    # Wilson's intervals for 2 of 3 and 1 of 1.
    assert found["sums_solved_share_interval"] == pytest.approx((0.2077, 0.9385), abs=1e-4)
    assert found["words_solved_share_interval"] == pytest.approx((0.2065, 1.0), abs=1e-4)
    plain = evaluate(ScriptedEngine(texts, {}), TASK, scorer, prompts, samples=0, sampling=Sampling(5)).metrics
    assert [name for name in plain if name.endswith("_solved_share")] == []


def test_an_evaluation_draws_one_greedy_completion_and_plain_samples_from_its_own_stream(scorer: Scorer) -> None:
    engine = ScriptedEngine(greedy={"a": "yes"}, sampled={"a": ["yes"] * 6})
    found = evaluate(engine, TASK, scorer, requests("a"), samples=6, sampling=Sampling(33))
    (greedy, greedily), (sampled, plainly) = engine.asked
    assert (greedily, plainly) == (Sampling(33, temperature=0.0), Sampling(33))
    assert not plainly.truncates
    assert [request.completions for request in (*greedy, *sampled)] == [1, 6]
    assert greedy[0].stream == sampled[0].stream != Request(Problem("a", "a"), (1,), 1).stream
    assert [key for key in found.metrics if key.startswith("pass_at") and "interval" not in key] == [
        "pass_at_1",
        "pass_at_2",
        "pass_at_4",
        "pass_at_6",
    ]
    assert found.greedy[0].completions[0].text == "yes"


def test_each_problem_has_its_own_results(scorer: Scorer) -> None:
    engine = ScriptedEngine(
        greedy={"a": "no", "b": "yes", "never": "yes"},
        sampled={"a": ["no", "yes"], "b": ["yes", "yes"], "never": ["yes", "no"]},
    )
    found = evaluate(engine, TASK, scorer, requests("b", "never", "a"), samples=2, sampling=Sampling(5)).results
    assert found == ProblemResults(("b", "never", "a"), greedy=(1, 0, 0), correct=(2, 0, 1), samples=2)


def test_a_completion_that_the_verifier_fails_on_does_not_count_as_correct(scorer: Scorer) -> None:
    engine = ScriptedEngine(greedy={"a": "?", "b": "yes"}, sampled={"a": ["yes", "?"], "b": ["?", "?"]})
    found = evaluate(engine, TASK, scorer, requests("a", "b"), samples=2, sampling=Sampling(5))
    assert found.results == ProblemResults(("a", "b"), greedy=(0, 1), correct=(1, 0), samples=2)
    assert (found.metrics["greedy_accuracy"], found.metrics["pass_at_1"], found.metrics["pass_at_2"]) == (
        0.5,
        0.25,
        0.5,
    )
    assert found.metrics["unverified_share"] == pytest.approx(4 / 6)  # of both greedy and four sampled completions
    assert [outcome.correct for outcome in found.outcomes] == [None, True]


def test_an_evaluation_without_a_verifier_has_no_accuracy() -> None:
    engine = ScriptedEngine(greedy={"a": "no", "b": "yes"}, sampled={"a": [WORKED, "no"], "b": ["yes", "yes"]})
    with open_scorer([]) as unable:
        found = evaluate(engine, UNJUDGED, unable, requests("a", "b"), samples=2, sampling=Sampling(5))
        greedily = evaluate(engine, UNJUDGED, unable, requests("a", "b"), samples=0, sampling=Sampling(5))
    assert found.metrics == {"worked_share": 0.25, "mean_length": pytest.approx((11 + 2 + 3 + 3) / 4), "problems": 2}
    assert greedily.metrics == {"problems": 2}
    assert found.results == ProblemResults((), (), (), samples=2)
    assert [group.problem.id for group in found.greedy] == ["a", "b"]


@pytest.fixture
def real(tiny: Path) -> tuple[torch.nn.Module, NativeEngine, list[Request]]:
    model, tokenizer = load_model(str(tiny), device=torch.device("cpu")), load_tokenizer(str(tiny))
    problems = task_from_list(ROWS).problems("train")[:6]
    prompts = [Request(problem, prompt_token_ids(problem, tokenizer, longest=99), 1) for problem in problems]
    return model, NativeEngine(model, tokenizer, seed=3, max_rows=16), prompts


def test_two_evaluations_of_the_same_weights_are_identical_and_of_others_are_not(
    real: tuple[torch.nn.Module, NativeEngine, list[Request]], scorer: Scorer
) -> None:
    model, engine, prompts = real
    first = evaluate(engine, TASK, scorer, prompts, samples=3, sampling=Sampling(6))
    engine.generate(prompts, Sampling(6))  # what happens between them does not matter
    assert evaluate(engine, TASK, scorer, prompts, samples=3, sampling=Sampling(6)) == first
    few = evaluate(engine, TASK, scorer, prompts[2:4], samples=2, sampling=Sampling(6)).greedy
    assert [g.completions[0].token_ids for g in few] == [g.completions[0].token_ids for g in first.greedy[2:4]]
    with torch.no_grad():
        next(model.parameters()).mul_(-1)
    assert evaluate(engine, TASK, scorer, prompts, samples=3, sampling=Sampling(6)) != first


GROUPS = (
    group("solved", "yes", WORKED + "yes", "yes"),
    group("mixed", "yes", "no", "no", stops={2: StopReason.LENGTH}),
    group("hopeless", "no", "no", "nope", stops={0: StopReason.LENGTH, 1: StopReason.STOP_STRING}),
    group("never", "yes", "yes", "yes"),
)


def outcome(total: float, style: float | None = None, *, right: bool | None = False) -> RewardOutcome:
    return RewardOutcome(total, {"right": total, "style": style}, correct=right)


INVALID = RewardOutcome(math.nan, {"right": None, "style": None}, "right gave nan")
OUTCOMES = (
    (outcome(1.0, right=True), outcome(1.0, right=True), outcome(1.0, right=True)),  # equal: no signal
    (outcome(1.0, 0.5, right=True), outcome(0.0, 0.1), outcome(0.0, right=None)),  # deviation sqrt(2)/3
    (outcome(0.0), INVALID, INVALID),  # a single valid one has nothing to be compared with
    (outcome(2.0, right=None), outcome(4.0, right=None), INVALID),  # deviation 1; none could be verified
)


def test_metrics_of_four_groups_counted_by_hand() -> None:
    found = step_metrics(TASK, GROUPS, OUTCOMES)
    assert found.pop("reward") == pytest.approx((3 * 1.0 + 1.0 + 0 + 0 + 0 + 2 + 4) / 9)
    assert found.pop("reward_std") == pytest.approx((0 + math.sqrt(2) / 3 + 1) / 3)
    assert found.pop("rewards/right/mean") == pytest.approx(10 / 9)
    assert found.pop("rewards/style/mean") == pytest.approx(0.3)
    assert found.pop("frac_reward_zero_std") == 2 / 4
    assert found.pop("frac_invalid") == 3 / 12
    assert found.pop("accuracy") == 4 / 6  # 3 of 3, 1 of 2, 0 of 1
    assert found.pop("frac_solved") == 1 / 3
    assert found.pop("frac_hopeless") == 1 / 3
    assert found.pop("frac_unverified") == 6 / 12
    assert found.pop("worked_share") == 1 / 12
    lengths = [3, 14, 3, 3, 2, 2, 2, 2, 4, 3, 3, 3]
    assert found.pop("completions/mean_length") == pytest.approx(sum(lengths) / 12)
    assert found.pop("completions/max_length") == 14
    assert found.pop("completions/clipped_ratio") == 2 / 12
    assert found.pop("completion_tokens") == sum(lengths)
    assert found.pop("completions/repeated") == 0.0
    assert found == {}


def test_repetition_is_the_share_of_sequences_of_four_tokens_that_came_before() -> None:
    # 1234 2341 3412 4123 1234 2341: two of six came before; no sequence of four in three tokens.
    circling, short = (
        replace(one, token_ids=ids, logprobs=(0.0,) * len(ids), plain_logprobs=(0.0,) * len(ids))
        for one, ids in zip(GROUPS[0].completions, ((1, 2, 3, 4, 1, 2, 3, 4, 1), (5, 5, 5)), strict=False)
    )
    group = replace(GROUPS[0], completions=(circling, short))
    assert step_metrics(TASK, (group,), (OUTCOMES[0][:2],))["completions/repeated"] == pytest.approx(1 / 3 / 2)


def test_a_step_of_invalid_rewards_has_no_reward_and_no_signal() -> None:
    found = step_metrics(TASK, GROUPS[:1], ((replace(INVALID, correct=True),) * 3,))
    assert math.isnan(found["reward"])
    assert math.isnan(found["rewards/right/mean"])
    assert "frac_unverified" not in found
    assert (found["frac_reward_zero_std"], found["frac_invalid"], found["accuracy"]) == (1.0, 1.0, 1.0)


def test_a_group_is_solved_when_all_its_verified_completions_are_correct() -> None:
    rows = (((True, None, True), (None, None, False)), ((True, True, True), (False, True, None)))
    found = [
        step_metrics(TASK, GROUPS[:2], [[outcome(1.0, right=said) for said in row] for row in step]) for step in rows
    ]
    assert [step["frac_solved"] for step in found] == [0.5, 0.5]
    assert [step["frac_hopeless"] for step in found] == [0.5, 0.0]
    assert [step["frac_unverified"] for step in found] == [3 / 6, 1 / 6]


def test_metrics_without_a_verifier_have_no_accuracy() -> None:
    unjudged = [[outcome(1.0, right=None) for _ in row] for row in OUTCOMES]
    said = {"accuracy", "frac_solved", "frac_hopeless", "frac_unverified"}
    assert said.isdisjoint(step_metrics(UNJUDGED, GROUPS, unjudged))
    failed = step_metrics(TASK, GROUPS, unjudged)
    assert failed["frac_unverified"] == 1.0
    assert all(math.isnan(failed[name]) for name in said - {"frac_unverified"})


class Value:
    """A reward in the process of the run: the number that a text ends in; it fails for "?" and does not apply to ""."""

    in_process = True

    def __call__(self, completions: list[str], **columns: object) -> list[float | None]:
        return [None if not text else math.nan if text == "?" else float(text) for text in completions]


def test_the_runs_own_rewards_are_evaluated_and_invalid_ones_are_left_out_with_their_count() -> None:
    engine = ScriptedEngine(
        greedy={"a": "9", "b": "9", "c": "9"}, sampled={"a": ["-2", "0"], "b": ["3", "?"], "c": ["?", ""]}
    )
    with open_scorer([WeightedReward("value", Value(), 2.0)]) as scored:
        found = evaluate(engine, UNJUDGED, scored, requests("a", "b", "c"), sampling=Sampling(9), samples=2)
        alone = evaluate(engine, UNJUDGED, scored, requests("a", "b"), sampling=Sampling(9), samples=0)
    # Problem a: mean of -2 and 0; b: 3, without the invalid one; c has none. The weight is 2.
    assert found.results.rewards == {"reward": (-2.0, 6.0, None), "rewards/value/mean": (-1.0, 3.0, None)}
    assert (found.metrics["reward"], found.metrics["rewards/value/mean"]) == (2.0, 1.0)
    assert found.metrics["invalid_share"] == 3 / 6
    assert len(found.invalid) == 3
    low, high = found.metrics["reward_interval"]  # type: ignore[misc]
    assert -4.0 <= low < 2.0 < high <= 6.0
    assert "greedy_accuracy" not in found.metrics
    assert found.results.greedy == ()
    assert (alone.metrics["reward"], [one.total for one in alone.outcomes]) == (18.0, [18.0, 18.0])
    low, high = alone.metrics["reward_interval"]  # type: ignore[misc]
    assert low < 18.0 <= high, "equal rewards of two problems do not say that all others have the same"


class Judge(Value):
    calls = 0

    def __call__(self, completions: list[str], **columns: object) -> list[float | None]:
        Judge.calls += len(completions)
        return super().__call__(completions, **columns)

    def usage(self) -> dict[str, float]:
        return {"judge/requests": Judge.calls}


@pytest.mark.parametrize("judged", [False, True])
def test_a_judge_model_is_asked_about_held_out_completions_only_where_the_setting_says_so(judged: bool) -> None:
    engine, Judge.calls = ScriptedEngine(greedy={"a": "1"}, sampled={"a": ["1", "3"]}), 0
    with open_scorer([WeightedReward("judge", Judge()), WeightedReward("value", Value())]) as scored:
        found = evaluate(
            engine, UNJUDGED, scored, requests("a"), sampling=Sampling(9), samples=2, judged=judged
        ).metrics
    assert Judge.calls == (3 if judged else 0)
    assert found["rewards/value/mean"] == 2.0
    assert ("reward" in found, "rewards/judge/mean" in found) == (judged, judged), "a part is not the total"


def test_texts_end_as_in_training_and_are_drawn_plainly() -> None:
    engine = ScriptedEngine(greedy={"a": "1"}, sampled={"a": ["1"]})
    training = Sampling(7, temperature=0.6, top_p=0.9, top_k=5, min_p=0.1, stop=(".",), repetition_penalty=1.3)
    with open_scorer([WeightedReward("value", Value())]) as scored:
        evaluate(engine, UNJUDGED, scored, requests("a"), sampling=training, samples=1)
    assert [sampling for _, sampling in engine.asked] == [
        Sampling(7, temperature=0.0, stop=(".",)),
        Sampling(7, stop=(".",)),
    ]


def test_when_every_completion_is_right_no_interval_is_above_that_of_pass_at_8(scorer: Scorer) -> None:
    names = [str(n) for n in range(500)]
    engine = ScriptedEngine(dict.fromkeys(names, "yes"), dict.fromkeys(names, ["yes"] * 8))
    found = evaluate(engine, TASK, scorer, requests(*names), sampling=Sampling(9), samples=8).metrics
    ends = [found[f"pass_at_{k}_interval"] for k in (1, 2, 4, 8)]
    assert ends == [pytest.approx((500 / (500 + 1.959964**2), 1.0))] * 4  # Wilson's for 500 of 500
    # One completion of one problem is wrong: pass@1 falls, and its lower end is not above that of pass@8.
    engine = ScriptedEngine(engine.greedy, {**engine.sampled, "0": ["no"] + ["yes"] * 7})
    found = evaluate(engine, TASK, scorer, requests(*names), sampling=Sampling(9), samples=8).metrics
    lows, highs = zip(*(found[f"pass_at_{k}_interval"] for k in (1, 2, 4, 8)), strict=True)  # type: ignore[arg-type]
    assert list(lows) == sorted(lows)
    assert list(highs) == sorted(highs)


def test_numbers_that_are_all_one_could_have_been_zero() -> None:
    """As 4 of 4: n / (n + z^2) = 4 / (4 + 3.8415) = 0.5101."""
    assert mean_interval([1.0] * 4) == pytest.approx((0.5101, 1.0), abs=1e-4)
    assert mean_interval([0.0] * 4) == pytest.approx((0.0, 0.4899), abs=1e-4)
