"""report.html, the page of a run with its data inside, made by the recorder itself; the tables of definitions."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

import grouprl.config.algorithm  # noqa: F401 (which imports all parts)
from grouprl.algorithms.option import Part, hints
from grouprl.lab.report.page import STATIC
from grouprl.lab.report.write import write_report
from grouprl.record.metrics import METRICS
from grouprl.record.read import Example, read_run
from grouprl.record.write import RunRecord
from grouprl.trainer.verdict import verdict
from grouprl.types import StepRecord, UserError
from held_page import Page
from lab_runs import Made, make_run
from recorded_runs import ATTACK, BEFORE, SUMMARY, record_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = record_run(tmp_path_factory.mktemp("runs") / "finished")
    write_report(directory)
    return directory


@pytest.fixture(scope="module")
def page(finished: Path) -> Page:
    return Page(finished / "report.html")


def said(page: Page) -> str:
    return str(page.shown["verdict"]).replace("\N{NO-BREAK SPACE}", " ")


def test_the_page_says_what_came_of_the_run(page: Page) -> None:
    assert said(page) == "Greedy accuracy 31.2% → 97.4% on 500 held-out problems in 98 s of training."
    assert page.shown["summary"] == SUMMARY
    assert (page.shown["status"], page.shown["step"], page.shown["steps"]) == ("finished", 60, None)
    assert "kl_coef: 0.04" in page.shown["config_yaml"]
    assert "report.html" not in page.shown["files"]
    assert page.shown["files"]["metrics.jsonl"] == "one line of numbers per step"


def test_the_first_groups_of_the_first_the_middle_and_the_last_step_are_held(tmp_path: Path) -> None:
    texts = ["right", ATTACK, "x" * 9_000]
    made = [Made([1.0, 0.0, None], advantages=[1, -1, 0], texts=texts, problem=f"p{place}") for place in range(6)]
    page = Page(write_report(make_run(tmp_path / "a b", made, made, made, made, made)))
    assert page.home == "/runs/a%20b"
    groups = [path for path in page.answers if "/groups/" in path]
    assert groups == [f"runs/a%20b/groups/{step}/{group}" for step in (1, 3, 5) for group in range(4)]
    shown = page.answers["runs/a%20b/groups?step=3"]
    assert (shown["held"], shown["steps"], shown["total"], shown["of"]) == ([1, 3, 5], [1, 5], 4, 6)
    assert page.answers["runs/a%20b/groups"]["step"] == 5
    assert [len(one["text"]) for one in page.answers[groups[0]]["completions"]] == [5, len(ATTACK), 4_000]
    assert sum("/completions/" in path for path in page.answers) == 3 * 4 * 3
    reasons = page.answers["runs/a%20b/invalid"]["reasons"]
    assert reasons == [{"reason": "exact: timed out", "completions": 30, "first_step": 1, "last_step": 5}]


def test_a_file_stays_small_whatever_the_groups_are(tmp_path: Path) -> None:
    made = [Made([1.0] * 300, texts=["y" * 5_000] * 300)] * 2
    path = write_report(make_run(tmp_path / "run", made, made, made))
    assert path.stat().st_size < 1_200_000
    shown = Page(path).answers["runs/run/groups?step=1"]
    assert (shown["total"], shown["of"], shown["groups"]) == (0, 2, [])


def test_model_text_stays_text_and_nothing_is_fetched(finished: Path, page: Page) -> None:
    assert ATTACK in [one["completion"] for one in page.shown["examples"]["after"]]
    assert "</script><script>alert" not in (finished / "report.html").read_text(encoding="utf-8")
    assert {tag for tag, _ in page.tags}.isdisjoint({"iframe", "object", "embed", "form", "base", "img"})
    page.assert_stands_alone()
    (policy,) = [attrs["content"] or "" for tag, attrs in page.tags if attrs.get("http-equiv")]
    assert "default-src 'none'" in policy
    assert "'unsafe-inline'" not in policy.partition("style-src")[0]
    text = (finished / "report.html").read_text(encoding="utf-8")  # the page is the lab's own
    assert (STATIC / "style.css").read_text(encoding="utf-8") in text
    assert "grouprl/parts/chart.js" in text
    assert "grouprl/pages/runs.js" not in text  # it needs a lab


def test_an_unfinished_run_has_a_report_of_what_there_is(tmp_path: Path) -> None:
    page = Page(write_report(record_run(tmp_path / "run", steps=3, finished=False)))
    rows = read_run(tmp_path / "run").metrics
    first, last = (f"{100 * row['accuracy']:.1f}%" for row in (rows[0], rows[-1]))
    assert f"Unfinished at step 3: {first} → {last} of the sampled" in said(page)
    assert page.shown["summary"] == {}
    assert (len(page.shown["examples"]["before"]), "after" in page.shown["examples"]) == (5, False)


def test_without_a_verifier_the_report_tells_of_rewards_and_invents_no_zeros(tmp_path: Path) -> None:
    with RunRecord.create(tmp_path / "run", "task: x\n") as record:
        for step in range(1, 21):
            record.step(StepRecord(step, {"reward": step / 10, "reward_std": 0.1, "loud_share": 0.5}, [], [], []))
        unfinished = verdict(read_run(tmp_path / "run")).replace("\N{NO-BREAK SPACE}", " ")
        for when in ("before", "after"):
            record.examples(when, [Example("test-0", "Sing!", "", "la", None)])
        before = {"loud_share": 0.25, "mean_length": 9.0, "problems": 1}
        record.summary({**SUMMARY, "before": before, "after": {**before, "loud_share": 0.75}})
    assert unfinished == "Unfinished at step 20: mean reward 0.15 → 1.95, from the first steps to the last."
    page = Page(write_report(tmp_path / "run"))
    assert said(page) == "Mean reward 0.15 → 1.95 over 20 steps in 98 s of training."
    assert "accuracy" not in page.answers["runs/run/series"]["columns"]


def test_a_run_that_writes_its_own_report_is_not_called_running(tmp_path: Path) -> None:
    with RunRecord.create(tmp_path / "run", "steps: 1\n") as record:
        record.step(StepRecord(1, {"reward": 0.5}, [], [], []))
        record.summary({"after": {}, "steps": 1})
        page = Page(write_report(tmp_path / "run"))
    assert page.shown["status"] == page.answers["runs"]["runs"][0]["status"] == "finished"


def test_results_that_could_not_be_computed_are_missing(tmp_path: Path) -> None:
    with RunRecord.create(tmp_path / "run", "task: x\n") as record:
        record.step(StepRecord(1, {"reward": 0.5, "kl": math.nan, "accuracy": 0.25}, [], [], []))
        record.summary({"before": {**BEFORE, "mean_length": math.nan}, "after": None, "steps": 1})
    page = Page(write_report(tmp_path / "run"))
    assert said(page).startswith("Unfinished at step 1")
    assert page.shown["summary"]["before"]["mean_length"] is None
    assert page.answers["runs/run/series"]["columns"]["kl"] == [None]


def test_no_report_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a run directory"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_module_brings_in_little() -> None:
    """The lab stands beside a run that needs the memory."""
    code = "import sys, grouprl.record.read; print(*sys.modules)\n"
    code += "import grouprl.lab.server, grouprl.lab.report.write; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    record, lab = (set(line.split()) for line in ended.stdout.splitlines())
    assert "grouprl.record.read" in record
    assert {"grouprl.lab.server", "grouprl.lab.report.write"} <= lab
    assert not {"torch", "transformers"} & record
    assert not {"matplotlib", "jinja2", "transformers", "peft"} & lab


DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = json.loads((STATIC / "sections.json").read_text(encoding="utf-8"))
UNITS = {"", "share", "s", "nats", "nats per token", "tokens", "tokens/s", "groups", "problems", "requests", "MiB"}


def test_definitions_make_sentences_that_stand_alone() -> None:
    for found in METRICS.values():
        assert found.unit in UNITS
        assert re.fullmatch(r"[A-Zp].*[^.;]", found.label)
        # It begins with what the metric is, and not in the middle of another sentence.
        assert re.match(r"[a-z1][\w'-]* ", found.meaning), found
        assert found.meaning.split()[0] not in {"of", "with", "for", "and", "that", "those", "these"}
        assert re.fullmatch(r"(when|above) .*[^.;]", found.worry), found  # after "Worry"


def test_every_section_is_of_some_metric_and_back_and_leads_to_a_page() -> None:
    assert set(SECTIONS) == {metric.section for metric in METRICS.values() if metric.section}
    assert [name for name, found in SECTIONS.items() if not (DOCS / found["page"]).exists()] == []


def test_every_metric_that_a_chart_names_is_defined() -> None:
    charts = [chart for section in json.loads((STATIC / "charts.json").read_text()) for chart in section["charts"]]
    keys = {key for chart in charts for key in chart.get("lines", {})}
    assert {"reward", "kl", "curriculum/seen", "judge/cost"} <= keys
    assert keys <= set(METRICS)


STAGES = json.loads((STATIC / "stages.json").read_text(encoding="utf-8"))
# The tables that the page reads, by option.
TABLES: dict[str, list[tuple[str, ...]]] = {
    "aggregate": [("loss", "weight")],
    "baseline": [("advantages", "baseline")],
    "scale": [("advantages", "scale")],
    "std": [("statistics", "std")],
    "credit": [("ratio", "credit")],
    "surrogate": [("ratio", name) for name in ("name", "equation", "title", "maximized", "why", "acts")],
    "ratio": [("ratio", "letter"), ("ratio", "happens")],
    "kl_estimator": [("kl", "estimate")],
    "kl_in": [("kl", "happens")],
}
# Those that the page has no table for: its code, or a note beside the group, was written for these values.
BRANCHES = {
    "reward_mix": {"sum_then_normalise", "normalise_then_sum"},
    "critic_kind": {"copy", "shared"},
    "correction_kind": {"truncate", "mask"},
    "correction_level": {"token", "sequence"},
    "distill_reads": {"auto", "solution", "prompt"},
    "distill_where": {"no_signal", "all"},
}


def parts(of: type[Part] = Part) -> Iterator[type[Part]]:
    for part in of.__subclasses__():
        if part.__module__.startswith("grouprl."):  # not those of other tests
            yield from (part, *parts(part))


def choices() -> dict[str, set[str]]:
    """The values of each option that has a list of them, over all parts."""
    found: dict[str, set[str]] = {}
    for part in parts():
        for name, hint in hints(part).items():
            for one in (hint, *get_args(hint)):
                if get_origin(one) is Literal:
                    found.setdefault(name, set()).update(get_args(one))
    return found


@pytest.mark.parametrize("name", sorted(choices()))
def test_the_page_has_every_value_of_an_option(name: str) -> None:
    values = choices()[name]
    if name in BRANCHES:
        assert values == BRANCHES[name], "look at the page: does it say the right thing of the new value?"
    for place in TABLES.get(name, []):
        table: Any = STAGES
        for key in place:
            table = table[key]
        assert values <= set(table), f"stages.json, {'.'.join(place)}"
    assert name in TABLES or name in BRANCHES


def test_a_run_that_did_nothing_yet_has_a_report(tmp_path: Path) -> None:
    RunRecord.create(tmp_path / "run", "task: x\n").close()
    page = Page(write_report(tmp_path / "run"))
    assert said(page) == "No result: the run has recorded no step with a reward."
    assert not [path for path in page.answers if "/groups" in path]
