"""Turns a run directory into one file, report.html: the page of the run with its data inside."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from grouprl.lab.report.groups import cut, groups_of_step, one_group
from grouprl.lab.report.page import STATIC, standalone
from grouprl.lab.report.run_data import invalid_answer, read_files, run_answer, run_line, series_answer
from grouprl.lab.report.tokens import kl_jumps, one_completion
from grouprl.record.files import atomic_write_text, json_text
from grouprl.record.layout import RunDirectory, is_finished
from grouprl.record.metrics import FILE
from grouprl.record.read import read_run

_GROUPS = 4  # of a step, from its first on
_BYTES = 600_000  # of groups and tokens as JSON, all steps together
_TEXT = 4_000  # characters of a completion, and of an episode
_DIGITS = 7  # of the numbers of a token, which are recorded as float32

Answers = dict[str, Any]


def write_report(run_directory: Path) -> Path:
    """Writes report.html from what the run directory holds; gives its path.

    The page shows what the lab shows of a run, and of its groups the first few of the first, the middle and the last
    step. Works for interrupted runs too, and skips what is missing.

    Raises:
        UserError: when `run_directory` holds no run, or a file of it is damaged.
    """
    read_run(run_directory)  # says what is wrong with a folder that is no run
    name = run_directory.resolve().name
    home = f"/runs/{encoded(name)}"
    answers = {**page_answers(), **run_answers(run_directory, name), **group_answers(run_directory, name)}
    links = [[home, "Run"]]
    if f"{home[1:]}/groups" in answers:
        links.append([f"{home}/groups", "Groups and completions"])
    data = {"home": home, "links": links, "answers": answers}
    path = RunDirectory(run_directory).report
    atomic_write_text(path, standalone(f"{name} · GroupRL", data, ("run", "groups")))
    return path


def write_comparison_page(directory: Path, answer: Mapping[str, Any]) -> None:
    """Writes the report.html of a comparison, whose page asks for this answer."""
    name = directory.resolve().name
    home, path = f"/comparison/{encoded(name)}", RunDirectory(directory).report
    answers = {**page_answers(), f"comparisons/{encoded(name)}": with_rounded_series(answer)}
    data = {"home": home, "links": [[home, "Comparison"]], "answers": answers}
    atomic_write_text(path, standalone(f"{name} · GroupRL", data, ("compare",)))


def write_data_page(path: Path, answer: Mapping[str, Any]) -> None:
    """Writes the page of a check of data, which asks for this answer."""
    name = encoded(path.stem)
    data = {"home": f"/data/{name}", "links": [[f"/data/{name}", "Data"]], "answers": {f"data/{name}": rounded(answer)}}
    atomic_write_text(path, standalone(f"{path.stem} · GroupRL", data, ("data",)))


def page_answers() -> Answers:
    """What every page asks for: the definitions of metrics, and which charts there are."""
    files = (FILE, STATIC / "sections.json", STATIC / "charts.json")
    return {f"static/{path.name}": json.loads(path.read_text(encoding="utf-8")) for path in files}


def run_answers(folder: Path, name: str) -> Answers:
    """What the page of a run asks for, by the lab's path.

    Raises:
        UserError: a file of the run is damaged.
    """
    files, path = read_files(folder), f"runs/{encoded(name)}"
    mine = {"status": "finished" if is_finished(files.summary, files.config.get("steps")) else "stopped"}
    # A run writes its report while it holds its folder.
    snapshot = mine if RunDirectory(folder).holder() == os.getpid() else {}
    return {
        "runs": {"runs": [run_line(name, folder, files) | snapshot]},
        path: run_answer(name, folder, files) | snapshot,
        f"{path}/series": series_answer(files.metrics),
        f"{path}/invalid": invalid_answer(folder),
        f"{path}/jumps": kl_jumps(folder, files.metrics),
    }


def group_answers(folder: Path, name: str) -> Answers:
    """Some groups of the first, the middle and the last step, by the lab's path; none before the first step.

    Raises:
        UserError: the rollouts are damaged.
    """
    newest = groups_of_step(folder, None, offset=0, limit=_GROUPS)
    if newest["steps"] is None:
        return {}
    first, last = newest["steps"]
    held, path = sorted({first, (first + last) // 2, last}), f"runs/{encoded(name)}"
    answers: Answers = {}
    left = _BYTES

    def take(answer: object) -> bool:
        """Whether there is room for this; it is taken then."""
        nonlocal left
        size = len(json_text(answer).encode())
        fits = size <= left
        left -= size if fits else 0
        return fits

    for step in held:
        listed = groups_of_step(folder, step, offset=0, limit=_GROUPS)
        groups = (_shortened(one_group(folder, step, row["group_index"], most=_TEXT)) for row in listed["groups"])
        taken = {f"{path}/groups/{step}/{row['group_index']}": row for row in takewhile(take, groups)}
        counts = {"held": held, "total": len(taken), "of": listed["total"]}
        shown = {**listed, **counts, "groups": listed["groups"][: len(taken)]}
        answers |= {**taken, f"{path}/groups?step={step}": shown, f"{path}/groups": shown}
    for step, group, index in _places(answers, path):
        root = folder.resolve().parent
        tokens = rounded(one_completion(folder, step, group, index, root=root, most=_TEXT))
        if take(tokens):
            answers[f"{path}/completions/{step}/{group}/{index}"] = tokens
    return answers


def _shortened(group: dict[str, Any]) -> dict[str, Any]:
    return {
        **group,
        "completions": [{**row, "text": cut(row["text"], _TEXT)} for row in group["completions"]],
    }


def _places(answers: Answers, path: str) -> Iterator[tuple[int, int, int]]:
    """Completions of the held groups: the first group of each step before the second, so that each step has some."""
    held = [answer for key, answer in answers.items() if key.startswith(f"{path}/groups/")]
    for group in sorted(held, key=lambda row: (row["group_index"], row["step"])):
        for completion in group["completions"]:
            yield group["step"], group["group_index"], completion["index"]


def rounded(value: Any) -> Any:
    """The value with every float in it to seven digits."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


def with_rounded_series(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a comparison with the curves of its variants to seven digits."""
    variants = [{**variant, "series": rounded(variant["series"])} for variant in comparison["variants"]]
    return {**comparison, "variants": variants}


def encoded(name: str) -> str:
    """As a browser's encodeURIComponent writes it."""
    return quote(name, safe="-_.!~*'()")
