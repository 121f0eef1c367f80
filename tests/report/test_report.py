"""The report and its plots, made from a run directory that the recorder itself wrote."""

from __future__ import annotations

import base64
import math
import subprocess
import sys
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from grouprl.record.read import read_run
from grouprl.record.write import Example, RunRecord
from grouprl.report.drawing import smooth
from grouprl.report.plots import PLOTS
from grouprl.report.words import duration
from grouprl.report.write import verdict, write_report
from grouprl.types import Completion, Group, Problem, RewardOutcome, StepRecord, StopReason, UserError

ATTACK = '<script>alert("x")</script><img src=http://example.com/a.png onerror=alert(1)>\u202e\\boxed{1}'
BEFORE = {
    "greedy_accuracy": 0.312,
    "greedy_interval": [0.273, 0.354],
    "pass_at_1": 0.278,
    "pass_at_1_interval": [0.256, 0.3],
    "pass_at_8": 0.902,
    "pass_at_8_interval": [0.873, 0.925],
    "worked_share": 0.302,
    "mean_length": 21.4,
    "problems": 500,
}
AFTER = {
    "greedy_accuracy": 0.974,
    "greedy_interval": [0.956, 0.985],
    "pass_at_1": 0.951,
    "pass_at_1_interval": [0.938, 0.964],
    "pass_at_8": 0.996,
    "pass_at_8_interval": [0.986, 1.0016],
    "worked_share": 0.991,
    "mean_length": 44.9,
    "problems": 500,
}
SUMMARY = {
    "before": BEFORE,
    "after": AFTER,
    "train_seconds": 98.2,
    "total_seconds": 131.7,
    "steps": 60,
    "seed": 0,
    "peak_rss_mib": 912.4,
    "completion_tokens": 284_112,
    "model": "abacus",
    "task": "word_problems",
    "algorithm": "grpo",
    "machine": {
        "cpu": "Xeon",
        "cores": 2,
        "torch": "2.13.0",
        "transformers": "5.23.0",
        "python": "3.11",
        "device": "cpu",
    },
}


def metrics_at(step: int, steps: int, noise: np.random.Generator) -> dict[str, float]:
    """Numbers of the shape that a good run has: guessing gives way to working problems out."""
    learned = 1 / (1 + math.exp(-8 * (step / steps - 0.4)))
    accuracy = float(np.clip(0.25 + 0.7 * learned + noise.normal(0, 0.04), 0, 1))
    solved = float(np.clip(0.02 + 0.75 * learned + noise.normal(0, 0.03), 0, 0.95))
    hopeless = float(np.clip(0.15 * (1 - learned) + noise.normal(0, 0.01), 0, 0.05 + 0.1 * (1 - learned)))
    rollout, learn = 0.8 + 0.3 * learned, 0.5 + 0.2 * learned + abs(noise.normal(0, 0.05))
    return {
        "reward": accuracy + 0.49,
        "reward_std": 0.45 * math.sqrt(max(0.0, 1 - learned)) + 0.02,
        "rewards/correct/mean": accuracy,
        "rewards/boxed/mean": 0.98,
        "accuracy": accuracy,
        "worked_share": float(np.clip(0.3 + 0.69 * learned + noise.normal(0, 0.03), 0, 1)),
        "frac_reward_zero_std": solved + hopeless,
        "frac_solved": solved,
        "frac_hopeless": hopeless,
        "curriculum/seen": 16 * step,
        "curriculum/solved": 8 * step,
        "curriculum/hopeless": 4 * step,
        "frac_invalid": 0.0,
        "completions/mean_length": 21 + 24 * learned + noise.normal(0, 1),
        "completions/max_length": 60 + 20 * learned + noise.normal(0, 4),
        "completions/clipped_ratio": max(0.0, noise.normal(0.01, 0.01)),
        "loss": noise.normal(0, 0.01),
        "kl": 0.4 * learned + abs(noise.normal(0, 0.01)),
        "entropy": 0.6 - 0.45 * learned,
        "grad_norm": 0.7,
        "learning_rate": 1e-4,
        "clip_low_fraction": 0.0,
        "clip_high_fraction": 0.01 * (1 - learned),
        "value_loss": 0.3 * (1 - learned),
        "value_explained_variance": learned,
        "sampler_learner_gap": 2e-6 + abs(noise.normal(0, 1e-6)),
        "tokens_per_second": 4700.0,
        "completion_tokens": 4735,
        "time/rollout": rollout,
        "time/reward": 0.04,
        "time/reference": 0.12,
        "time/learn": learn,
        "time/record": 0.015,
        "time/total": rollout + learn + 0.2,
        "rss_mib": 900.0,
    }


def tiny_group(step: int) -> Group:
    completion = Completion(0, (5, 2), (-0.1, -0.2), (-0.1, -0.2), "\\boxed{7}", StopReason.END, step - 1)
    return Group(Problem(f"train-{step}", "3 + 4 = ?", {"answer": "7"}), (1, 9), (completion,))


