"""A run directory or a file that somebody sent: no code past the gate, no link followed, no pipe opened, no bomb."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from grouprl.config.code_files import read_code
from grouprl.config.run import ScoringConfig
from grouprl.lab.runs import NoSuchRun, Runs
from grouprl.models.load import load_model, load_tokenizer
from grouprl.models.manifest import MANIFEST
from grouprl.record.files import append_line, atomic_directory, atomic_write_text
from grouprl.record.layout import WRITTEN_BY_A_RUN, RunDirectory, lock_directory, refuse_links
from grouprl.record.read import read_json_lines, read_rollouts
from grouprl.rewards.workers.pool import RewardPool
from grouprl.tasks.files import read_rows
from grouprl.types import UserError
from small_runs import ROWS, grouprl, received, small_settings, write_rows

REWARD = "import near\ndef f(completions, **columns):\n    return [near.ONE] * len(completions)\n"
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Path:
    folder = tmp_path_factory.mktemp("received")
    (folder / "mine.py").write_text(REWARD)
    (folder / "near.py").write_text("ONE = 1.0\n")
    rows = write_rows(folder / "rows.jsonl", ROWS)
    task = {"name": "jsonl", "path": str(rows), "arguments": {"verifier": "think_format"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "their state"))
        brief = {"task": task, "steps": 1, "evaluation": {"problems": 1, "samples": 0}}
        given = [f"--model={tiny}", "--reward", f"{folder}/mine.py:f", *small_settings(folder, **brief)]
        ended = grouprl("train", *given)
    assert ended.code == 0, ended.text
    return folder


@pytest.fixture
def got(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run in a folder of another user, and beside it a file that must not change."""
    (tmp_path / "victim").write_text("precious\n")
    return received(made, tmp_path / "got", monkeypatch)


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    """A model's folder, to be changed."""
    return shutil.copytree(tiny, tmp_path / "model")


def verbs(got: Path) -> list[list[str]]:
    trust = ["--trust-code", str(got / "mine.py"), "--trust-code", str(got / "near.py")]
    return [
        ["report", str(got / "run")],
        ["export", str(got / "run")],
        ["sample", str(got / "run"), "rollout.max_tokens=2", *trust],
        ["train", "--resume", "name=run", f"runs_dir={got}", "steps=2", *trust],
    ]


# Files: links, pipes, devices

LEFT = [f"{name}.tmp" for name in ("config.yaml", "summary.json", "report.html", "rollouts.parquet", "notes.json")]
NAMES = [*WRITTEN_BY_A_RUN, *LEFT, "run.lock", "notes.json", "rollouts.sqlite-wal", "rollouts.sqlite-journal"]
NAMES += ["trackers/ids.json", "checkpoints/step-000001", "checkpoints/step-000001/config.json"]
NAMES += ["checkpoints/step-000001/trainer/optimizer.safetensors", "checkpoints/step-000002.tmp", "console.txt"]


