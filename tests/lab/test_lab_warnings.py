"""The page of a run says what went wrong in its steps and marks the charts that show it; the ledger is one chart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grouprl.config.run import RunConfig, dump_config
from grouprl.lab.report.write import write_report
from lab_browser import Opened, needs_chromium, opened

pytestmark = [needs_chromium, pytest.mark.slow]
SENTENCE, SETTING = "Step 3: the KL to the reference is 5.46 nats per token.", "lower learner.learning_rate"
# Pixels of the color of marks, in the columns of a chart's canvas.
MARKED = """(title) => {
  const chart = document.querySelector(`section.chart-card[aria-label="${title}"]`);
  chart.scrollIntoView();
  return new Promise((done) => setTimeout(() => {
    const canvas = chart.querySelector("canvas"), { width, height } = canvas;
    const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
    const down = (x) => Array.from({ length: height }, (_, y) => 4 * (y * width + x));
    const columns = Array.from({ length: width }, (_, x) => down(x)
      .filter((at) => data[at] === 166 && data[at + 1] === 60 && data[at + 2] === 0 && data[at + 3] === 255).length);
    done(columns.map((count, x) => [x / width, count]).filter(([, count]) => count > height / 3).map(([x]) => x));
  }, 600));
}"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    folder = tmp_path_factory.mktemp("runs") / "warned"
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_config(RunConfig(name="warned", steps=5)), encoding="utf-8")
    ledger = {"tokens/used": 60, "tokens/no_signal": 30, "tokens/clipped": 10, "completion_tokens": 100}
    rows: list[dict[str, Any]] = [
        {"step": step, "reward": 0.5, "kl": 0.01 * step, "time/total": 1.0, **ledger} for step in range(1, 6)
    ]
    warning = {"step": 3, "kind": "explosion", "metric": "kl", "sentence": SENTENCE, "setting": SETTING}
    for name, lines in (("metrics.jsonl", rows), ("warnings.jsonl", [warning])):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with opened(Path(write_report(folder))) as shown:
        yield shown


def test_the_table_says_what_happened_and_what_to_change(page: Opened) -> None:
    table = page.page.get_by_role("region", name="Warnings")
    assert table.locator("tbody tr").count() == 1
    assert table.locator("tbody tr").inner_text().split("\t") == ["3", SENTENCE, SETTING]


def test_the_chart_of_its_metric_is_marked_at_its_step(page: Opened) -> None:
    marks = page.page.evaluate(MARKED, "KL to the reference")
    assert marks
    assert 0.45 < sum(marks) / len(marks) < 0.62  # step 3 of 1 to 5, beside the axis
    assert page.page.evaluate(MARKED, "Reward") == []