def examples(solved: bool) -> list[Example]:
    prompt = "John has {} apples, gives 3 to Mary, and then gives 5 to Kevin. How many are left?"
    worked = "3 to Mary leaves {} - 3 = {}.\n5 to Kevin leaves {} - 5 = {}.\n\\boxed{{{}}}"
    guess = "I think there are 7 left. \\boxed{7}"
    return [
        Example(
            problem_id=f"test-{apples}",
            prompt=prompt.format(apples),
            answer=str(apples - 8),
            completion=worked.format(apples, apples - 3, apples - 3, apples - 8, apples - 8) if solved else guess,
            correct=solved or apples == 15,
        )
        for apples in (12, 15, 31, 40)
    ]


def record_run(directory: Path, steps: int = 60, finished: bool = True) -> Path:
    noise = np.random.default_rng(0)
    outcome = RewardOutcome(1.5, {"correct": 1.0, "boxed": 0.5})
    attacked = Example("test-x", "2 & 2 < 5?", "yes", ATTACK, correct=False)
    with RunRecord.create(directory, "task: word_problems\nalgorithm:\n  name: grpo\n  kl_coef: 0.04\n") as record:
        record.examples("before", [*examples(solved=False), attacked])
        for step in range(1, steps + 1):
            record.step(
                StepRecord(step, metrics_at(step, steps, noise), [tiny_group(step)], [[outcome]], [[[0.0, 0.0]]])
            )
            if step % 10 == 0:
                share = 0.3 + 0.65 * step / steps
                record.evaluation(step, {"greedy_accuracy": share, "greedy_interval": [share - 0.03, share + 0.02]})
        if finished:
            record.examples("after", [*examples(solved=True), attacked])
            record.summary(SUMMARY)
    return directory