def replace(path: Path, kind: str, victim: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero" if kind == "device" else victim)


@pytest.mark.parametrize("kind", ["link", "pipe", "device"])
@pytest.mark.parametrize("writing", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["reads", "writes"])
def test_nothing_that_is_no_file_of_the_run_is_opened(got: Path, tmp_path: Path, kind: str, writing: bool) -> None:
    for number, name in enumerate(NAMES):
        kept, path = tmp_path / "kept", got / "run" / name
        shutil.copytree(got / "run", kept)
        replace(path, kind, tmp_path / "victim")
        # A report and an export read a run through the same check: one of them for each name.
        for verb in verbs(got)[2:] if writing or name == "run.lock" else [verbs(got)[number % 2]]:
            ended = grouprl(*verb)
            assert ended.code == 2, (name, verb, ended.text)
            assert "Traceback" not in ended.text
        assert (tmp_path / "victim").read_text() == "precious\n", name
        shutil.rmtree(got / "run")
        kept.rename(got / "run")


def test_writing_follows_no_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a", "a.tmp", "b", "run.lock", "c.tmp"):
        (folder / name).symlink_to(tmp_path if name == "c.tmp" else victim)
    atomic_write_text(folder / "a", "new")
    assert (folder / "a").read_text() == "new"
    with pytest.raises(UserError, match="got a link"):
        append_line(folder / "b", "more")
    with pytest.raises(UserError, match="link"):
        lock_directory(folder)
    with atomic_directory(folder / "c") as made:
        (made / "victim").write_text("new")
    assert victim.read_text() == "precious\n"
    assert (folder / "c" / "victim").read_text() == "new"


def test_page_and_command_line_have_one_rule_for_links(got: Path) -> None:
    other = shutil.copytree(got / "run", got / "other")
    (other / "notes.json").symlink_to(got / "run" / "metrics.jsonl")
    assert "found a link that leads out of it" in grouprl("report", other).text
    with pytest.raises(NoSuchRun):
        Runs(got).folder("other")
    (other / "notes.json").unlink()
    (other / "checkpoints" / "newest").symlink_to("step-000001")  # inside the run
    (got / "named").symlink_to(other)  # the run itself
    assert grouprl("report", got / "named").code == 0


def test_a_resume_removes_whatever_has_the_name_of_an_unfinished_save(got: Path) -> None:
    saves, resume = got / "run" / "checkpoints", verbs(got)[3]
    (saves / "step-000009.tmp").write_text("")
    (saves / "step-000008.old").symlink_to("step-000001")
    ended = grouprl(*resume)
    assert ended.code == 0, ended.text
    assert [path.name for path in saves.iterdir() if path.suffix] == []
    assert (saves / "step-000001" / "config.json").is_file()
    (got / "run" / "own.tmp").mkdir()  # a user's own folder
    ended = grouprl(*resume)
    assert (ended.code, (got / "run" / "own.tmp").is_dir()) == (0, True), ended.text


def test_groups_that_were_sampled_ahead_are_as_large_as_a_run_makes_them(got: Path) -> None:
    ahead = RunDirectory(got / "run").checkpoint(1).ahead
    ahead.touch()
    os.truncate(ahead, 200 << 20)
    refuse_links(got / "run")


def test_a_received_runs_dir_moves_nothing(got: Path, tmp_path: Path) -> None:
    config = got / "run" / "config.yaml"
    config.write_text(config.read_text().replace(f"runs_dir: {got}", f"runs_dir: {tmp_path / 'elsewhere'}"))
    assert "elsewhere" in config.read_text()
    ended = grouprl("train", config, "name=more", *verbs(got)[2][3:])
    assert ended.code == 0, ended.text
    assert (got / "more" / "config.yaml").exists()
    assert not (tmp_path / "elsewhere").exists()


# Code

EVIL = "raise SystemExit('other code ran')\n"


def compiled(source: Path, other: str) -> None:
    """Puts bytecode of other code where Python looks for that of a source, to be used unchecked."""
    text = source.read_text()
    source.write_text(other)
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    source.write_text(text)


@pytest.mark.parametrize("name", ["mine.py", "near.py"])
def test_bytecode_beside_a_reward_is_not_run(made: Path, tmp_path: Path, name: str) -> None:
    for file in ("mine.py", "near.py"):
        shutil.copy(made / file, tmp_path / file)
    compiled(tmp_path / name, EVIL)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.pyc")}
    with RewardPool({"f": (str(tmp_path / "mine.py"), "f", {})}, ScoringConfig(workers=1)) as pool:
        assert list(pool.signatures()) == ["f"]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.pyc")} == before


def test_a_file_beside_a_reward_replaces_no_library_and_none_is_imported_unnamed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import fractions, yaml, pkg.inner\nfrom pkg import other\nfrom near import ONE\n"
        "def f(completions, **columns):\n    return [ONE + pkg.inner.TWO + other.THREE] * len(completions)\n"
    )
    for name in ("fractions", "yaml", "sitecustomize", "typing", "json"):
        (tmp_path / f"{name}.py").write_text(EVIL)
    (tmp_path / "near.py").write_text("ONE = 1.0\n")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "inner.py").write_text("from .other import THREE\nTWO = 2.0\n")
    (tmp_path / "pkg" / "other.py").write_text("THREE = 3.0\n")
    found = {str(Path(path).relative_to(tmp_path)) for path in read_code(tmp_path / "mine.py")}
    assert found == {"mine.py", "near.py", "pkg/__init__.py", "pkg/inner.py", "pkg/other.py"}
    with RewardPool({"f": (str(tmp_path / "mine.py"), "f", {})}, ScoringConfig(workers=1)) as pool:
        assert list(pool.signatures()) == ["f"]


def test_a_module_that_trusted_code_imports_is_code_too(got: Path) -> None:
    sample = ["sample", got / "run", "rollout.max_tokens=2", "--trust-code", got / "mine.py"]
    refused = grouprl(*sample)
    assert refused.code == 2
    assert f"names the code file {got / 'near.py'}, which you have not run here" in refused.text
    assert grouprl(*sample, "--trust-code", got / "near.py").code == 0


