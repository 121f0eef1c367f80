"""Folders of adapters: other libraries load them, the base model is found, and other adapters are refused."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from grouprl import UserError
from grouprl.config.run import LoraConfig, ModelConfig
from grouprl.models.adapters import add_adapter, attach_adapter
from grouprl.models.load import fingerprint, load_model, load_tokenizer
from grouprl.models.names import BUNDLED
from grouprl.models.reward_model import load_reward_model
from lora_models import (
    CORRECTED,
    CPU,
    LORA,
    PROJECTIONS,
    adapted,
    assert_same_run,
    learner_of,
    merged_by_hand,
    newest,
    run,
    sampled,
    saved,
    shaken,
)
from oracles import own_model
from small_runs import as_killed, grouprl, metrics, small_settings
from source_tree import ROOT
from tiny import tiny_model_folder
from variants import variant

sys.path.insert(0, str(ROOT / "benchmarks"))

import families


@pytest.fixture(scope="module")
def trained(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last checkpoint of a run that trained an adapter."""
    return newest(run(tiny, tmp_path_factory.mktemp("trained"), steps=3).directory)


@pytest.fixture(scope="module")
def made(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(shaken(adapted(tiny)), tiny, tmp_path_factory.mktemp("made") / "adapter")


@pytest.fixture
def adapter(made: Path, tmp_path: Path) -> Path:
    """A copy, which a test may damage."""
    return shutil.copytree(made, tmp_path / "adapter")


# Folders


def test_a_checkpoint_is_the_adapter_alone_and_everyone_loads_it(trained: Path, tiny: Path) -> None:
    folder = trained
    written = {path.name for path in folder.rglob("*") if path.is_file()}
    assert {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json", "optimizer.safetensors"} <= written
    assert not written & {"model.safetensors", "config.json", "adapter_model.bin"}
    assert set(load_file(folder / "trainer/optimizer.safetensors")).isdisjoint({"model.embed_tokens.weight"})
    ids = torch.tensor([[5, 9, 2, 40, 41]])
    ours = load_model(str(folder), device=CPU)
    ours.set_attn_implementation("eager")
    by_peft = PeftModel.from_pretrained(own_model(tiny), str(folder)).eval()
    by_transformers = AutoModelForCausalLM.from_pretrained(folder)
    by_hand = merged_by_hand(tiny, folder, scale=32 / 4)
    with torch.no_grad():
        expected = ours(ids).logits
        for other in (by_peft, by_transformers, by_hand):
            torch.testing.assert_close(other(ids).logits.float(), expected, atol=1e-4, rtol=0)
        assert (own_model(tiny)(ids).logits - expected).abs().max() > 0.01


@pytest.mark.slow
def test_eval_of_a_saved_adapter_is_the_evaluation_of_its_run(tmp_path: Path) -> None:
    settings = small_settings(
        tmp_path, steps=2, evaluation={"problems": 12, "samples": 2}, learner={"learning_rate": 0.01}, name="run",
        rollout={"problems_per_step": 4, "group_size": 4, "max_tokens": 32},
    )  # fmt: skip
    ended = grouprl("train", "model.lora.rank=4", *settings)
    assert ended.code == 0, ended.text
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    judged = grouprl("eval", newest(tmp_path / "run"), "--json")
    started = grouprl("eval", "abacus", "--json", *settings)
    found, base = (json.loads(ended.out.splitlines()[-1]) for ended in (judged, started))
    assert found == summary["after"]
    assert base == summary["before"] != found
    assert grouprl("sample", newest(tmp_path / "run"), "rollout.group_size=2").code == 0
    assert summary["networks_mib"].keys() == {"policy", "optimizer"}


def test_an_adapter_of_a_relative_base_loads(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny.parent)
    policy = shaken(adapted(Path(tiny.name)))
    before = fingerprint(policy)
    saved(policy, tiny, tmp_path / "adapter")
    monkeypatch.chdir(tmp_path)
    assert fingerprint(load_model("adapter", device=CPU)) == before


def renamed_base(folder: Path, base: str) -> Path:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": base}))
    return folder


@pytest.mark.parametrize("base", ["abacus", "/opt/elsewhere/grouprl/models/assets/abacus"])
def test_a_bundled_base_is_found_in_whatever_installation(tmp_path: Path, base: str) -> None:
    policy = shaken(adapted(BUNDLED["abacus"], LoraConfig(rank=1)))
    folder = renamed_base(saved(policy, BUNDLED["abacus"], tmp_path / "adapter"), base)
    assert fingerprint(load_model(str(folder), device=CPU)) == fingerprint(policy)


def test_a_base_that_is_gone_is_named(adapter: Path) -> None:
    renamed_base(adapter, "/gone/base")
    for load in (lambda path: load_model(path, device=CPU), without_tokenizer):
        with pytest.raises(UserError, match=r"expected its base model in /gone/base, found none: restore it, or write"):
            load(str(adapter))


def without_tokenizer(folder: str) -> object:
    (Path(folder) / "tokenizer_config.json").unlink(missing_ok=True)
    return load_tokenizer(folder)


def test_an_adapter_without_a_tokenizer_has_that_of_its_base(adapter: Path, tiny: Path) -> None:
    text = "John has 15 apples. \\boxed{7}"
    expected = load_tokenizer(str(tiny))
    for tokenizer in (load_tokenizer(str(adapter)), without_tokenizer(str(adapter))):
        assert tokenizer(text)["input_ids"] == expected(text)["input_ids"]
        assert tokenizer.chat_template == expected.chat_template
        assert tokenizer.eos_token_id == expected.eos_token_id


def test_an_adapter_is_trained_on_and_held_to_where_it_started(trained: Path, tmp_path: Path) -> None:
    start = trained
    ours = run(str(start), tmp_path, model={}, steps=2, checkpoint={"every": 1})
    rows = metrics(ours.directory)
    assert rows[0]["kl"] == pytest.approx(0.0, abs=1e-6)  # the reference is base and adapter
    assert rows[-1]["kl"] > 1e-4
    assert {path.name for path in newest(ours.directory).iterdir()} == {path.name for path in start.iterdir()}
    parts = as_killed(ours.directory, tmp_path / "parts", after=1)
    run(str(start), tmp_path, "parts", model={}, steps=2, checkpoint={"every": 1}, resume=True)
    assert_same_run(ours.directory, parts)


@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_a_merged_adapter_is_the_policy(tiny: Path, tmp_path: Path, family: str) -> None:
    """Of GPT-2 too, whose layers keep their weights transposed."""
    base = tiny if family == "qwen2" else families.family_folder(tmp_path, family)
    policy = shaken(adapted(base))
    folder, out = saved(policy, base, tmp_path / "adapter"), tmp_path / "merged"
    ended = grouprl("merge", folder, out)
    assert ended.code == 0, ended.text
    merged = load_model(str(out), device=CPU)
    batch = sampled(policy, base)
    ours, theirs, before = (
        learner_of(one, None, CORRECTED).evaluate(batch).policy_NT
        for one in (policy, merged, load_model(str(base), device=CPU))
    )
    torch.testing.assert_close(theirs, ours, atol=5e-5, rtol=0)  # rounding on both sides
    assert (before - ours).abs().max() > 1e-2
    plain, info = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"] | info["unexpected_keys"]
    assert fingerprint(plain) == fingerprint(merged)
    assert load_tokenizer(str(out))("2 + 2")["input_ids"] == load_tokenizer(str(base))("2 + 2")["input_ids"]
    again = grouprl("merge", folder, out)
    assert (again.code, "expected a new or empty folder" in again.text) == (2, True)


# Refusals


def test_layers_that_do_not_exist_are_named_with_those_that_do(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"decoder, which has {', '.join(PROJECTIONS)}, got wq, lm_head: choose some"):
        run(tiny, tmp_path, model={"lora": {"targets": ["q_proj", "wq", "lm_head"]}})
    assert not (tmp_path / "run").exists()


def test_an_adapter_on_an_adapter_is_refused(adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.lora: expected null for a model that is an adapter already"):
        run(str(adapter), tmp_path)


def test_a_reference_that_follows_the_policy_is_refused(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"refresh_reference: expected 0 with model\.lora, got 2"):
        run(tiny, tmp_path, algorithm=variant(refresh_reference=2))


def test_without_peft_the_extra_is_named(tiny: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    for load in (lambda: adapted(tiny), lambda: load_model(str(adapter), device=CPU)):
        with pytest.raises(UserError, match=r"expected the package peft, got none: run pip install 'grouprl\[lora\]'"):
            load()


def test_a_run_misses_peft_before_its_model(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(tiny, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))  # cannot be loaded
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"^model.lora: expected the package peft, got none"):
        run(tmp_path / "model", tmp_path / "runs")


def test_verbs_that_need_a_whole_model_refuse_an_adapter(adapter: Path) -> None:
    with pytest.raises(UserError, match=r"expected a model with a sequence classifier .*, got an adapter: merge it"):
        load_reward_model(str(adapter), device=CPU)


def test_the_base_of_an_adapter_is_no_adapter(adapter: Path, tmp_path: Path) -> None:
    shutil.copytree(adapter, tmp_path / "second")
    with pytest.raises(UserError, match=r"the base of the adapter .*, got an adapter: merge it"):
        load_model(str(renamed_base(tmp_path / "second", str(adapter))), device=CPU)


def test_an_adapter_on_the_hub_is_not_loaded(adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "hub/models--someone--adapter/snapshots/0123"
    shutil.copytree(adapter, snapshot)
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs/main").write_text("0123")
    # What huggingface_hub makes of HF_HUB_CACHE and HF_HUB_OFFLINE when it is imported.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("grouprl.received.hub._OFFLINE", True)
    ended = grouprl("sample", "someone/adapter")
    assert ended.code == 2
    assert "model 'someone/adapter': expected a causal language model" in ended.text
    assert "got an adapter: merge it into its base model (docs/models.md); train, eval" in ended.text


def test_a_revision_of_the_hub_reaches_config_weights_and_tokenizer(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tiny_model_folder(tmp_path / "other", kind="llama", chat_template=False)
    repository = tmp_path / "hub/models--someone--model"
    (repository / "refs").mkdir(parents=True)
    for name, folder, commit in (("main", tiny, "a" * 40), ("old", other, "b" * 40)):
        shutil.copytree(folder, repository / "snapshots" / commit)
        (repository / "refs" / name).write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("grouprl.received.hub._OFFLINE", True)
    for revision, folder in ((None, tiny), ("main", tiny), ("old", other), ("b" * 40, other)):
        config = ModelConfig(path="someone/model", revision=revision)
        assert fingerprint(load_model(config, device=CPU)) == fingerprint(load_model(str(folder), device=CPU))
        assert (load_tokenizer(config).chat_template is None) == (folder == other)
    # An adapter names the commit of its base: the main branch may have moved when it is loaded again.
    policy = shaken(add_adapter(load_model(config, device=CPU), LORA, seed=0))
    folder = saved(policy, other, tmp_path / "adapter")
    assert json.loads((folder / "adapter_config.json").read_text())["revision"] == "b" * 40
    assert fingerprint(load_model(str(folder), device=CPU)) == fingerprint(policy)


@pytest.mark.parametrize("local", ["abacus", "folder"])
def test_a_model_on_this_machine_has_no_revision(tiny: Path, local: str) -> None:
    ended = grouprl("sample", local if local == "abacus" else tiny, "model.revision=old")
    assert ended.code == 2
    assert "model.revision: expected null for" in ended.text


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "adapter_model.safetensors"), folder / "adapter_model.bin")
    (folder / "adapter_model.safetensors").unlink()


def half(folder: Path) -> None:
    weights = load_file(folder / "adapter_model.safetensors")
    save_file({name: weights[name] for name in sorted(weights)[1:]}, folder / "adapter_model.safetensors")


def too_much(folder: Path) -> None:
    weights = load_file(folder / "adapter_model.safetensors")
    save_file(weights | {"base_model.model.lm_head.lora_A.weight": torch.ones(2)}, folder / "adapter_model.safetensors")


def cut(folder: Path) -> None:
    (folder / "adapter_model.safetensors").write_bytes(b"half a file")


def broken(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{")


def changed(**fields: Any) -> Any:
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (pickled, "expected a LoRA adapter for .*, got No such file"),
        (half, r"expected an adapter for .*, got a difference in \['model.layers.0.mlp.down_proj.lora_A"),
        (too_much, r"got a difference in \['lm_head.lora_A"),
        (cut, "expected a LoRA adapter for"),
        (broken, "expected a readable adapter_config.json, got"),
        (changed(r=2), "expected a LoRA adapter for .*, got Error"),
        (changed(target_modules=["wq"]), "expected a LoRA adapter for .*, got Target modules"),
        (
            changed(target_modules=["q_proj", "lm_head"]),
            "expected an adapter of the decoder's layers, got one of the out",
        ),
        (changed(target_modules=["embed_tokens"]), "expected an adapter of the decoder's layers, got one of the input"),
        (changed(use_dora=True), "expected a plain LoRA adapter, got use_dora=True: choose another"),
        (changed(modules_to_save=["lm_head"]), r"expected a plain LoRA adapter, got modules_to_save=\['lm_head'\]"),
        (changed(peft_type="IA3"), "expected a plain LoRA adapter, got .*peft_type="),
        (changed(peft_type="NONE"), "expected a readable adapter_config.json"),
        (changed(base_model_name_or_path=None), "expected the name of a base model, got base_model_name_or_path=None"),
        (changed(r=1_000_000_000), "got a rank of 1000000000, and weights of [0-9]+ at most"),
        (changed(rank_pattern={"q_proj": 1_000_000_000}), "got a rank of 1000000000"),
        (changed(r="8"), "expected a LoRA adapter for"),
        (changed(lora_alpha="16"), "expected a LoRA adapter for"),
        (changed(target_modules="("), "expected a LoRA adapter for"),
        (changed(target_modules="(.*)*(.*)*(.*)*(.*)*X"), "a pattern with too many repetitions"),
        (changed(target_modules=".*.*.*.*.*.*.*.*.*.*X"), "a pattern with too many repetitions"),
        (changed(alpha_pattern={"(a|a)*(.|.)*(.|.)*X": 1}), "a pattern with too many repetitions"),
    ],
)
def test_a_folder_that_is_no_plain_adapter_is_refused(adapter: Path, change: Any, complaint: str) -> None:
    change(adapter)
    with pytest.raises(UserError, match=complaint):
        load_model(str(adapter), device=CPU)


def test_a_pattern_of_names_is_as_good_as_a_list(adapter: Path) -> None:
    listed = load_model(str(adapter), device=CPU).state_dict()
    # As Unsloth writes it.
    pattern = rf"(?:.*?(?:language|text|model).*?(?:self_attn|mlp).*?(?:{'|'.join(PROJECTIONS)}).*?)|(?:x\.[\d]{{1,}})"
    changed(target_modules=pattern)(adapter)
    found = load_model(str(adapter), device=CPU).state_dict()
    assert found.keys() == listed.keys()
    assert all(torch.equal(found[name], listed[name]) for name in listed)


def test_an_adapter_of_another_model_is_refused(adapter: Path, tmp_path: Path) -> None:
    other = load_model(str(tiny_model_folder(tmp_path, kv_heads=4)), device=CPU)
    with pytest.raises(UserError, match=r"expected a LoRA adapter for .*qwen2-4.*, got .*size mismatch for .*k_proj"):
        attach_adapter(other, adapter)
