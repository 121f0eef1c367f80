"""Loading: what was saved comes back, models that packing would falsify are refused, what is missing is named."""

from __future__ import annotations

import gc
import json
import os
import shutil
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from grouprl.forward.attention import is_packed
from grouprl.models import names
from grouprl.models.load import fingerprint, load_model, load_tokenizer
from grouprl.models.names import check_name
from grouprl.models.save import save_tensors
from grouprl.models.verify import in_right_form
from grouprl.received import hub
from grouprl.supervised.scratch import new_tokenizer
from grouprl.types import UserError
from tiny import TEXTS, tiny_model_folder

CPU = torch.device("cpu")


def with_config(folder: Path, to: Path, **changes: Any) -> str:
    shutil.copytree(folder, to)
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(config | changes))
    return str(to)


@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3"])
def test_the_tokenizer_comes_back_as_it_was_saved(tmp_path: Path, kind: str):
    saved = new_tokenizer(TEXTS * 3, 320)
    loaded = load_tokenizer(str(tiny_model_folder(tmp_path, kind=kind)))
    for text in (*TEXTS, "15 * 3 = 45. \\boxed{45}", "éﬁ \n\n x", "a<|end|>b"):
        assert loaded(text)["input_ids"] == saved(text)["input_ids"]
        assert loaded.decode(loaded(text)["input_ids"]) == text
    assert len(loaded) == len(saved)
    assert (loaded.eos_token_id, loaded.pad_token_id) == (saved.eos_token_id, saved.pad_token_id)
    messages = [{"role": "user", "content": "2 + 2 = ?"}]
    assert loaded.apply_chat_template(messages, tokenize=False) == "<|user|>2 + 2 = ?"


def test_a_tokenizer_without_an_end_is_refused(tiny: Path, tmp_path: Path):
    shutil.copytree(tiny, tmp_path / "endless")
    path = tmp_path / "endless" / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["eos_token"]
    path.write_text(json.dumps(config))
    with pytest.raises(UserError, match="end token"):
        load_tokenizer(str(tmp_path / "endless"))


@pytest.mark.parametrize("load", [lambda path: load_model(path, device=CPU), load_tokenizer])
def test_a_missing_model_is_named(tmp_path: Path, load: Callable[[str], object]):
    with pytest.raises(UserError, match="nowhere"):
        load(str(tmp_path / "nowhere"))


def test_weights_come_back_in_float32_and_in_eval_mode(tiny: Path, tmp_path: Path):
    half = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.bfloat16)
    half.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), device=CPU)
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float32}
    assert not loaded.training
    assert torch.equal(loaded.get_input_embeddings().weight, half.get_input_embeddings().weight.float())


def test_a_fingerprint_changes_with_any_weight(tiny: Path):
    model = load_model(str(tiny), device=CPU)
    before = fingerprint(model)
    assert fingerprint(load_model(str(tiny), device=CPU)) == before
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[3, 4].add_(1e-6)
    assert fingerprint(model) != before


# Damaged and hostile files


def changed_weights(tiny: Path, to: Path, change: Callable[[dict[str, Tensor]], object]) -> str:
    shutil.copytree(tiny, to)
    weights = load_file(to / "model.safetensors")
    change(weights)
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    return str(to)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"), "without model.layers.1.mlp.up_proj.weight"),
        (lambda weights: weights.update({"model.layers.2.x": torch.ones(2)}), "with unknown model.layers.2.x"),
        (lambda weights: weights.clear(), r"without lm_head.weight, model.embed_tokens.weight, .* and \d+ more"),
    ],
)
def test_weights_that_are_missing_or_unknown_are_an_error(
    tiny: Path, tmp_path: Path, change: Callable[[dict[str, Tensor]], object], words: str
):
    with pytest.raises(UserError, match=f"expected the weights of Qwen2ForCausalLM, got a checkpoint {words}"):
        load_model(changed_weights(tiny, tmp_path / "changed", change), device=CPU)


def test_a_tied_head_need_not_be_in_the_file(tiny: Path):
    assert "lm_head.weight" not in load_file(tiny / "model.safetensors")
    model = load_model(str(tiny), device=CPU)
    assert model.lm_head.weight is model.model.embed_tokens.weight


