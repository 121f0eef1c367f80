"""The pages against the code: names, settings, metrics, commands, links, and the numbers that code computes."""

from __future__ import annotations

import doctest
import re
import shutil
import subprocess
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import yaml
from matplotlib.mathtext import MathTextParser

from grouprl.algorithms.named import NAMED
from grouprl.algorithms.option import hints
from grouprl.cli import app
from grouprl.cli.settings import setting_rows
from grouprl.config.algorithm import KINDS, all_options, family_table
from grouprl.record.metrics import METRICS, metric_of

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("[!s]*/*.md"))]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
# The three presets are explained beside their libraries, in coming_from.md; others have their row of the table alone.
ROW_ALONE = {"rf_baseline", "scale_rl", "prime_rl", "lite_ppo", "vespo", "opo", "gpg", "pass_at_k"}
OWN_PAGE = [name for name in NAMED if name not in {"trl", "verl", "openrlhf"} | ROW_ALONE]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]+`", "", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


def displayed(text: str) -> list[str]:
    return re.findall(r"^\$\$\n(.*?)\n\$\$$", without_code(text), re.MULTILINE | re.DOTALL)


def inline(text: str) -> list[str]:
    return re.findall(r"\$([^$\n]+)\$", re.sub(r"^\$\$\n.*?\n\$\$$", "", without_code(text), flags=re.M | re.S))


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_resolve() -> None:
    broken = []
    for page, text in TEXTS.items():
        for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", without_code(text)):
            path, _, anchor = target.partition("#")
            place = (page.parent / path).resolve() if path else page
            if "://" not in target and (not place.exists() or (anchor and anchor not in anchors(place))):
                broken.append((name_of(page), target))
    assert broken == []


def test_pages_that_messages_and_comments_name_are_there() -> None:
    named = re.compile(r"\bdocs/(?!algo/)[a-z_/]+\.md(?!\w)")
    kinds = ("*.py", "*.yaml", "*.js", "*.json", "*.md", "Makefile", "*.toml")
    folders = [ROOT / name for name in ("src", "benchmarks", "tests")]
    files = [path for kind in kinds for folder in folders for path in folder.rglob(kind) if "vendor" not in path.parts]
    files += [ROOT / "Makefile", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", ROOT / "pyproject.toml"]
    cited = {(name_of(path), name) for path in files for name in named.findall(path.read_text(encoding="utf-8"))}
    assert len(cited) > 20
    assert [pair for pair in sorted(cited) if not (ROOT / pair[1]).exists()] == []


def test_the_workflows_call_targets_of_make_and_the_forms_are_whole() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    jobs = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8"))["jobs"]
    steps = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    called = {word for step in steps if step.startswith("make ") for word in step.split()[1:]}
    assert called == {"check", "test", "docs"}
    assert called <= targets
    for form in ("bug", "wrong_number"):
        body = yaml.safe_load((ROOT / f".github/ISSUE_TEMPLATE/{form}.yml").read_text(encoding="utf-8"))["body"]
        assert [field["attributes"]["label"] for field in body]
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert [entry for entry in conda["dependencies"] if isinstance(entry, dict)] == [{"pip": ["."]}]


def test_the_tests_that_make_runs_by_name_are_there() -> None:
    """pytest with two workers runs nothing where one of its files is missing."""
    if shutil.which("make") is None:
        pytest.skip("no make")
    targets = ("test", "test-slow", "models", "test-cluster", "chaos")
    shown = subprocess.run(["make", "-n", "-s", *targets], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    named = set(re.findall(r"(?<!\S)tests/\S+", shown))
    assert len(named) >= 7, shown
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_page_is_in_the_list_of_pages() -> None:
    pages = {path.name for kind in ("*.md", "*.ipynb") for path in DOCS.glob(kind)} - {"README.md"}
    assert [name for name in sorted(pages) if f"]({name})" not in TEXTS[DOCS / "README.md"]] == []


COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def test_commands_and_their_options_exist() -> None:
    known = {
        verb: {opt for one in command.params for opt in (*one.opts, "--help")} for verb, command in COMMANDS.items()
    }
    wrong = []
    for page, text in TEXTS.items():
        unbroken = text.replace("\\\n", " ")
        for verb, rest in re.findall(r"(?:^|`|\$ |-m )grouprl ([a-z][a-z-]+)([^`\n|]*)", unbroken, re.MULTILINE):
            if verb == "import-config" and "accelerate launch" in rest:  # another program's command, pasted
                continue
            options = re.findall(r"(?<= )--[a-z-]+", rest.partition("#")[0])
            wrong += [(name_of(page), verb, opt) for opt in options if opt not in known.get(verb, ())]
            wrong += [(name_of(page), verb, "")] if verb not in known else []
    assert wrong == []


def test_names_that_are_imported_exist() -> None:
    lines = {line for text in TEXTS.values() for line in re.findall(r"from (grouprl[\w.]*) import ([\w, ]+)", text)}
    assert len(lines) > 15
    assert [(room, name) for room, names in sorted(lines) for name in names.split(", ") if not found(room, name)] == []


def found(module: str, name: str) -> bool:
    return find_spec(module) is not None and hasattr(import_module(module), name)


def settings() -> set[str]:
    """Every key that a dotted change may name, those of other algorithms and sections that are null included."""
    keys = {key for key, _, _ in setting_rows()}
    options = {option for algorithm in NAMED.values() for option in all_options(algorithm)}
    options |= {option for kinds in KINDS.values() for kind in kinds for option in hints(kind)}
    keys |= {f"algorithm.{option}" for option in options} | {f"algorithm.{short}" for short in ("kl", "critic", "name")}
    keys |= {"algorithm.correction", "algorithm.objective.clip_high"}
    keys |= {"algorithm.bound"}  # of the algorithm that the page on algorithms writes
    keys |= {f"model.lora.{field}" for field in ("rank", "alpha", "targets")}
    parts = {key.rpartition(".")[0] for key in keys}
    return keys | {".".join(part.split(".")[:size]) for part in parts for size in range(1, 1 + len(part.split(".")))}


# Keys of verl and OpenRLHF stand beside ours there; the next test has the column of ours.
BESIDE = {DOCS / "coming_from.md", DOCS / "keys/openrlhf.md"}


def test_settings_exist() -> None:
    sections = r"algorithm|rollout|learner|model|task|evaluation|checkpoint|distributed|cluster|trackers"
    key = re.compile(rf"(?<![\w./-])((?:{sections})\.[a-z_]+(?:\.[a-z_]+)*)(?=[=`])")
    named = {(name_of(page), one) for page, text in TEXTS.items() if page not in BESIDE for one in key.findall(text)}
    assert len(named) > 150
    known = settings()
    assert [(page, one) for page, one in named if one not in known and not one.startswith("task.arguments.")] == []