def test_code_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.py"
    path.write_text("x = [" + "0," * 600_000 + "]\n")  # its tree would take 500 MB
    with pytest.raises(UserError, match="expected a file of at most 1048576 bytes"):
        read_code(path)
    monkeypatch.setattr("grouprl.config.code_files._MOST_BYTES", 100)
    path.write_text("import near\n")
    (tmp_path / "near.py").write_text("#" * 100)
    with pytest.raises(UserError, match="100 bytes in all"):
        read_code(path)


def test_a_module_of_the_current_folder_is_no_library(tmp_path: Path) -> None:
    for name in ("json", "typing", "yaml", "torch"):
        (tmp_path / f"{name}.py").write_text(EVIL)
    ended = subprocess.run([sys.executable, "-m", "grouprl", "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout[:8]) == (0, "grouprl ")


# Small files that become large


def changed(run: Path, *statements: str) -> None:
    with closing(sqlite3.connect(run / "rollouts.sqlite")) as database, database:
        for statement in statements:
            database.execute(statement)


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
PROGRAMS = [
    "CREATE TRIGGER t AFTER DELETE ON completions BEGIN INSERT INTO problems SELECT 1, 2, 3, 4, 5; END",
    f"CREATE VIEW mine AS {ENDLESS}",
    "ALTER TABLE completions ADD COLUMN more AS (zeroblob(900000000))",
    "CREATE VIRTUAL TABLE texts USING fts5(body)",
    "ALTER TABLE completions ADD COLUMN more TEXT CHECK (text NOT LIKE '%a%a%a%a%a%a%a%b')",
    "CREATE INDEX slow ON completions (text LIKE '%a%a%a%a%a%a%a%b')",
    "CREATE INDEX some ON completions (step) WHERE text LIKE '%a%a%a%a%a%a%a%b'",
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_database_that_computes_is_refused(got: Path, program: str) -> None:
    changed(got / "run", program)
    ended = grouprl(*verbs(got)[3 if program == PROGRAMS[0] else 1])
    assert (ended.code, "expected the tables and views of a run" in ended.text) == (2, True), ended.text


def test_an_index_of_columns_is_no_program(got: Path) -> None:
    changed(got / "run", "CREATE INDEX mine ON completions (problem_id, step)")
    assert grouprl("export", got / "run").code == 0


def test_a_value_of_a_gigabyte_is_refused(got: Path) -> None:
    changed(got / "run", "UPDATE completions SET text = CAST(zeroblob(70000000) AS TEXT) WHERE completion_index = 0")
    ended = grouprl("report", got / "run")
    assert (ended.code, "too big" in ended.text) == (2, True), ended.text


def test_a_journal_deletes_no_other_file(got: Path, tmp_path: Path) -> None:
    run, victim = got / "run", tmp_path / "victim"
    with closing(sqlite3.connect(run / "rollouts.sqlite")) as writer:
        writer.execute("PRAGMA cache_size = 1")
        writer.execute("UPDATE completions SET text = text || 'x'")
        journal = (run / "rollouts.sqlite-journal").read_bytes()
        database = (run / "rollouts.sqlite").read_bytes()
        writer.rollback()
    name = str(victim).encode()
    page = struct.unpack(">I", journal[24:28])[0]
    head = struct.pack(">I", 0x40000000 // page + 1)
    ending = head + name + struct.pack(">II", len(name), sum(name)) + bytes.fromhex("d9d505f920a163d7")
    (run / "rollouts.sqlite").write_bytes(database)
    (run / "rollouts.sqlite-journal").write_bytes(journal + ending)
    with pytest.raises(UserError, match="journal of one database"):
        read_rollouts(run, 1)
    assert victim.read_text() == "precious\n"


def test_a_configuration_has_limits(tmp_path: Path, got: Path) -> None:
    large = tmp_path / "large.yaml"
    large.write_text("name: a\n# " + "x" * 300_000 + "\n")
    assert "expected a file of at most 262144 bytes" in grouprl("train", large).text
    many = [{"name": f"r{number}", "path": str(got / "mine.py")} for number in range(101)]
    assert "at most 100 items" in grouprl("train", "demo", f"rewards={json.dumps(many)}").text
    os.mkfifo(tmp_path / "pipe.yaml")
    for verb in ("train", "sft", "import-config"):
        ended = grouprl(verb, tmp_path / "pipe.yaml")
        assert (ended.code, "expected a file, got a folder, a pipe" in ended.text) == (2, True), ended.text
    assert grouprl("compare", tmp_path / "pipe.yaml").code == 2


def test_lines_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grouprl.record.read._MOST_LINES", 1000)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n' * 1001)
    with pytest.raises(UserError, match="at most 1000 lines"):
        read_json_lines(tmp_path / "metrics.jsonl")


def edit(path: Path, **changes: Any) -> None:
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**found, **changes}))


def growing(times: int) -> dict[str, Any]:
    doubled = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    return {"normalizer": {"type": "Sequence", "normalizers": [doubled] * times}}


def nested(levels: int) -> Any:
    return {"a": nested(levels - 1)} if levels else 1


MODELS = [
    ("config.json", {"more": nested(400)}, "at most 100 levels"),
    ("tokenizer.json", {"more": nested(400)}, "at most 100 levels"),
    ("config.json", {"num_hidden_layers": 10_000_000}, "num_hidden_layers: expected at most 4096"),
    ("config.json", {"num_labels": 1 << 40}, "num_labels: expected at most 4096"),
    ("model.safetensors.index.json", {"metadata": {}, "weight_map": {"a": "/dev/zero"}}, "expected weights in this"),
    ("model.safetensors.index.json", {"metadata": {}, "weight_map": {"a": "../x"}}, "expected weights in this folder"),
    ("config.json", {"text_config": {"vocab_size": 1 << 40}}, "vocab_size: expected at most"),
    ("tokenizer.json", growing(30), "and post_processor: expected steps"),
    ("tokenizer.json", {"added_tokens": [{"id": 5}] * 100_001}, "at most 100000 added tokens"),
    ("tokenizer_config.json", {"added_tokens_decoder": dict.fromkeys(map(str, range(100_001)), 1)}, "added tokens"),
]


@pytest.mark.parametrize(
    ("name", "changes", "said", "hub"), [*((*model, False) for model in MODELS), (*MODELS[0], True)]
)
def test_a_model_that_asks_for_more_than_any_has(
    tmp_path: Path,
    copy: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    changes: dict[str, Any],
    said: str,
    hub: bool,
) -> None:
    model = copy
    edit(model / name, **changes)
    path = str(model)
    if hub:  # what a download leaves
        path, repository = "someone/model", tmp_path / "models--someone--model"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text("a" * 40)
        shutil.copytree(model, repository / "snapshots" / ("a" * 40))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=said):
        load_tokenizer(path)
    with pytest.raises(UserError, match=said):
        load_model(path, device=torch.device("cpu"))