class Page(HTMLParser):
    """Every tag with its attributes, and the text outside of style sheets."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._styled = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._styled = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._styled = False

    def handle_data(self, data: str) -> None:
        self.text += "" if self._styled else data


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = record_run(tmp_path_factory.mktemp("runs") / "finished")
    write_report(directory)
    return directory


@pytest.fixture(scope="module")
def page(finished: Path) -> Page:
    return Page((finished / "report.html").read_text(encoding="utf-8"))


def test_the_page_says_what_came_of_the_run(page: Page) -> None:
    text = page.text.replace("\N{NO-BREAK SPACE}", " ")
    assert "Greedy accuracy 31.2% → 97.4% on 500 held-out problems in 98 s of training." in text
    for cell in (
        "27.3–35.4%",
        "+66.2 points",
        "98.6–100.0%",
        "44.9",
        "+23.5",
        "284,112",
        "912 MiB",
        "2 min 12 s",
        "Xeon",
    ):
        assert cell in text
    assert "kl_coef: 0.04" in text


def test_the_page_shows_both_sides_of_every_example_marked_in_words(page: Page) -> None:
    assert page.text.count("before training") == 5
    assert page.text.count("after training") == 5
    assert page.text.count("✓ correct") == 1 + 4
    assert page.text.count("✗ wrong") == 4 + 1
    assert "12 - 3 = 9.\n5 to Kevin leaves 9 - 5 = 4." in page.text


def test_model_text_stays_text_and_nothing_is_fetched(page: Page) -> None:
    assert ATTACK in page.text
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "iframe", "object", "embed", "form", "link", "base"})
    addresses = [value or "" for _, attrs in page.tags for name, value in attrs.items() if name in ("src", "href")]
    assert addresses
    assert all(address.startswith("data:image/png;base64,") for address in addresses)
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]


def test_every_plot_is_written_and_shown_once(finished: Path, page: Page) -> None:
    written = {path.stem: path.read_bytes() for path in (finished / "plots").glob("*.png")}
    assert set(written) == {plot.name for plot in PLOTS}
    shown = [attrs["src"] or "" for tag, attrs in page.tags if tag == "img"]
    assert sorted(base64.b64decode(uri.partition(",")[2]) for uri in shown) == sorted(written.values())
    assert all(plot.caption in page.text for plot in PLOTS)


def test_a_run_that_clips_nothing_and_has_no_critic_shows_neither(tmp_path: Path) -> None:
    with RunRecord.create(tmp_path / "run", "task: x\n") as record:
        record.step(StepRecord(1, {"reward": 0.5, "clip_low_fraction": 0.0, "clip_high_fraction": 0.0}, [], [], []))
    write_report(tmp_path / "run")
    assert [path.stem for path in (tmp_path / "run" / "plots").iterdir()] == ["reward"]


def test_an_unfinished_run_has_a_report_of_what_there_is(tmp_path: Path) -> None:
    page = Page(write_report(record_run(tmp_path / "run", steps=3, finished=False)).read_text(encoding="utf-8"))
    first, last = (metrics_accuracy(read_run(tmp_path / "run").metrics[place]) for place in (0, -1))
    assert f"Unfinished at step 3: {first} → {last} of the sampled" in page.text.replace("\N{NO-BREAK SPACE}", " ")
    assert "Before and after" not in page.text
    assert not (tmp_path / "run" / "plots" / "accuracy.png").exists()
    assert page.text.count("before training") == 5


def metrics_accuracy(row: Mapping[str, float]) -> str:
    return f"{100 * row['accuracy']:.1f}%"


SECTIONS = (("Before and after", "What happened"), ("The same problems", "Run and machine"))


def test_without_a_verifier_the_report_tells_of_rewards_and_invents_no_zeros(tmp_path: Path) -> None:
    with RunRecord.create(tmp_path / "run", "task: x\n") as record:
        for step in range(1, 21):
            record.step(StepRecord(step, {"reward": step / 10, "reward_std": 0.1, "loud_share": 0.5}, [], [], []))
        unfinished = verdict(read_run(tmp_path / "run"))
        for when in ("before", "after"):
            record.examples(when, [Example("test-0", "Sing!", "", "la", None)])
        before = {"loud_share": 0.25, "mean_length": 9.0, "problems": 1}
        record.summary({**SUMMARY, "before": before, "after": {**before, "loud_share": 0.75}})
    assert (
        unfinished.replace("\N{NO-BREAK SPACE}", " ")
        == "Unfinished at step 20: mean reward 0.15 → 1.95, from the first steps to the last."
    )
    html = write_report(tmp_path / "run").read_text(encoding="utf-8")
    text = Page(html).text.replace("\N{NO-BREAK SPACE}", " ")
    assert "Mean reward 0.15 → 1.95 over 20 steps in 98 s of training." in text
    assert "On 1 held-out problem." in text
    for cell in ("Loud", "25.0%", "75.0%", "+50.0 points", "Mean length (tokens)"):
        assert cell in text
    table, examples = (text.partition(start)[2].partition(end)[0] for start, end in SECTIONS)
    assert not [word for word in ("ccuracy", "pass@", " 0.0%") if word in table]
    assert not [word for word in ("correct", "wrong", "Right answer") if word in examples]
    assert not (tmp_path / "run" / "plots" / "accuracy.png").exists()


def test_a_run_that_did_nothing_yet_has_a_report(tmp_path: Path) -> None:
    RunRecord.create(tmp_path / "run", "task: x\n").close()
    page = Page(write_report(tmp_path / "run").read_text(encoding="utf-8"))
    assert "Nothing to judge yet" in page.text
    assert "img" not in {tag for tag, _ in page.tags}


def test_results_that_could_not_be_computed_are_shown_as_missing(tmp_path: Path) -> None:
    with RunRecord.create(tmp_path / "run", "task: x\n") as record:
        record.step(StepRecord(1, {"reward": 0.5, "kl": math.nan, "accuracy": 0.25}, [], [], []))
        record.summary({"before": {**BEFORE, "mean_length": math.nan}, "after": None, "steps": 1})
    text = Page(write_report(tmp_path / "run").read_text(encoding="utf-8")).text
    assert "31.2%" in text
    assert "Unfinished at step 1" in text
    assert text.count("–") >= 5


def test_no_report_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a run directory"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_smoothing_is_a_centred_mean_that_shrinks_at_the_ends() -> None:
    values = [float(value**2) for value in range(30)]  # a tenth of 30 values: a window of 3
    assert smooth(values)[0] == (0 + 1) / 2
    assert smooth(values)[10] == pytest.approx((81 + 100 + 121) / 3)
    assert smooth(values)[29] == pytest.approx((784 + 841) / 2)
    assert smooth([5.0]).tolist() == [5.0]


def test_time_parts_add_up_to_the_step_longest_first(tmp_path: Path) -> None:
    with RunRecord.create(tmp_path / "run", "") as record:
        record.step(StepRecord(1, {"time/reward": 0.5, "time/rollout": 3.0, "time/total": 4.0}, [], [], []))
        record.step(StepRecord(2, {"time/reward": 1.5, "time/rollout": 1.0, "time/total": 2.5}, [], [], []))
        record.step(StepRecord(3, {"reward": 1.0}, [], [], []))
    steps, parts = read_run(tmp_path / "run").time_split()
    assert steps == [1, 2]
    assert list(parts.items()) == [("rollout", [3.0, 1.0]), ("reward", [0.5, 1.5]), ("other", [0.5, 0.0])]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.42, "0.4 s"),
        (98.2, "98 s"),
        (119.4, "119 s"),
        (120, "2 min 0 s"),
        (3599.6, "1 h 0 min"),
        (90061, "25 h 1 min"),
    ],
)
def test_durations_are_said_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_reading_a_run_brings_in_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys, grouprl.types; before = set(sys.modules); import grouprl.record.read, grouprl.report.write; "
        "print(sorted({'torch', 'matplotlib', 'transformers'} & (set(sys.modules) - before)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
