"""Every check of `grouprl selftest` passes on a tiny model, and fails in its own row when what it holds is broken."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from grouprl import Trainer
from grouprl.forward.layouts import TreeLayout
from grouprl.learner.runner import PackRunner
from grouprl.record.layout import RunDirectory
from grouprl.rollout import NativeEngine
from grouprl.tools.proof import checks, selftest
from small_runs import LETTERS, ROWS, Ended, grouprl, small_config, write_rows

Patch = pytest.MonkeyPatch
PACKED = {"packed = padded rows, log-probs", "packed = padded rows, gradient"}
KILLED = "killed and resumed = uninterrupted"


@pytest.fixture(scope="module")
def settings(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("selftest")
    rows = write_rows(folder / "rows.jsonl", [{"prompt": row["prompt"], "answer": "7"} for row in ROWS])
    (folder / "mine.py").write_text(
        "def letters(completions, **columns):\n    return [sum(map(str.islower, str(c))) / 100 for c in completions]\n"
    )
    return [
        *(f"model.path={tiny}", "task.name=jsonl", f"task.path={rows}", "rollout.max_tokens=16", "model.threads=1"),
        *("learner.learning_rate=0.01", f'rewards=[{{"name": "letters", "path": "{folder}/mine.py"}}]'),
    ]


def asked(settings: list[str], monkeypatch: Patch) -> Ended:
    """Everything but the run that is killed, which takes the seconds of three processes."""
    monkeypatch.setattr(selftest, "_killed_and_resumed", lambda config: checks.Check(KILLED, 0, 0))
    monkeypatch.setenv("COLUMNS", "200")
    return grouprl("selftest", *settings)


def failed(ended: Ended) -> set[str]:
    rows = re.findall(r"^(.+?)  +\S+ +\S+ +(pass|FAIL) ", ended.out, re.MULTILINE)
    assert len(rows) == 10, ended.out
    return {name for name, mark in rows if mark == "FAIL"}


@pytest.mark.parametrize("changes", [("algorithm=ppo",), ("algorithm=gspo", "model.lora.rank=2")])
def test_a_sound_model_passes(settings: list[str], monkeypatch: Patch, changes: tuple[str, ...]):
    ended = asked([*settings, *changes], monkeypatch)
    assert (failed(ended), ended.code) == (set(), 0)
    assert "10 checks, none failed" in ended.text


def test_rounded_weights_are_refused_in_a_sentence(settings: list[str], monkeypatch: Patch):
    ended = asked([*settings, "model.lora=null", "model.weights=bfloat16", "model.dtype=bfloat16"], monkeypatch)
    assert ended.code == 2
    assert "model.weights: expected float32, with which the checks compute exactly, got bfloat16" in ended.text


def advantages(monkeypatch: Patch) -> None:
    right = checks.group_advantages
    monkeypatch.setattr(checks, "group_advantages", lambda *a, **k: 1.01 * right(*a, **k))


class Moved(TreeLayout):
    """A layout whose completions begin one position too late."""

    def __init__(self, layout: Any) -> None:
        self.__dict__.update(layout.__dict__)
        _, branch_S, _ = layout._tokens
        self.position_ids_S = layout.position_ids_S + (branch_S > 0)


def positions(monkeypatch: Patch) -> None:
    right = checks.pack_forward
    monkeypatch.setattr(
        checks,
        "pack_forward",
        lambda model, pack, *a, **k: right(model, replace(pack, layout=Moved(pack.layout)), *a, **k),
    )


def leak(monkeypatch: Patch) -> None:
    """Completions that share a prompt see each other, a little."""
    right = checks.pack_forward

    def wrong(model: Any, pack: Any, *rest: Any, **options: Any) -> Any:
        found = right(model, pack, *rest, **options)
        return found if len(pack.rows) == 1 else replace(found, logprobs_C=found.logprobs_C * 1.01)

    monkeypatch.setattr(checks, "pack_forward", wrong)


def lost_pack(monkeypatch: Patch) -> None:
    right = PackRunner.packs

    def wrong(self: PackRunner, *arguments: Any) -> Any:
        packs = right(self, *arguments)
        return packs[:-1] if len(packs) > 1 else packs

    monkeypatch.setattr(PackRunner, "packs", wrong)


def sampled(field: str) -> Callable[[Patch], None]:
    def broken(monkeypatch: Patch) -> None:
        right = NativeEngine.generate

        def wrong(self: NativeEngine, *arguments: Any, **options: Any) -> Any:
            def lower(one: Any) -> Any:
                return replace(one, **{field: tuple(p - 0.01 for p in getattr(one, field))})

            groups = right(self, *arguments, **options)
            return [replace(group, completions=tuple(map(lower, group.completions))) for group in groups]

        monkeypatch.setattr(NativeEngine, "generate", wrong)

    return broken


def merge(monkeypatch: Patch) -> None:
    from peft.tuners.lora.layer import Linear

    right = Linear.merge

    def wrong(self: Any, *arguments: Any) -> None:
        right(self, *arguments)
        with torch.no_grad():
            self.base_layer.weight.mul_(1.001)

    monkeypatch.setattr(Linear, "merge", wrong)


def saved(monkeypatch: Patch) -> None:
    right = checks.save_model

    def wrong(model: Any, tokenizer: Any, folder: Path) -> None:
        right(model, tokenizer, folder)
        tensors = load_file(folder / "model.safetensors")
        tensors["model.norm.weight"] = tensors["model.norm.weight"].bfloat16().float()
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    monkeypatch.setattr(checks, "save_model", wrong)


BROKEN = [
    (advantages, {"exact policy gradient, listed policy"}),
    (positions, {*PACKED, "sampler = learner, largest gap"}),
    (leak, {*PACKED, "shared prompt = own prompts, log-probs", "sampler = learner, largest gap"}),
    (lost_pack, {"any micro-batches, gradient"}),
    (sampled("logprobs"), {"sampler = learner, largest gap"}),
    (sampled("plain_logprobs"), {"sampler = plain forward, largest gap"}),
    (merge, {"LoRA merged = unmerged, log-probs"}),
    (saved, {"saved = reloaded"}),
]


@pytest.mark.parametrize(("broken", "rows"), BROKEN)
def test_a_broken_part_fails(settings: list[str], monkeypatch: Patch, broken: Callable[[Patch], None], rows: set[str]):
    broken(monkeypatch)
    ended = asked(settings, monkeypatch)
    assert failed(ended) == rows
    assert ended.code == 1


def test_runs_that_differ_in_a_step_or_a_weight_are_counted(tiny: Path, tmp_path: Path):
    def made(name: str, **changes: Any) -> RunDirectory:
        small = {"steps": 3, "evaluation": {"problems": 1, "samples": 0}, "checkpoint": {"every": 1, "keep": 9}}
        config = small_config(tmp_path, name, **small, **changes)
        return RunDirectory(Trainer(tiny, ROWS, [LETTERS], config=config).train().directory)

    one, other = made("one"), made("other", learner={"learning_rate": 0.0101})
    same = RunDirectory(Path(shutil.copytree(one.path, tmp_path / "same")))
    assert selftest._different(one, same) == 0
    assert selftest._different(one, other) > 1  # two checkpoints and a step, at least


@pytest.mark.slow
def test_a_killed_run_ends_as_the_whole_one_unless_its_resume_differs(settings: list[str], monkeypatch: Patch):
    monkeypatch.setenv("COLUMNS", "200")
    ended = grouprl("selftest", *settings)
    assert (failed(ended), ended.code) == (set(), 0)
    assert re.search(r"killed after step [2-5] of 6", ended.text)
    right = selftest.start_run

    def wrong(*arguments: Any, resume: bool = False) -> Any:
        if resume:  # torch's own operations round otherwise
            monkeypatch.setitem(os.environ, "GROUPRL_KERNELS", "off")
        return right(*arguments, resume=resume)

    monkeypatch.setattr(selftest, "start_run", wrong)
    ended = grouprl("selftest", *settings)
    assert (failed(ended), ended.code) == ({KILLED}, 1)


@pytest.mark.slow
def test_a_run_that_cannot_go_on_is_a_failure_with_its_reason(settings: list[str], monkeypatch: Patch):
    def broken(*arguments: Any, resume: bool = False) -> Any:
        return right(arguments[0], [*arguments[1], "rollout.group_size=0"] if resume else arguments[1], arguments[2])

    monkeypatch.setenv("COLUMNS", "300")
    right = selftest.start_run
    monkeypatch.setattr(selftest, "start_run", broken)
    ended = grouprl("selftest", *settings)
    assert (failed(ended), ended.code) == ({KILLED}, 1)
    assert "the run failed" in ended.text
