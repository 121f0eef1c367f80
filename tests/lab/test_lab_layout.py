"""Where things stand on every page of the lab and the report: in light and dark, on a screen and on a phone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import lab_browser
from comparisons import comparison, ones, record
from grouprl.lab.report.write import write_report
from grouprl.tools.compare.read import COMPARISON_FILE
from grouprl.tools.compare.report import write_comparison
from lab_browser import Opened, needs_chromium, opened, served
from lab_runs import FULL_CONFIG, Made, make_run
from recorded_episodes import record_episodes
from recorded_runs import record_run

pytestmark = [needs_chromium, pytest.mark.slow, pytest.mark.timeout(120)]
SCREEN, PHONE = 1280, 390
FAULTS = (Path(lab_browser.__file__).with_name("layout.js")).read_text(encoding="utf-8")
CLAIMS = {
    "ends": {"claim": "b ends higher than a does.", "source": "a text", "expect": ["b > a", "b >= a"], "margin": 0.02},
    "slow": {"claim": "b is slow.", "source": "a text", "measure": "seconds_per_step", "expect": ["b > a"]},
    "grows": {"claim": "KL grows.", "source": "a text", "measure": "kl", "at": "steps", "expect": ["a > 0"]},
    "proved": {"claim": "It is exact.", "source": "a text", "exact": "pytest -k it", "found": "equal", "holds": True},
    "waits": {"claim": "Nobody has measured it.", "source": "a text"},
}  # fmt: skip
SCORED = {
    "rewards": [{"name": "correct", "value": 1.0, "weight": 1.0}],
    "total": 1.0,
    "invalid": None,
    "correct": True,
    "tokens": 1,
}


@dataclass(frozen=True)
class Layout:
    """A page, and where its named parts stand."""

    address: str  # what stands after the #; of a report with its file before it
    ready: str  # what is there when all is drawn
    lines: tuple[str, ...] = ()  # each of these has all it holds in one line, at any width
    columns: dict[str, tuple[int, int]] = field(default_factory=dict)  # side by side in the first row, by width
    press: tuple[str, ...] = ()  # the texts of what is pressed first


HEAD = (".run-head .actions", ".chart-head .row")
CARDS = {".cards": (3, 1), ".halves": (2, 1)}
PAGES = {
    "runs": Layout("/", ".runs-table tr", (".runs-table .actions",)),
    "run": Layout("/runs/rich", ".chart-card canvas", HEAD, {".folds > .grid": (3, 1), ".pair .two": (2, 1)}),
    "notes": Layout("/runs/one", "dialog[open]", (), press=("Notes",)),
    "run with conversations": Layout("/runs/talk", ".chart-card canvas", HEAD),
    "groups": Layout("/runs/one/groups/1", ".grouprow .cell", (), {".groupgrid .columns": (5, 4)}),
    "starting a run": Layout("/", "dialog[open]", ("dialog form .row:last-child",), press=("Start a run",)),
    "search": Layout("/runs/one/groups?text=boxed", ".result"),
    "problem": Layout("/runs/one/groups?problem=train-1", ".visits li"),
    "resume": Layout("/runs/one", "dialog[open]", (), press=("Resume",)),
    "group": Layout("/runs/one/groups/1/0", "article.completion", (), CARDS),
    "tokens": Layout("/runs/one/groups/1/0?c=1", ".tokenpanel", (), {".tokenrows": (2, 1)}),
    "conversation": Layout("/runs/talk/groups/1/0", ".episode", (), CARDS),
    "tokens of a conversation": Layout("/runs/talk/groups/1/0?c=0", ".tokenpanel", (), {".tokenrows": (2, 1)}),
    "step": Layout("/step?run=one&step=1", ".stage", (), {".walk": (2, 1)}),
    "try": Layout("/runs/one/groups/1/0", ".components tfoot", press=("Try your own completion", "Score it")),
    "five algorithms": Layout(
        "/runs/one/groups/1/0", "details[open] tbody .chip", press=("These tokens under five algorithms",)
    ),
    "all stages of a step": Layout("/step?run=one&step=1&stage=update", ".stage:last-child:not(.later)"),
    "all stages of rewards": Layout("/step?rewards=1,0,0,1&stage=update", ".stage:last-child:not(.later)"),
    "one group": Layout("/group", ".plot canvas", (), {".four": (4, 1)}),
    "ppo": Layout("/ppo", "main img", (), {".two": (2, 1)}),
    "compare nothing": Layout("/compare", ".empty"),
    "compare": Layout("/compare/one,rich", ".chart-card canvas", (".chart-head .row",), {".page > .grid": (3, 1)}),
    "comparison": Layout("/comparison/vary", ".chart-card canvas", (), {".page > .grid": (3, 1)}),
    "claims": Layout("/comparison/claims", ".claim .curves", (), {".claims": (3, 1)}),
    "report": Layout("rich/report.html#/", ".chart-card canvas", (".chart-head .row",), {".folds > .grid": (3, 1)}),
    "report's groups": Layout("rich/report.html#/runs/rich/groups", ".grouprow .cell"),
    "report's group": Layout("rich/report.html#/runs/rich/groups/1/0", "article.completion", (), {".halves": (2, 1)}),
    "report of claims": Layout("claims/report.html#/", ".claim .curves", (), {".claims": (3, 1)}),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("layout")
    texts = ["12 - 5 = 7. \\boxed{7}", "I think there are 8 left, as she gave some of them away. \\boxed{8}", "7", ""]
    mixed = Made(
        [1.0, 0.0, 1.5, None], advantages=[0.5, -1.5, 1.0, 0.0], correct=[True, False, True, None], texts=texts
    )
    one = make_run(root / "one", *[[mixed, mixed]] * 3, config=FULL_CONFIG)
    rows = [{"step": step, "reward": 0.5, "accuracy": 0.5, "kl": 0.01 * step} for step in (1, 2, 3)]
    (one / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record_episodes(root / "talk", steps=3)
    write_report(record_run(root / "rich", steps=20))
    for name, claims in (("claims", CLAIMS), ("vary", {})):
        folder = comparison(root / name, ["a", "b"], [0, 1])
        settings = json.loads((folder / COMPARISON_FILE).read_text())
        (folder / COMPARISON_FILE).write_text(json.dumps({**settings, "claims": claims}))
        for seed in (0, 1):
            record(folder / f"a-seed{seed}", [ones(1), ones(2), ones(4)], counts=[2, 4, 6, 8 - seed])
            record(folder / f"b-seed{seed}", [ones(1), ones(2 + seed), ones(3)], tokens=(50, 50 + seed))
        write_comparison(folder)
    return root


@pytest.fixture(scope="module")
def lab(runs: Path) -> Iterator[Opened]:
    with served(runs) as lab, opened(lab) as browser:
        browser.page.route("**/try", lambda route: route.fulfill(json=SCORED))
        yield browser


def show(lab: Opened, layout: Layout, runs: Path) -> None:
    page = lab.page
    file, _, address = layout.address.rpartition("#")
    if file:
        page.goto("about:blank")
        page.goto(f"{(runs / file).as_uri()}#{address}")
        page.wait_for_selector("main .page")
    else:
        lab.go(layout.address)
    for text in layout.press:
        page.get_by_text(text, exact=True).first.click()
    page.locator(layout.ready).first.wait_for(state="visible")


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [SCREEN, PHONE])
def test_nothing_is_stacked_cut_or_covered(lab: Opened, runs: Path, name: str, width: int) -> None:
    page, layout = lab.page, PAGES[name]
    page.set_viewport_size({"width": width, "height": 900})
    show(lab, layout, runs)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        found = page.evaluate(FAULTS, {"lines": layout.lines, "columns": layout.columns})
        assert not found, "\n".join([theme, *found])
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
        assert (sum(ground) < 3 * 128) == (theme == "dark")


WORDS = """async () => {
  const at = (path) => import(new URL(`static/parts/${path}`, document.baseURI));
  const [{ counted }, { turnText, conversation }] = [await at("text.js"), await at("groups/episode.js")];
  const call = { tool: "add", arguments: "{}", result: "3", seconds: 0, fault: "" };
  const turn = { text: "", advantages: [1, 1], reward: null, calls: [call], replies: [], shown: 1, forked: false };
  const episode = { turns: [turn, { ...turn, calls: [] }], ended: "finished", invalid: false, reward: null };
  const counts = [1, 0, 1200].map((count) => counted(count, "token"));
  return [...counts, conversation(episode, turnText).textContent];
}"""


def test_a_call_stands_under_no_empty_text_and_counts_have_their_nouns(lab: Opened) -> None:
    lab.go("/compare")
    assert "0" not in lab.page.inner_text("main").split("\n")
    one, none, many, said = lab.page.evaluate(WORDS)
    assert (one, none, many) == ("1 token", "0 tokens", "1,200 tokens")
    assert said.count("(empty)") == 1  # of the turn that wrote nothing and called nothing
    assert "The policy read 1 token of this, and learns nothing of that." in said
    assert said.endswith("The episode is finished.")  # a reward of reward functions needs none of the environment