def test_an_algorithms_page_has_its_paper_its_curve_and_metrics_to_watch_that_are_recorded() -> None:
    for name in OWN_PAGE:
        body = TEXTS[DOCS / f"algorithms/{name}.md"]
        assert re.search(r"\*\*Source\*\*:.*?(arxiv\.org/abs/\d{4}\.\d{5}|doi\.org/)", body, re.DOTALL), name
        assert f"](../images/algorithm-{name}.png)" in body
        (watched,) = re.findall(r"^\*\*Watch\*\*: (.*?)\n\n", body, re.MULTILINE | re.DOTALL)
        assert [key for key in re.findall(r"`([^`]+)`", watched) if metric_of(key) is None] == [], name


def test_metrics_exist() -> None:
    known = {metric.name for metric in METRICS.values()}
    heads = r"frac_|completions/|tokens/|groups/|curriculum/|judge/|time/|clip_low_|clip_high_|ratio_"
    written = {key for text in TEXTS.values() for key in re.findall(rf"`((?:{heads})[a-z_/]+)`", text)}
    assert len(written) > 20
    assert written <= known


def test_every_algorithm_has_a_page_and_the_family_is_the_table_of_the_code() -> None:
    pages = {path.stem for path in (DOCS / "algorithms").glob("*.md")}
    assert pages == {*OWN_PAGE, "options", "numbers"}
    text = TEXTS[DOCS / "algorithms.md"]
    assert family_table() in text
    assert [name for name in OWN_PAGE if f"](algorithms/{name}.md)" not in text] == []


