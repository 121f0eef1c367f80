"""Supervised fine-tuning learns pairs from a file or the task, and saves a model that other libraries load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from grouprl.learner.packs import Pack, pack_forward
from grouprl.models.load import load_model, load_tokenizer
from grouprl.models.prompts import authored_completion
from grouprl.models.templates import prepare_template
from grouprl.supervised.settings import SftConfig
from grouprl.supervised.sft import load_pairs, sft
from grouprl.supervised.training import SupervisedLoss
from grouprl.types import Batch, Group, Problem, UserError
from small_runs import grouprl, tree, write_rows

NEW = {"hidden_size": 32, "intermediate_size": 64, "layers": 1, "heads": 2, "context": 256, "vocabulary": 400}
PAIRS = [{"prompt": f"What is {n}?", "completion": f"It is {n}, of course."} for n in range(8)]


def config(tmp_path: Path, **changes: Any) -> SftConfig:
    model = {"threads": 1, **changes.pop("model", {})}
    return SftConfig(**{"runs_dir": str(tmp_path / "runs"), "model": model, **changes})


def column(run: Path, name: str) -> list[float]:
    return [json.loads(line)[name] for line in (run / "metrics.jsonl").read_text().splitlines()]


def losses(run: Path) -> list[float]:
    return column(run, "loss")


def completion_loss(model: Any, tokenizer: Any, pairs: list[dict[str, Any]]) -> float:
    """Mean over the completion tokens of plain transformers' own cross-entropy, end token included."""
    total, count = 0.0, 0
    for pair in pairs:
        prompt = tokenizer(pair["prompt"])["input_ids"]
        completion = [*tokenizer(pair["completion"], add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        labels = torch.tensor([[-100] * len(prompt) + completion])
        with torch.no_grad():
            loss = model(input_ids=torch.tensor([prompt + completion]), labels=labels).loss
        total, count = total + float(loss) * len(completion), count + len(completion)
    return total / count


def test_pairs_of_a_file_teach_a_checkpoint(tiny: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "pairs.jsonl", PAIRS)
    learned = sft(config(tmp_path, model={"path": str(tiny)}, pairs={"path": str(data)}, epochs=30, batch_pairs=4))
    assert learned == tmp_path / "runs" / "sft" / "model"
    tokenizer = load_tokenizer(str(learned))
    start, model = (AutoModelForCausalLM.from_pretrained(folder).eval() for folder in (tiny, learned))
    before, after = (completion_loss(policy, tokenizer, PAIRS) for policy in (start, model))
    recorded = losses(tmp_path / "runs" / "sft")
    assert len(recorded) == 60
    assert before > 3
    assert recorded[0] == pytest.approx(before, rel=0.15)  # of four of the eight pairs, before the first update
    assert after < 0.5
    assert recorded[-1] == pytest.approx(after, abs=0.2)
    rates = column(tmp_path / "runs" / "sft", "learning_rate")
    assert [rates[at] for at in (0, 20, 30, 40)] == pytest.approx([0.003, 0.00225, 0.0015, 0.00075])  # half a cosine


def test_the_first_loss_is_the_mean_over_the_tokens_of_the_batch(tiny: Path, tmp_path: Path) -> None:
    pairs = [*PAIRS, {"prompt": "Tell me.", "completion": "A much longer completion than all of the others are. " * 3}]
    data = write_rows(tmp_path / "pairs.jsonl", pairs)
    changes = {"model": {"path": str(tiny)}, "pairs": {"path": str(data)}, "batch_pairs": 9}
    sft(config(tmp_path, name="whole", **changes))
    sft(config(tmp_path, name="split", **changes, learner={"micro_batch_tokens": 60}))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny).eval(), load_tokenizer(str(tiny))
    for name in ("whole", "split"):
        assert losses(tmp_path / "runs" / name) == pytest.approx([completion_loss(model, tokenizer, pairs)], abs=1e-4)


def test_every_epoch_sees_each_pair_once_in_an_order_of_its_own(tiny: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "pairs.jsonl", PAIRS)
    still = {"learning_rate": 0.0}  # so that a pair is known by its loss
    changes = {"model": {"path": str(tiny)}, "pairs": {"path": str(data)}, "batch_pairs": 1, "learner": still}
    sft(config(tmp_path, epochs=2, **changes))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny).eval(), load_tokenizer(str(tiny))
    expected = [completion_loss(model, tokenizer, [pair]) for pair in PAIRS]
    recorded = losses(tmp_path / "runs" / "sft")
    orders = recorded[:8], recorded[8:]
    for order in orders:
        assert sorted(order) == pytest.approx(sorted(expected), abs=1e-4)
        assert order != pytest.approx(expected, abs=1e-4)
    assert orders[0] != pytest.approx(orders[1], abs=1e-4)


