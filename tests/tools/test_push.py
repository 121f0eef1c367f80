"""Publishing a checkpoint with the hub's own library, on a server that keeps what it gets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants

from grouprl import Trainer, UserError
from grouprl.models.load import fingerprint, load_model
from grouprl.record.read import read_run
from grouprl.record.write import RunRecord
from grouprl.tools.push import model_card, push
from hub_server import HubServer
from small_runs import LETTERS, ROWS, grouprl, small_config


@pytest.fixture(scope="module")
def run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = small_config(tmp_path_factory.mktemp("pushed"), steps=1)
    return Trainer(tiny, ROWS, [LETTERS], config=config).train().directory


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", "right")
        yield server


def test_the_model_is_uploaded_and_nothing_else_of_the_run(hub: HubServer, run: Path, tmp_path: Path) -> None:
    ended, again = grouprl("push", run, "owner/name"), grouprl("push", run, "owner/name", "--public")
    assert (ended.code, again.code) == (0, 0), ended.text + again.text
    assert ended.out.strip().startswith(f"Model: {hub.address}/owner/name")
    assert hub.repositories == {"owner/name": True}
    assert hub.messages == ["step-000001 of a GroupRL run", "Model card"] * 2
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= {*hub.files}
    assert not [name for name in hub.files if "trainer" in name or "manifest" in name]
    for name, content in hub.files.items():
        (tmp_path / name).write_bytes(content)
    got, own = (load_model(str(one), device=torch.device("cpu")) for one in (tmp_path, newest(run)))
    assert fingerprint(got) == fingerprint(own)
    assert str(run.parent) not in hub.files["README.md"].decode()


def test_a_name_alone_is_of_the_own_account(hub: HubServer, run: Path) -> None:
    assert push(newest(run), "name").repo_url.repo_id == "me/name"
    assert hub.repositories == {"me/name": True}
    with pytest.raises(UserError, match="expected OWNER/NAME"):
        push(newest(run), "a/b/c")


def newest(run: Path) -> Path:
    return run / "checkpoints" / "step-000001"


@pytest.mark.parametrize(
    ("constant", "value", "name", "said"),
    [
        ("ENDPOINT", None, "owner/name", "401"),
        ("ENDPOINT", "http://127.0.0.1:9", "owner/name", "ConnectError"),
        ("HF_HUB_OFFLINE", True, "owner/name", "OfflineModeIsEnabled"),
        ("ENDPOINT", None, "a b/c", "HFValidationError"),
    ],
)
def test_why_an_upload_failed_is_a_sentence(
    hub: HubServer, run: Path, monkeypatch: pytest.MonkeyPatch, constant: str, value: Any, name: str, said: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", "wrong")
    if value is not None:
        monkeypatch.setattr(constants, constant, value)
    ended = grouprl("push", newest(run), name)
    assert (ended.code, hub.files) == (2, {})
    assert f"error: {name}: expected to upload" in ended.text
    assert said in ended.text


def test_the_card_names_the_run_and_a_folder_without_a_model_is_refused(run: Path) -> None:
    text = model_card(read_run(run), "step-000001")
    assert text.startswith("---\nlibrary_name: transformers\n")
    assert "- algorithm: grpo\n- task: list\n- steps: 1\n- seed: 0" in text
    assert "| training | mean reward | held-out problems |" in text  # the task has no verifier
    ended = grouprl("push", run.parent, "owner/name")
    assert (ended.code, "expected a model in Hugging Face layout" in ended.text) == (2, True)


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        (None, "greedy accuracy | held-out problems |\n|---|---|---|\n| before | 25.0% | 8 |\n| after | 75.0% | 8 |"),
        ("greedy_accuracy", "greedy accuracy | held-out problems |\n|---|---|---|\n| before | 25.0% | 8 |"),
        ("reward", "mean reward | held-out problems |\n|---|---|---|\n| before | -1.500 | 8 |\n| after | 2.000 | 8 |"),
    ],
)
def test_the_card_has_what_measures_the_run(tmp_path: Path, measure: str | None, expected: str) -> None:
    before = {"greedy_accuracy": 0.25, "reward": -1.5, "problems": 8}
    after = {"greedy_accuracy": 0.75, "reward": 2.0, "problems": 8}
    with RunRecord.create(tmp_path / "run", "seed: 0\n") as record:
        record.evaluation(0, before)
        record.summary({"before": before, "after": after, **({"measure": measure} if measure else {})})
    assert expected in model_card(read_run(tmp_path / "run"), "step-000001")
