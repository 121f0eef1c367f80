"""The lab's pages with recorded runs as a folder of files: they open from a disk and from any static host.

The page is the lab's own, and its data are the lab's own answers, kept by their path in scripts that the page loads
when it needs them: from a disk a browser loads scripts, and nothing else.
"""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode

from starlette.requests import Request
from starlette.routing import Match, Route

from grouprl.lab.report.page import STATIC, standalone
from grouprl.lab.report.write import Answers, encoded, page_answers, rounded
from grouprl.lab.server import create_app
from grouprl.record.files import json_text
from grouprl.types import UserError

_PAGES = ("runs", "run", "groups", "compare", "step", "group", "ppo")
_WORDS = ("presets", "stages", "predictions", "group", "ppo_grpo")
_BYTES = 2_600_000  # of a run's groups and tokens, as they are written
_BINARY = range(2, 9)  # sizes of groups of which every choice of rewards 0 and 1 is held


class _Asked:
    """The answers of a lab by their path, without a server."""

    def __init__(self, root: Path) -> None:
        self._routes = [route for route in create_app(root).routes if isinstance(route, Route)]

    def __getitem__(self, path: str) -> Any:
        address, _, query = path.partition("?")
        scope = {"type": "http", "method": "GET", "headers": [], "query_string": query.encode()}
        scope["path"] = unquote(f"/api/{address}")
        for route in self._routes:
            match, parameters = route.matches(scope)
            if match is Match.FULL:
                return json.loads(route.endpoint(Request({**scope, **parameters})).body)
        raise KeyError(path)


def write_site(root: Path, out: Path) -> Path:
    """Writes the lab's pages with all runs of a folder, and returns the path of their index.html.

    Of each run the site has everything but what does not fit in 2.6 MB: groups and tokens of the first and last step
    and of every tenth come first. Runs can be looked at and compared there, not started.

    Args:
        root: folder of the runs.
        out: a new folder. It appears when it is complete, or not at all.

    Raises:
        UserError: `out` exists or cannot be written; there is no run in `root`, or one is damaged.
    """
    if out.exists():
        raise UserError(f"{out}: expected a new folder, but it exists: remove it, or give another name")
    lab = _Asked(root)
    if not (runs := lab["runs"]["runs"]):
        raise UserError(f"{root}: expected a folder of runs, found none: train one, or name another folder")
    words = {f"static/{name}.json": json.loads((STATIC / f"{name}.json").read_text("utf-8")) for name in _WORDS}
    answers = {**page_answers(), **words, "runs": {"runs": runs}, "session": {"token": "", "root": "Recorded runs"}}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent) as unfinished:
            folder = Path(unfinished) / out.name
            (folder / "data").mkdir(parents=True)
            parts = {"explain/": _write_part(folder, "explain", _typed(lab, words))}
            for number, run in enumerate(runs):
                parts |= _write_run(folder, lab, run["id"], str(number))
            data = {"site": True, "answers": answers, "parts": parts}
            (folder / "index.html").write_text(standalone("GroupRL", data, _PAGES, parts=True), encoding="utf-8")
            shutil.move(folder, out)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error}): make room, or give another name") from None
    return out / "index.html"


def _write_part(folder: Path, name: str, answers: Answers) -> str:
    """Writes answers as a script that gives them to the page; returns its address."""
    packed = base64.b64encode(gzip.compress(json_text(answers).encode(), mtime=0)).decode()
    (folder / "data" / f"{name}.js").write_text(f'held("{packed}")\n', encoding="utf-8")
    return f"data/{name}.js"


def _typed(lab: _Asked, words: Mapping[str, Any]) -> Answers:
    """What the explainers answer to the examples, to every small group of rewards 0 and 1, and to known models."""
    presets: Mapping[str, list[float]] = words["static/presets.json"]
    names = [entry["name"] for entry in lab["explain/algorithms"]["algorithms"]]
    usual = "grpo,dr_grpo,rloo,reinforce"
    examples = [",".join(f"{reward:g}" for reward in rewards) for rewards in presets.values()]
    binary = [",".join(rewards) for size in _BINARY for rewards in itertools.product("01", repeat=size)]
    paths = ["code", "predictions", "algorithms", "kl"]
    paths += [f"group?rewards={rewards}&algorithm={name}" for rewards in examples for name in names]
    paths += [f"group?rewards={rewards}" for rewards in examples]
    paths += [f"advantages?rewards={rewards}&algorithms={usual}" for rewards in dict.fromkeys([*examples, *binary])]
    paths += [f"pass_rate?group_size={size}&algorithms=grpo,dr_grpo,rloo" for size in range(2, 17)]
    for name in (name for name in names if name not in usual.split(",")):
        paths += [f"advantages?rewards={rewards}&algorithms={usual},{name}" for rewards in examples]
        sizes = {len(rewards) for rewards in presets.values()}
        paths += [f"pass_rate?group_size={size}&algorithms=grpo,dr_grpo,rloo,{name}" for size in sizes]
    fields = words["static/ppo_grpo.json"]["fields"]
    usual_memory = {"reward_model": fields["judges"][0][0], **{name: value for name, _, value in fields["numbers"]}}
    usual_memory |= {name: pairs[0][0] for name, _, pairs in fields["choices"]}
    memory = "&".join(f"{name}={value}" for name, value in usual_memory.items() if value != "")
    models = lab[f"explain/memory?{memory}"]["models"]
    paths += [f"memory?{memory}", *(f"memory?model={name}&{memory}" for name in models)]
    answers = {f"explain/{path}": rounded(lab[f"explain/{path}"]) for path in paths}
    return answers | _objectives(lab, [answer for path, answer in answers.items() if path.startswith("explain/group?")])