NO_MODEL, NO_TOKENIZER = "could not load it", "expected a tokenizer, could not load it"


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("model.safetensors", b"", NO_MODEL),
        ("model.safetensors", b"\x08" + bytes(7) + b"not JSON", NO_MODEL),
        ("model.safetensors", b"\xff" * 8 + b"{}", NO_MODEL),  # a header of 2^64 - 1 bytes
        ("model.safetensors", (20).to_bytes(8, "little") + b'{"a":{"dtype":"F32"}}', NO_MODEL),
        ("model.safetensors", None, NO_MODEL),  # without its end
        ("config.json", b'{"model_type": 3}', NO_MODEL),
        ("config.json", b"[]", NO_MODEL),
        ("config.json", b'{"model_type": "qwen2", "hidden_size": "x"}', NO_MODEL),
        ("tokenizer.json", b"", NO_TOKENIZER),
        ("tokenizer.json", b"[]", NO_TOKENIZER),
        ("tokenizer.json", b'{"version": "1.0", "model": 7}', NO_TOKENIZER),
    ],
)
def test_a_damaged_file_is_one_sentence(tiny: Path, tmp_path: Path, file: str, content: bytes | None, words: str):
    folder = shutil.copytree(tiny, tmp_path / "damaged")
    (folder / file).write_bytes((folder / file).read_bytes()[:-1000] if content is None else content)
    with pytest.raises(UserError, match=f"damaged.*{words}"):
        load_tokenizer(str(folder)) if words == NO_TOKENIZER else load_model(str(folder), device=CPU)


def test_code_of_a_checkpoint_is_refused_unasked(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code = "open(__file__ + '.ran', 'w')"
    custom = with_config(
        tiny, tmp_path / "custom", model_type="own", auto_map={"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}
    )
    (tmp_path / "custom" / "own.py").write_text(code)
    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("asked"))
    with pytest.raises(UserError, match=r"custom.*could not load it"):
        load_model(custom, device=CPU)
    assert not list(tmp_path.rglob("*.ran"))


# Models that packing would falsify


class RunningMean(nn.Module):
    """Mixes tokens outside attention, as state-space layers and token shifts do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: Tensor) -> Tensor:
        counts = torch.arange(1, hidden.shape[1] + 1)[:, None]
        return self.inner(hidden) + 0.1 * hidden.cumsum(1) / counts


class OwnPositions(nn.Module):
    """Counts tokens instead of reading their positions."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: Tensor, position_ids: Tensor, *rest: Any) -> Any:
        return self.inner(hidden, torch.arange(hidden.shape[1])[None], *rest)


def mix_tokens(model: PreTrainedModel) -> None:
    model.model.layers[1].mlp = RunningMean(model.model.layers[1].mlp)


def count_positions(model: PreTrainedModel) -> None:
    model.model.rotary_emb = OwnPositions(model.model.rotary_emb)


@pytest.mark.parametrize("change", [mix_tokens, count_positions])
def test_a_model_that_no_packing_nor_state_can_follow_is_refused(tiny: Path, change: Callable[[PreTrainedModel], None]):
    def load(attention: str) -> PreTrainedModel:
        model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32, attn_implementation=attention)
        change(model)
        return model.eval()

    with pytest.raises(UserError, match=r"model 'tiny': expected .*log-probs.*, got a difference of 0\.[0-9]+"):
        in_right_form("tiny", load)


def cancel_a_token(model: PreTrainedModel) -> None:
    """The first layer takes away all but a millionth of a token of the comparison, so that float32 leaves one digit."""
    layer, row = model.model.layers[0], model.get_input_embeddings().weight[6]
    with torch.no_grad():
        layer.self_attn.o_proj.weight.zero_()
        row.mul_(1000.0)
        normed = layer.post_attention_layernorm(row)
        inner = layer.mlp.act_fn(layer.mlp.gate_proj(normed)) * layer.mlp.up_proj(normed)
        down = layer.mlp.down_proj.weight
        down += torch.outer((1e-6 - 1) * row - down @ inner, inner) / (inner @ inner)


@pytest.mark.parametrize("also", [None, mix_tokens, count_positions])
def test_what_a_model_loses_to_rounding_does_not_refuse_it(tiny: Path, also: Callable[[PreTrainedModel], None] | None):
    """Its own log-probs move by more than the tolerance in float64. One that mixes tokens too is still refused."""

    def load(attention: str) -> PreTrainedModel:
        model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32, attn_implementation=attention)
        cancel_a_token(model)
        if also is not None:
            also(model)
        return model.eval()

    model = load("eager")
    ids = torch.tensor([[3, 5, 7, 9, 4, 6, 8]])
    with torch.no_grad():
        single = model(ids).logits.log_softmax(-1)
        double = model.double()(ids).logits.log_softmax(-1)
    assert (single - double).abs().max() > 1e-4 * (double.max() - double.min())
    if also is None:
        assert is_packed(in_right_form("tiny", load))
    else:
        with pytest.raises(UserError, match=r"got a difference of 0\.[0-9]+ of their spread"):
            in_right_form("tiny", load)