@pytest.mark.parametrize(("page", "column", "many"), [("keys/openrlhf.md", -2, 40), ("coming_from.md", 1, 12)])
def test_the_keys_of_other_trainers_lead_to_settings(page: str, column: int, many: int) -> None:
    rows = [row for row in TEXTS[DOCS / page].partition("## TRL")[0].splitlines() if row.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([a-z_.0-9]+)`", row.split("|")[column])}
    assert len(named) > many
    assert named - settings() == set()


def test_worked_numbers_are_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", TEXTS[DOCS / "algorithms/numbers.md"], re.MULTILINE | re.DOTALL)
    session: dict[str, object] = {}
    runner, parser = doctest.DocTestRunner(verbose=False), doctest.DocTestParser()
    for number, block in enumerate(blocks, 1):
        example = parser.get_doctest(block, session, f"block {number}", "numbers.md", 0)
        runner.run(example, clear_globs=False)
        session = example.globs
    tried = runner.summarize(verbose=False)
    assert tried.attempted > 20
    assert tried.failed == 0, capsys.readouterr().out


def test_only_the_loss_runs_and_any_split_gives_one_gradient(capsys: pytest.CaptureFixture[str]) -> None:
    _, block = re.findall(r"^```python\n(.*?)^```$", TEXTS[DOCS / "algorithms.md"], re.MULTILINE | re.DOTALL)
    assert len([line for line in block.splitlines() if line.strip()]) <= 22
    gradients = []
    for size in (1, 4, 8):
        torch.manual_seed(0)
        names: dict[str, Any] = {}
        exec(compile(block.replace("split(4)", f"split({size})"), "docs/algorithms.md", "exec"), names)
        gradients.append(names["logits"].grad)
    # 2 of 4 right: mean 1/2, deviation 1/2. 1 of 4: mean 1/4, deviation sqrt(3)/4.
    third = 3**0.5
    hand = torch.tensor([1, -1, -1, 1, -1 / third, -1 / third, -1 / third, third])
    torch.testing.assert_close(names["advantages"], hand, atol=1e-5, rtol=0)
    for gradient in gradients[:2]:
        torch.testing.assert_close(gradient, gradients[2], atol=1e-8, rtol=0)
    # 36 tokens in all. At a ratio of 1, d loss / d logit of the drawn token is -A (1 - 1/50) / 36; padding has none.
    drawn = gradients[2].gather(-1, names["token_ids"][..., None])[..., 0]
    torch.testing.assert_close(drawn, -hand[:, None] * names["mask"] * 0.98 / 36, atol=1e-6, rtol=0)
    assert "0.0" in capsys.readouterr().out  # nothing is clipped in a first update


def test_equations_are_well_formed_and_markdown_leaves_them_alone() -> None:
    set_apart = [equation for text in TEXTS.values() for equation in displayed(text)]
    within = [equation for text in TEXTS.values() if "$$" in text for equation in inline(text)]
    assert len(set_apart) > 30
    for equation in set_apart + within:
        MathTextParser("path").parse(f"${' '.join(equation.split())}$")
    # A backslash before punctuation is Markdown's own escape; a line may start a list or a heading, "}_" emphasis.
    assert [e for e in set_apart if re.search(r"\\[!-/:-@\[-`{-~]|^[-+=#>]|<[a-z]", e, re.MULTILINE)] == []
    assert [e for e in within if re.search(r"\\[!-/:-@\[-`{-~]|<[a-z]|}_|[*]", e)] == []