def _objectives(lab: _Asked, walks: Sequence[Mapping[str, Any]]) -> Answers:
    """The objective by the ratio for each advantage of these walk-throughs, under their own settings."""
    answers: Answers = {}
    for walk in walks:
        settings = walk["algorithm"]
        names = {"sapo": ("tau_pos", "tau_neg"), "plain": ()}.get(settings["surrogate"], ("clip_low", "clip_high"))
        fields = {name: settings[name] for name in ("surrogate", *names)}
        if settings["surrogate"] == "clip":
            fields["dual_clip"] = settings["dual_clip"]
        written = {name: f"{value:.7g}" if isinstance(value, float) else value for name, value in fields.items()}
        query = "".join(f"&{name}={value}" for name, value in written.items() if value is not None)
        moved = {value for value in walk["stages"]["advantages"]["completions"] if value}
        for advantage in moved or {1, -1}:
            path = f"explain/objective?advantage={advantage:.7g}{query}"
            answers[path] = rounded(lab[path])
    return answers


def _write_run(folder: Path, lab: _Asked, run: str, number: str) -> dict[str, str]:
    """Writes the answers about a run; returns the script of each by the beginning of their paths."""
    path = f"runs/{encoded(run)}"
    answers: Answers = {name: lab[name] for name in (path, f"{path}/series", f"{path}/invalid", f"{path}/jumps")}
    query = urlencode({"run": run})
    answers[f"explain/steps?{query}"] = lab[f"explain/steps?{query}"]
    watched = answers[f"explain/steps?{query}"]["steps"]
    for step in watched:
        name = f"explain/group?{query}&step={step}"
        answers[name] = rounded(lab[name])
        answers |= _objectives(lab, [answers[name]])
    parts = {path: f"data/{number}.js", f"explain/group?{query}&": f"data/{number}.js"}
    parts[f"explain/steps?{query}"] = f"data/{number}.js"
    newest = lab[f"{path}/groups"]
    if newest["steps"] is not None:
        first, last = newest["steps"]
        left, held = _BYTES, []
        for step in _by_worth(first, last, watched):
            file = _write_part(folder, f"{number}-{step}", _groups(lab, path, step))
            size = (folder / file).stat().st_size
            if size > left:
                (folder / file).unlink()
                continue
            left -= size
            held.append(step)
            parts |= {f"{path}/{kind}/{step}/": file for kind in ("groups", "completions", "pushes")}
            answers[f"{path}/groups?step={step}"] = {**lab[f"{path}/groups?step={step}"]}
        answers[f"{path}/groups"] = {**newest, "held": sorted(held)}
        for step in held:
            answers[f"{path}/groups?step={step}"]["held"] = sorted(held)
    _write_part(folder, number, answers)
    return parts


def _by_worth(first: int, last: int, watched: list[int]) -> Iterator[int]:
    """The steps of a run, each once: the first and the last, those whose walk-through is recorded, then the others."""
    middle = range(first, last + 1)
    return iter(dict.fromkeys((first, last, *(step for step in watched if step in middle), *middle)))


def _groups(lab: _Asked, path: str, step: int) -> Answers:
    """The groups of a step, the tokens of their completions, and what algorithms push on a group that was watched."""
    answers: Answers = {}
    listed = lab[f"{path}/groups?step={step}"]
    for row in listed["groups"]:
        position = f"{step}/{row['group_index']}"
        group = answers[f"{path}/groups/{position}"] = rounded(lab[f"{path}/groups/{position}"])
        for completion in group["completions"]:
            name = f"{path}/completions/{position}/{completion['index']}"
            answers[name] = rounded(lab[name])
        if group["watched"]:
            answers[f"{path}/pushes/{position}"] = rounded(lab[f"{path}/pushes/{position}"])
    return answers
