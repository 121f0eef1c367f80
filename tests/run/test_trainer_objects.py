"""`Trainer` with models in memory, evaluation problems of its own, a callback, and a look at what it trained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from grouprl import StepRecord, Trainer, UserError
from grouprl.models.load import fingerprint
from grouprl.tasks import task_from_list
from small_runs import LETTERS, ROWS, assert_same_run, rollouts, small_config, small_run


@pytest.fixture
def objects(tiny: Path) -> dict[str, Any]:
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    return {"model": model, "tokenizer": PreTrainedTokenizerFast.from_pretrained(tiny)}


def test_a_model_in_memory_trains_as_its_folder_does(objects: dict[str, Any], tiny: Path, tmp_path: Path) -> None:
    before = fingerprint(objects["model"])
    config = small_config(tmp_path, "object", steps=2, checkpoint={"every": 1})
    own = Trainer(**objects, task=ROWS, rewards=[LETTERS], config=config).train().directory
    folder = Trainer(tiny, ROWS, [LETTERS], config=small_config(tmp_path, "folder", steps=2)).train().directory
    assert rollouts(own) == rollouts(folder)
    assert fingerprint(objects["model"]) == before  # the run trains a copy
    (written,) = (tmp_path / "models").iterdir()
    assert not [path for path in written.parent.iterdir() if path.name.startswith(".")]

    (own / "summary.json").unlink()
    again = Trainer(**objects, task=ROWS, rewards=[LETTERS], config=config)
    again.train(resume=True, step=1)
    assert rollouts(own) == rollouts(folder)
    with torch.no_grad():
        objects["model"].get_input_embeddings().weight[0] += 1.0
    with pytest.raises(UserError, match=r"model.path: .* then, .* now"):
        Trainer(**objects, task=ROWS, rewards=[LETTERS], config=config).train(resume=True)


def test_the_tokenizer_is_that_of_the_place_where_the_model_was_loaded(objects: dict[str, Any], tmp_path: Path) -> None:
    config = small_config(tmp_path, steps=1, evaluation={"problems": 0})
    assert Trainer(objects["model"], ROWS, [LETTERS], config=config).train().finished


@pytest.mark.parametrize("wrong", ["peft", "more tokens", "tokenizer alone"])
def test_objects_that_cannot_be_trained_are_a_sentence(objects: dict[str, Any], tmp_path: Path, wrong: str) -> None:
    said = "expected a name, a folder, a hub id or a model of transformers, got Linear"
    if wrong == "peft":
        objects["model"] = torch.nn.Linear(2, 2)
    elif wrong == "more tokens":
        objects["tokenizer"].add_tokens([f"<extra {number}>" for number in range(1000)])
        said = "expected a tokenizer of at most"
    else:
        objects["model"], said = None, "tokenizer: expected a model object beside it"
    with pytest.raises(UserError, match=said):
        Trainer(**objects, task=ROWS, rewards=[LETTERS], config=small_config(tmp_path)).train()
    assert not (tmp_path / "run").exists()


def test_rows_to_evaluate_on_are_taken_as_they_are(tiny: Path, tmp_path: Path) -> None:
    held_out = [{"prompt": f"Tell {number}."} for number in range(3)]
    trainer = Trainer(tiny, ROWS, [LETTERS], config=small_config(tmp_path, steps=1), eval_task=held_out)
    trainer.train()
    assert trainer.evaluate()["problems"] == 3
    assert trainer.sample().group.problem.prompt_text == "Tell 0."


def test_another_task_to_evaluate_on_gives_its_held_out_problems(tiny: Path, tmp_path: Path) -> None:
    other = task_from_list([{"prompt": f"Tell {number}."} for number in range(30)])
    trainer = Trainer(tiny, ROWS, [LETTERS], config=small_config(tmp_path), eval_task=other)
    assert trainer.sample().group.problem == other.problems("test")[0]


def test_a_prompt_that_is_trained_on_is_no_evaluation(tiny: Path, tmp_path: Path) -> None:
    trained = task_from_list(ROWS).problems("train")[0].prompt_text
    with pytest.raises(UserError, match="eval_task: expected prompts that are not trained on"):
        Trainer(tiny, ROWS, [LETTERS], config=small_config(tmp_path), eval_task=[{"prompt": trained}]).train()


def test_what_is_sampled_and_evaluated_is_the_newest_checkpoint(tiny: Path, tmp_path: Path) -> None:
    trainer = Trainer(tiny, iter(ROWS), [LETTERS], config=small_config(tmp_path, steps=2))
    before = [one.text for one in trainer.sample("Say 3.").group.completions]
    run = trainer.train()
    found = trainer.sample("Say 3.")
    assert [one.text for one in found.group.completions] != before
    assert found.outcomes == ()
    other = Trainer(str(run.directory / "checkpoints/step-000002"), ROWS, [LETTERS], config=trainer.config)
    assert [one.text for one in other.sample("Say 3.").group.completions] == [
        one.text for one in found.group.completions
    ]
    assert trainer.evaluate() == run.summary["after"]
    scored = trainer.sample()
    rewards = [outcome.total for outcome in scored.outcomes]
    mean = sum(rewards) / len(rewards)
    assert len(rewards) == 4
    assert [value > 0 for value in scored.advantages] == [reward > mean for reward in rewards]


@pytest.mark.slow
def test_a_stream_without_an_end_is_read_as_far_as_the_run_needs(tiny: Path, tmp_path: Path) -> None:
    """Two steps of two problems and three held-out ones: twice four rows and thirty."""
    datasets = pytest.importorskip("datasets")
    read = list[int]()

    def rows() -> Iterator[dict[str, Any]]:
        for number in count():
            read.append(number)
            yield {"prompt": f"Say {number}.", "number": number}

    stream = datasets.IterableDataset.from_generator(rows)
    config = small_config(tmp_path, "stream", steps=2)
    own = Trainer(tiny, stream, [LETTERS], config=config).train().directory
    assert len(read) < 100  # datasets looks a few rows ahead
    listed = Trainer(tiny, list(stream.take(38)), [LETTERS], config=small_config(tmp_path, "list", steps=2))
    assert rollouts(own) == rollouts(listed.train().directory)
    other = [{"prompt": f"Tell {number}."} for number in range(3)]
    Trainer(tiny, {"train": stream, "test": other}, [LETTERS], config=small_config(tmp_path, "split", steps=1)).train()
    with pytest.raises(UserError, match="epochs: expected null with a stream"):
        Trainer(tiny, stream, [LETTERS], config=config.model_copy(update={"epochs": 1.0})).train()


# A plain function of each step's frozen record


def test_a_callback_gets_each_step_after_it_is_recorded(tiny: Path, tmp_path: Path) -> None:
    got: list[StepRecord] = []

    def follow(record: StepRecord) -> None:
        row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
        assert row == {"step": record.step, **record.metrics}, "recorded before the call"
        with pytest.raises(FrozenInstanceError):
            record.step = 7  # type: ignore[misc]
        got.append(record)

    Trainer(
        tiny, ROWS, [LETTERS], config=small_config(tmp_path, steps=3, evaluation={"problems": 0}), callback=follow
    ).train()
    assert [record.step for record in got] == [1, 2, 3]
    texts = [one.text for record in got for group in record.groups for one in group.completions]
    assert texts == [text for (text,) in rollouts(tmp_path / "run", "SELECT text FROM completions ORDER BY rowid")]


def test_an_exception_in_a_callback_stops_the_run_which_can_be_resumed(tiny: Path, tmp_path: Path) -> None:
    def fail(record: StepRecord) -> None:
        if record.step == 3:
            raise ZeroDivisionError("mine")

    saving = {"steps": 4, "checkpoint": {"every": 2}}
    config = small_config(tmp_path, **saving)
    with pytest.raises(ZeroDivisionError, match="mine") as raised:
        Trainer(tiny, ROWS, [LETTERS], config=config, callback=fail).train()
    assert raised.traceback[-1].name == "fail"
    resumed = small_run(tiny, config, resume=True)
    straight = small_run(tiny, small_config(tmp_path, "straight", **saving))
    assert_same_run(resumed.directory, straight.directory, step=4)
