"""What a run says before its model is loaded, and a model that cannot fit is refused there."""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from grouprl import Trainer, UserError
from grouprl.models.load import load_model, load_tokenizer
from grouprl.rewards.functions import WeightedReward
from grouprl.rollout import NativeEngine
from grouprl.rollout.verify import check_sampler
from grouprl.run.needs import needs_of
from grouprl.tasks import task_from_list
from grouprl.tasks.held_out import trained_on_the_rest
from letter_rewards import letters
from small_runs import ROWS, small_config


def test_the_memory_and_the_tokens_of_evaluations(tmp_path: Path) -> None:
    """Abacus has 1,188,736 weights in float32: weights, reference, gradient and two moments take 5 x 4 bytes each."""
    evaluation = {"every": 2, "problems": 3, "samples": 2}
    config = small_config(tmp_path, model={"path": "abacus", "device": "cpu"}, evaluation=evaluation)
    memory, problems, tokens = needs_of(config, task_from_list(ROWS), 1)
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
        Trainer(model, ROWS, [WeightedReward("letters", letters)], config=config).train()
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
    trainer = Trainer(tiny, ROWS, [WeightedReward("letters", letters)], config=small_config(tmp_path))
    with pytest.raises(UserError, match=r"got a difference of [\d.e-]+ of the largest: the sampler does not support"):
        trainer.train()
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
    assert said in list(needs_of(config, task, 1))
