"""The explaining pages as one file for the web: a group of the demo and examples, as the lab's routes answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request

from grouprl.lab.answers import Answer
from grouprl.lab.explain_memory import JUDGES
from grouprl.lab.explain_routes import USUAL, explanations
from grouprl.lab.explain_typed import COMPARING
from grouprl.lab.report.page import STATIC, standalone
from grouprl.record.files import atomic_write_text, json_text
from grouprl.tools.planner import SHAPES
from grouprl.types import UserError

LINKS = [["/step", "GRPO step by step"], ["/group", "One group"], ["/ppo", "PPO and GRPO"]]
_FILES = ("stages.json", "presets.json", "group.json", "ppo_grpo.json")
# The choices of the stage "ratio" in the order of the page; those that act on a surrogate.
_CHOICES = {
    "clip": ("clip_low", "clip_high", "dual_clip"),
    "cispo": ("clip_low", "clip_high"),
    "gmpo": ("clip_low", "clip_high"),
    "plain": (),
    "sapo": ("tau_pos", "tau_neg"),
}
_OTHERWISE = {"clip_low": 0.2, "clip_high": 0.2, "tau_pos": 1, "tau_neg": 1.05}  # where an algorithm has none


def write_explainer(folder: Path) -> Path:
    """Writes `index.html` into a folder: opened as a file or served by any web server, without a lab; gives its path.

    Raises:
        UserError: the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: expected a folder for index.html ({error}); name another") from None
    data = {"home": "/step", "links": LINKS, "answers": dict(baked_answers())}
    path = folder / "index.html"
    atomic_write_text(path, standalone("GRPO step by step · GroupRL", data, ("step", "group", "ppo")))
    return path


def presets() -> dict[str, list[float]]:
    """The rewards of the examples, by their names."""
    found: dict[str, list[float]] = json.loads((STATIC / "presets.json").read_text(encoding="utf-8"))
    return found


def baked_answers() -> Iterator[tuple[str, Any]]:
    """What a lab answers, by path and query: of a group that benchmarks/demo_figures.py keeps, and examples."""
    routes = explanations(None)
    for key, answer in json.loads(Path(__file__).with_name("example.json").read_text(encoding="utf-8")).items():
        yield key, answer
        yield from _curves(routes, answer) if key.startswith("explain/group?") else ()
    for name in _FILES:
        yield f"static/{name}", json.loads((STATIC / name).read_text(encoding="utf-8"))
    for name in ("algorithms", "kl", "noise", "code"):
        yield _asked(routes, name)
    for rewards in presets().values():
        listed = ",".join(_written(reward) for reward in rewards)
        yield _asked(routes, "advantages", rewards=listed, algorithms=",".join(USUAL))
        yield _asked(routes, "pass_rate", group_size=str(len(rewards)), algorithms=",".join(USUAL[:3]))
        yield _asked(routes, "group", rewards=listed)
        for algorithm in COMPARING:
            key, walk = _asked(routes, "group", rewards=listed, algorithm=algorithm)
            yield key, walk
            yield from _curves(routes, walk)
    yield _asked(routes, "memory", reward_model="none")
    for model, judge in product(SHAPES, JUDGES):
        yield _asked(routes, "memory", model=model, reward_model=judge)


def _curves(routes: dict[str, Answer], walk: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The objective for each advantage of a group, with its algorithm's own bounds."""
    algorithm, surrogate = walk["algorithm"], walk["algorithm"]["surrogate"]
    own = {name: _OTHERWISE.get(name) if (value := algorithm[name]) is None else value for name in _CHOICES[surrogate]}
    given = {name: _written(value) for name, value in own.items() if value is not None}
    for advantage in {value for value in walk["stages"]["advantages"]["completions"] if value} or {1.0, -1.0}:
        yield _asked(routes, "objective", advantage=_written(advantage), surrogate=surrogate, **given)


def _asked(routes: dict[str, Answer], name: str, **query: str) -> tuple[str, Any]:
    """A route's answer to this query, under the path that the page asks for."""
    text = urlencode(query, safe=",")
    request = Request({"type": "http", "query_string": text.encode(), "headers": []})
    return f"explain/{name}{'?' if text else ''}{text}", json.loads(json_text(routes[name](request)))


def _written(number: float) -> str:
    """As JavaScript's String() writes it."""
    if 1e-6 <= abs(number) < 1e21 or number == 0:
        return f"{Decimal(repr(number)):f}".removesuffix(".0")
    return repr(number).replace("e-0", "e-").replace("e+0", "e+")