def test_chat_pairs_are_learned_through_the_template(tiny: Path, tmp_path: Path) -> None:
    chat = [
        {
            "prompt": [{"role": "user", "content": pair["prompt"]}],
            "completion": [{"role": "assistant", "content": pair["completion"]}],
        }
        for pair in PAIRS
    ]
    data = write_rows(tmp_path / "pairs.jsonl", chat)
    loaded = load_pairs(config(tmp_path, pairs={"path": str(data)}))
    assert [completion for _, completion in loaded] == [pair["completion"] for pair in PAIRS]
    assert loaded[0][0].prompt == ({"role": "user", "content": "What is 0?"},)
    sft(config(tmp_path, model={"path": str(tiny)}, pairs={"path": str(data)}, batch_pairs=8))
    templated = [{**pair, "prompt": f"<|user|>{pair['prompt']}<|assistant|>"} for pair in PAIRS]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny).eval(), load_tokenizer(str(tiny))
    assert losses(tmp_path / "runs" / "sft") == pytest.approx([completion_loss(model, tokenizer, templated)], abs=1e-4)


def test_the_train_problems_of_a_task_and_their_solutions_are_pairs(tmp_path: Path) -> None:
    rows = [
        {"question": f"What is {n} + 1?", "answer": f"It is {n} + 1 = <<{n}+1={n + 1}>>{n + 1}.\n#### {n + 1}"}
        for n in range(10)
    ]
    (tmp_path / "data").mkdir()
    write_rows(tmp_path / "data" / "train.jsonl", rows[:9])
    for split in ("validation", "test"):
        write_rows(tmp_path / "data" / f"{split}.jsonl", rows[9:])
    task = {"name": "gsm8k", "path": str(tmp_path / "data")}
    for count, expected in ((3, 3), (100, 9)):
        loaded = load_pairs(config(tmp_path, task=task, pairs={"count": count}))
        assert len(loaded) == expected
        assert len({problem.id for problem, _ in loaded}) == expected
        for problem, text in loaded:
            number = int(problem.columns["question"].split()[2])
            assert text == f"It is {number} + 1 = {number + 1}.\n\\boxed{{{number + 1}}}"
    with pytest.raises(UserError, match=r"pairs\.worked_share: expected none beside task\.name=gsm8k, got 0\.5"):
        load_pairs(config(tmp_path, task=task, pairs={"worked_share": 0.5}))


def test_a_task_without_solutions_is_refused(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "rows.jsonl", [{"prompt": f"Write {n}."} for n in range(20)])
    task = {"name": "jsonl", "path": str(data), "arguments": {"verifier": None}}
    with pytest.raises(
        UserError, match=r"task jsonl: expected a solution, got none for .*name a file .*\(pairs\.path=FILE"
    ):
        load_pairs(config(tmp_path, task=task))


def test_the_task_makes_pairs_for_a_new_model(tmp_path: Path) -> None:
    ended = grouprl(
        "sft", "--task", "word_problems", "task.difficulty=1", "pairs.count=800", "batch_pairs=16", "model.threads=1",
        "learner.learning_rate=0.01",
        f"new_model={json.dumps(NEW)}", f"runs_dir={tmp_path / 'runs'}", f"out={tmp_path / 'mine'}",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert f"Model: {tmp_path / 'mine'}" in ended.text
    falling = losses(tmp_path / "runs" / "sft")
    assert len(falling) == 50
    assert sum(falling[-3:]) / 3 < 0.5 * falling[0]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "mine")
    assert (model.config.hidden_size, model.config.num_hidden_layers) == (32, 1)
    assert len(load_tokenizer(str(tmp_path / "mine"))) <= 400
    assert load_model(str(tmp_path / "mine"), device=torch.device("cpu")).dtype == torch.float32
    ended = grouprl("eval", tmp_path / "mine", "evaluation.problems=5", "rollout.max_tokens=8", "--json")
    assert json.loads(ended.out)["problems"] == 5


def test_plain_transformers_splits_text_as_the_new_model_learned_it(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "pairs.jsonl", PAIRS)
    made = sft(config(tmp_path, new_model=NEW, pairs={"path": str(data)}))
    text = "It is 7, I think: \\boxed{15 - 8}"
    assert AutoTokenizer.from_pretrained(made)(text)["input_ids"] == load_tokenizer(str(made))(text)["input_ids"]