class ShortMemory(nn.Module):
    """A convolution over two tokens, as in LFM2, with an effect far below any tolerance."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: Tensor) -> Tensor:
        return self.inner(hidden) + 1e-9 * torch.nn.functional.pad(hidden, (0, 0, 1, 0))[:, :-1]


def test_a_model_that_mixes_tokens_is_not_packed_however_little_it_does(tiny: Path):
    """It is loaded a second time when the first is no longer in memory."""
    tried: list[weakref.ref[PreTrainedModel]] = []

    def load(attention: str) -> PreTrainedModel:
        gc.collect()
        assert all(one() is None for one in tried)
        model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32, attn_implementation=attention)
        model.model.layers[1].mlp = ShortMemory(model.model.layers[1].mlp)
        tried.append(weakref.ref(model))
        return model.eval()

    assert is_packed(load_model(str(tiny), device=CPU))
    assert not is_packed(in_right_form("tiny", load))
    assert len(tried) == 2


def test_an_unknown_hub_is_not_asked_and_a_known_one_is_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror("no network")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "_OFFLINE", False)
    monkeypatch.setattr(hub, "getproxies", dict)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UserError, match="no such folder, no cached copy and no network"):
        load_model("someone/nothing", device=CPU)
    assert constants.HF_HUB_OFFLINE
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [])
    with pytest.raises(UserError):
        load_model("./someone/nothing", device=CPU)  # a folder: the hub does not matter
    assert constants.HF_HUB_OFFLINE
    names.check_name("someone/nothing")
    assert not constants.HF_HUB_OFFLINE


# Saving


def test_tensors_written_one_after_the_other_make_the_file_of_safetensors(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "b/exp_avg": torch.randn(3, 5, generator=generator),
        "a": torch.randn(7, generator=generator).bfloat16(),
        "b/step": torch.tensor(3.0),
        "codes": torch.arange(5, dtype=torch.uint8),
        "long": torch.arange(4),
        "none": torch.empty(0, 2),
        "ümlaut": torch.ones(1),
    }
    save_tensors(tmp_path / "own", tensors)
    save_file(tensors, tmp_path / "expected")
    assert (tmp_path / "own").read_bytes() == (tmp_path / "expected").read_bytes()
    save_tensors(None, tensors)  # a rank that writes nothing
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expected", "own"]


NO_TORCH = "import sys; from grouprl.cli.words import main; sys.argv = ['grouprl', *sys.argv[1:]]\ntry: main()\n"
NO_TORCH += "finally: print('torch' in sys.modules, 'transformers' in sys.modules)"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("abcus", "no such folder, no cached copy and no network: did you mean 'abacus'?"),
        ("someone/nothing", "no such folder, no cached copy and no network: check the name"),
        ("a name", "check the name"),
        ("./nope", "no such folder: check the path"),
        ("runs/dem", "no such folder: did you mean runs/demo?"),
        ("runs/demo/checkpoints/step-2", "no such folder: did you mean runs/demo/checkpoints/step-000002?"),
        ("runs", "one without config.json"),
    ],
)
def test_what_is_not_there_is_named(name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("grouprl.received.hub._OFFLINE", True)
    Path("runs/demo/checkpoints/step-000002").mkdir(parents=True)
    with pytest.raises(UserError) as refused:
        check_name(name)
    assert str(refused.value).endswith(words) or words in str(refused.value)


def test_what_is_there_is_accepted(tmp_path: Path):
    check_name("abacus")
    (tmp_path / "config.json").write_text("{}")
    check_name(str(tmp_path))


@pytest.mark.parametrize("words", [("eval", "abcus"), ("train", "model=abcus")])
def test_the_command_answers_before_it_loads_torch(words: tuple[str, ...], tmp_path: Path):
    ended = subprocess.run(
        [sys.executable, "-c", NO_TORCH, *words],
        cwd=tmp_path,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "no such folder" in ended.stderr
    assert ended.stdout.splitlines()[-1] == "False False"


def test_a_cached_model_is_accepted_whatever_its_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("grouprl.received.hub._OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="no cached copy"):
        check_name("someone/something")
    (tmp_path / "models--someone--something" / "snapshots" / "0a1b").mkdir(parents=True)
    check_name("someone/something")