def test_a_model_that_asks_for_more_than_its_files_have(copy: Path) -> None:
    for changes in ({"vocab_size": 1 << 23}, {"intermediate_size": 1 << 20}, {"hidden_size": 1 << 16}):
        before = (copy / "config.json").read_text()
        edit(copy / "config.json", **changes)
        with pytest.raises(
            UserError, match=r"expected a configuration of as many weights as its files, got one of \d+"
        ):
            load_model(str(copy), device=torch.device("cpu"))
        (copy / "config.json").write_text(before)


def test_a_pipe_in_a_model_is_not_waited_for(copy: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json", "chat_template.jinja", "extra/x.jinja"):
        kept = shutil.copytree(copy, tmp_path / f"pipe {name[:5]}")
        replace(kept / name, "pipe", tmp_path)
        with pytest.raises(UserError, match="got a folder, a pipe or a device"):
            load_tokenizer(str(kept))


def test_a_model_whose_files_are_links_loads_and_one_with_a_manifest_of_many_levels_does_not(
    copy: Path, tmp_path: Path
) -> None:
    linked = tmp_path / "snapshot"
    linked.mkdir()
    for file in copy.iterdir():
        (linked / file.name).symlink_to(file)
    assert load_tokenizer(str(linked)).eos_token_id is not None
    (copy / MANIFEST).write_text('{"files": ' + "[" * 100_000)
    with pytest.raises(UserError, match="expected a manifest"):
        load_model(str(copy), device=torch.device("cpu"))


def test_a_parquet_file_that_expands_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("grouprl.tasks.files._MOST_EXPANDED", 16 << 20)
    path = tmp_path / "bomb.parquet"
    parquet.write_table(pyarrow.table({"text": ["x" * 100_000] * 1000}), path, compression="zstd")
    assert path.stat().st_size < 1 << 20
    with pytest.raises(UserError, match="expected at most"):
        read_rows(str(path))