def test_the_same_seed_makes_the_same_model_and_another_one_another(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "pairs.jsonl", PAIRS)

    def weights(name: str, seed: int) -> bytes:
        made = sft(config(tmp_path, name=name, seed=seed, new_model=NEW, pairs={"path": str(data)}, batch_pairs=3))
        return (made / "model.safetensors").read_bytes()

    assert weights("a", 0) == weights("b", 0) != weights("c", 1)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([{"prompt": "a"}], r"pairs.jsonl:1: expected a column 'completion', got prompt: rename or add"),
        ([PAIRS[0], {"prompt": 3, "completion": "b"}], r"pairs.jsonl:2: expected text in column 'prompt', got 3"),
        ([{"prompt": [{"text": "a"}], "completion": "b"}], r"pairs.jsonl:1: expected text in column 'prompt', got \["),
        ([PAIRS[0], {"prompt": "a", "completion": "b " * 300}], r"pairs.jsonl:2.*expected a prompt of 1 to"),
        ([], r"expected at least one row in .*pairs.jsonl"),
    ],
    ids=["no column", "no text", "no messages", "too long", "empty"],
)
def test_bad_pairs_are_a_sentence(tiny: Path, tmp_path: Path, rows: list[dict[str, Any]], sentence: str) -> None:
    data = write_rows(tmp_path / "pairs.jsonl", rows)
    before = tree(tmp_path)
    with pytest.raises(UserError, match=sentence):
        sft(config(tmp_path, model={"path": str(tiny)}, pairs={"path": str(data)}))
    assert tree(tmp_path) == before


def test_a_folder_that_is_no_model_is_not_replaced(tiny: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "pairs.jsonl", PAIRS)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    for out in (tmp_path / "thesis", data):
        before = tree(tmp_path)
        with pytest.raises(UserError, match="out: expected a new or empty folder, or a model to replace, got"):
            sft(config(tmp_path, model={"path": str(tiny)}, pairs={"path": str(data)}, out=str(out)))
        assert tree(tmp_path) == before


def test_a_model_is_replaced_and_a_run_is_not(tiny: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "pairs.jsonl", PAIRS)
    out = tmp_path / "mine"
    changes = {"model": {"path": str(tiny)}, "pairs": {"path": str(data)}, "out": str(out)}
    sft(config(tmp_path, name="a", **changes))
    first = (out / "model.safetensors").read_bytes()
    sft(config(tmp_path, name="b", **changes, epochs=2))
    assert (out / "model.safetensors").read_bytes() != first
    before = tree(tmp_path)
    with pytest.raises(UserError, match=r"already holds a run \(config.yaml, .* or choose another name"):
        sft(config(tmp_path, name="a", **changes))
    assert tree(tmp_path) == before


def test_a_completion_of_several_messages_is_imitated_turn_by_turn(tiny: Path, tmp_path: Path) -> None:
    """The loss is on the assistant's turns alone: the model's own cross-entropy with the other labels masked."""
    turns = ["It is 4.", "Yes, of course."]
    messages = [{"role": "assistant", "content": turns[0]}, {"role": "user", "content": "Is it?"}]
    prompt = [{"role": "user", "content": "What is 2 + 2?"}]
    row = {"prompt": prompt, "completion": [*messages, {"role": "assistant", "content": turns[1]}]}
    data = write_rows(tmp_path / "pairs.jsonl", [row])
    model = {"path": str(tiny), "chat_template": "tools"}
    sft(config(tmp_path, model=model, pairs={"path": str(data)}, learner={"learning_rate": 0.0}))
    start, tokenizer = AutoModelForCausalLM.from_pretrained(tiny).eval(), load_tokenizer(str(tiny))
    prepare_template(tokenizer, str(tiny), "tools")
    ids = tokenizer.apply_chat_template([*prompt, *row["completion"]], return_dict=False)
    labels, place = [-100] * len(ids), 0
    for turn in turns:
        own = [*tokenizer(turn, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        place = next(at for at in range(place, len(ids)) if ids[at : at + len(own)] == own)
        labels[place : place + len(own)] = own
    with torch.no_grad():
        expected = start(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss
    assert losses(tmp_path / "runs" / "sft") == [pytest.approx(float(expected), abs=1e-5)]


def test_what_all_prompts_begin_with_is_read_once(tiny: Path, tmp_path: Path) -> None:
    """Loss and gradient are those of pairs that are read whole."""
    model, tokenizer = load_model(str(tiny), device=torch.device("cpu")), load_tokenizer(str(tiny))
    groups = []
    for number in range(5):
        ids = tuple(tokenizer("The same words stand before each of the questions. What is " + str(number))["input_ids"])
        completion = authored_completion(0, f"It is {number}.", tokenizer)
        groups.append(Group(Problem(str(number), ""), ids, (completion,)))

    def metrics(batch: Batch, pack: Pack) -> dict[str, Tensor]:
        return {"loss": -pack_forward(model, pack, batch.sampling).logprobs_C.sum() / batch.mask_NT.sum()}

    found = []
    for network in (None, model):
        loss = SupervisedLoss(metrics, config(tmp_path), network).metrics(groups, gradient=True)["loss"]
        found.append((loss, [weight.grad.clone() for weight in model.parameters()]))
        model.zero_grad()
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-6)
    for ours, theirs in zip(found[1][1], found[0][1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
