"""Published weights: whole versions, the newest two, and a reader that refuses any other bytes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grouprl.engines.publish import publish, publish_base
from grouprl.engines.published import PublishedWeights
from grouprl.models.adapters import add_adapter
from grouprl.models.load import load_model, load_tokenizer
from grouprl.types import UserError
from lora_models import CPU, LORA
from oracles import own_model


def published(tiny: Path, folder: Path, version: int = 3) -> PublishedWeights:
    return publish(load_model(str(tiny), device=CPU), load_tokenizer(str(tiny)), folder, version)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_version_is_a_model_that_others_load(tiny: Path, tmp_path: Path):
    weights = published(tiny, tmp_path)
    weights.check()
    loaded, expected = own_model(weights.folder).state_dict(), own_model(tiny).state_dict()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)
    assert all(torch.equal(value, expected[name]) for name, value in weights.tensors())
    load_model(str(weights.folder), device=CPU)  # checks the manifest
    assert weights.label.startswith("3-")


def test_the_newest_two_stay_and_those_of_a_run_that_went_back_go(tiny: Path, tmp_path: Path):
    for version in (1, 2, 5):
        published(tiny, tmp_path, version)
    assert names(tmp_path) == ["version-000002", "version-000005"]
    (tmp_path / "version-000006.tmp").mkdir()  # a kill left it
    first = published(tiny, tmp_path, 3)
    assert names(tmp_path) == ["version-000002", "version-000003"]
    assert published(tiny, tmp_path, 3) == first


def test_a_version_that_fails_leaves_the_one_before(tiny: Path, tmp_path: Path):
    weights, model = published(tiny, tmp_path), load_model(str(tiny), device=CPU)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(UserError, match="expected finite weights"):
        publish(model, load_tokenizer(str(tiny)), tmp_path, 4)
    assert names(tmp_path) == ["version-000003"]
    weights.check()


def test_other_bytes_and_other_versions_are_refused(tiny: Path, tmp_path: Path):
    weights = published(tiny, tmp_path / "a")
    with pytest.raises(UserError, match=r"expected published weights 4-\w{16}, got 3-\w{16}: check"):
        replace(weights, version=4).check()
    with pytest.raises(UserError, match=r"expected published weights 3-0000, got 3-\w{16}: check"):
        replace(weights, digest="0000").check()
    with pytest.raises(UserError, match=r"got none that can be read \(FileNotFoundError\): check"):
        replace(weights, folder=tmp_path / "b").check()
    other = shutil.copytree(weights.folder, tmp_path / "other")
    (other / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"got config.json of 2 bytes"):
        replace(weights, folder=other).check()


def test_an_adapter_is_published_alone_and_its_base_without_it(tiny: Path, tmp_path: Path):
    model = add_adapter(load_model(str(tiny), device=CPU), LORA, seed=0)
    weights = publish(model, load_tokenizer(str(tiny)), tmp_path, 0)
    base = publish_base(model, tmp_path)
    publish(model, load_tokenizer(str(tiny)), tmp_path, 1)
    assert names(tmp_path) == ["base", "version-000000", "version-000001"]
    base.check()
    assert (weights.is_adapter, base.is_adapter) == (True, False)
    assert all("lora" in name for name, _ in weights.tensors())
    expected = own_model(tiny).state_dict()
    found = dict(base.tensors())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
