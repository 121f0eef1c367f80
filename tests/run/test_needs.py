"""What a run says before its first step, and models that are not as they should be: refused there, or learned right."""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from grouprl import UserError
from grouprl.models.load import load_model, load_tokenizer
from grouprl.models.save import save_model
from grouprl.rollout import NativeEngine
from grouprl.rollout.verify import check_sampler
from grouprl.run.needs import resource_notes
from grouprl.tasks import task_from_list
from grouprl.tasks.held_out import trained_on_the_rest
from small_runs import ROWS, grouprl, metrics, rollouts, small_config, small_run, tree
from tiny import tiny_model_folder


def test_the_memory_and_the_tokens_of_evaluations(tmp_path: Path) -> None:
    """Abacus has 1,188,736 weights in float32: weights, reference, gradient and two moments take 5 x 4 bytes each."""
    evaluation = {"every": 2, "problems": 3, "samples": 2}
    config = small_config(tmp_path, model={"path": "abacus", "device": "cpu"}, evaluation=evaluation)
    memory, problems, tokens = resource_notes(config, task_from_list(ROWS), 1)
    assert problems.startswith("Problems: ")
    assert re.match(rf"Memory: {1_188_736 * 20 / 2**30:.2f} GiB .* at most 0\.0[2-9] GiB .* on this cpu\.$", memory)
    # Before, after steps 2 and 4 of 6, and after: 4 x 3 x (1 + 2) x 8 = 288. Training: 6 x 2 x 4 x 8 = 384.
    assert tokens == (
        "Evaluations: 4 of 3 problems x (1 greedy + 2 sampled) x at most 8 tokens, 288 in all; training: at most 384."
    )


def test_a_model_that_cannot_fit_is_refused_before_it_is_loaded(tiny: Path, tmp_path: Path) -> None:
    """4,000 layers of 3 x 4096 x 14336 weights and more take terabytes."""
    model = tmp_path / "model"
    shutil.copytree(tiny, model)
    given = json.loads((model / "config.json").read_text())
    larger = {"num_hidden_layers": 4_000, "hidden_size": 4096, "intermediate_size": 14_336}
    (model / "config.json").write_text(json.dumps(given | larger))
    config = small_config(tmp_path)
    with pytest.raises(UserError, match=r"set model\.weights=bfloat16 .*learner\.moments=bfloat16, model\.lora={}"):
        small_run(model, config)
    assert not (tmp_path / "run").exists()


def test_a_sampler_that_computes_another_model_is_refused(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine decodes a copy in which one matrix of a layer is a tenth larger."""
    right = NativeEngine.__init__

    def wrong(self: NativeEngine, model: PreTrainedModel, *arguments: Any, **options: Any) -> None:
        other = copy.deepcopy(model)
        with torch.no_grad():
            other.get_decoder().layers[0].self_attn.v_proj.weight.mul_(1.1)
        right(self, other, *arguments, **options)

    monkeypatch.setattr(NativeEngine, "__init__", wrong)
    with pytest.raises(UserError, match=r"got a difference of [\d.e-]+ of the largest: the sampler does not support"):
        small_run(tiny, small_config(tmp_path))
    assert not (tmp_path / "run").exists()


def test_a_model_that_is_sure_is_sampled() -> None:
    """The bundled model is: with logits ten times as large, the log-probs of its first tokens are exactly 0."""
    model, tokenizer = load_model("abacus", device=torch.device("cpu")), load_tokenizer("abacus")
    with torch.no_grad():
        model.get_decoder().norm.weight.mul_(10.0)
    for tokens in (1, 2):
        check_sampler(NativeEngine(model, tokenizer, seed=0, max_rows=2), model, most_tokens=tokens)


@pytest.mark.parametrize(
    ("rows", "problems", "said"),
    [
        (10, 500, "Problems: 9 to train on; 1 others are held out (list/test), of which the evaluation uses 1."),
        (30, 2, "Problems: 27 to train on; 3 others are held out (list/test), of which the evaluation uses 2."),
        (10, 0, "Problems: 10 to train on; none is held out."),
        (1, 500, "Problems: 1 to train on; the evaluation uses 1 of these."),
    ],
)
def test_a_line_says_what_is_held_out(tmp_path: Path, rows: int, problems: int, said: str) -> None:
    config = small_config(tmp_path, evaluation={"problems": problems})
    task = trained_on_the_rest(
        task_from_list([{"prompt": f"Say {n}."} for n in range(rows)]), "test" if problems else None
    )
    assert said in list(resource_notes(config, task, 1))


# Models that are not as they should be


def train(model: Path, runs: Path, *, name: str = "run", steps: int = 2, resume: bool = False) -> Path:
    config = small_config(runs, name, steps=steps, learner={"learning_rate": 1e-3})
    return small_run(model, config, resume=resume).directory


def test_rows_of_the_model_without_a_token_are_learned_like_others(tiny: Path, tmp_path: Path) -> None:
    """Qwen2.5 has 151,936 rows for 151,665 tokens."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny), load_tokenizer(str(tiny))
    model.resize_token_embeddings(len(tokenizer) + 40, mean_resizing=False)
    with torch.no_grad():
        model.get_output_embeddings().weight[len(tokenizer) :] = model.get_output_embeddings().weight[20:60]
    save_model(model, tokenizer, tmp_path / "larger")
    run = train(tmp_path / "larger", tmp_path)
    sampled = [token for (ids,) in rollouts(run, "SELECT token_ids FROM completions") for token in ids_of(ids)]
    assert max(sampled) >= len(tokenizer)
    assert max(row["sampler_learner_gap"] for row in metrics(run)) < 1e-4


def ids_of(blob: bytes) -> list[int]:
    return memoryview(blob).cast("i").tolist()


def test_another_architecture_under_a_resumed_name_is_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model_folder(tmp_path), folder)
    run = train(folder, tmp_path / "runs")
    before = tree(run)
    shutil.rmtree(folder)
    shutil.copytree(tiny_model_folder(tmp_path, kind="llama"), folder)
    with pytest.raises(UserError, match=r"resume: expected the model that the run started.* restore the model"):
        train(folder, tmp_path / "runs", steps=4, resume=True)
    assert tree(run) == before


def test_a_context_that_is_too_short_is_one_sentence(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "short"
    shutil.copytree(tiny, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 12}))
    with pytest.raises(UserError, match=r"expected a prompt of 1 to 4 tokens .* lower rollout\.max_tokens"):
        train(folder, tmp_path / "runs")
    assert not list((tmp_path / "runs").glob("*/metrics.jsonl"))


@pytest.mark.slow
def test_settings_that_cannot_take_effect_are_named(tmp_path: Path) -> None:
    changes = ("learner.warmup_steps=100", "learner.learning_rate=0.001", "distributed.shard=true", "steps=1")
    small = ("rollout.problems_per_step=1", "rollout.group_size=2", "rollout.max_tokens=4", "evaluation.problems=0")
    text = " ".join(grouprl("train", "demo", *changes, *small, f"runs_dir={tmp_path}").text.split())
    assert (
        "learner.warmup_steps=100 is more than the 1 update of this run: its learning rate ends at 1e-05, below" in text
    )
    assert "distributed.shard=true has no effect in one process: start the run with torchrun, or remove it." in text
