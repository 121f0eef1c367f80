"""Reward models against plain transformers: scores on padded rows, gradient, metrics; and as a reward."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedTokenizerFast

from grouprl.algorithms import bradley_terry_loss
from grouprl.models.load import fingerprint, load_tokenizer
from grouprl.models.reward_model import load_reward_model, new_reward_model
from grouprl.models.save import save_model
from grouprl.rewards.calls import Invalid
from grouprl.rewards.functions import WeightedReward
from grouprl.rewards.learned import learned_reward
from grouprl.supervised.preference_learning import reward_metrics, train_reward_model
from grouprl.supervised.preferences import load_preferences, split_preferences
from grouprl.supervised.settings import RewardModelConfig
from grouprl.supervised.training import SupervisedLoss
from grouprl.types import Group, Problem, UserError
from judging import judged
from pairs import ROWS, completion
from small_runs import grouprl, tree, write_rows
from tiny import Kind, tiny_model_folder

CPU = torch.device("cpu")


def config(tmp_path: Path, tiny: Path, **changes: Any) -> RewardModelConfig:
    data = write_rows(tmp_path / "pairs.jsonl", ROWS)
    given = {"runs_dir": str(tmp_path / "runs"), "model": {"path": str(tiny), "threads": 1}, "batch_pairs": 4}
    return RewardModelConfig(**{"preferences": {"path": str(data)}, **given, **changes})


@pytest.fixture(scope="module")
def trained(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a reward model that was trained for a few updates."""
    folder = tmp_path_factory.mktemp("trained")
    return train_reward_model(config(folder, tiny, epochs=8, learner={"learning_rate": 3e-3}, eval_share=0.25))


def padded_scores(folder: Path, rows: Sequence[Sequence[int]]) -> list[float]:
    """What transformers' own classifier says of rows in one padded batch."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    pad, width = model.config.pad_token_id, max(map(len, rows)) + 3
    ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    with torch.no_grad():
        scores: list[float] = model(input_ids=ids, attention_mask=mask).logits[:, 0].tolist()
    return scores


def rows_of(groups: Sequence[Group]) -> list[list[int]]:
    return [[*group.prompt_ids, *own.token_ids] for group in groups for own in group.completions]


# The loss


def test_bradley_terry_by_hand() -> None:
    _, stats = bradley_terry_loss(torch.tensor([1.0, 0.5]), torch.tensor([-1.0, 1.5]))
    assert {name: value.item() for name, value in stats.items()} == {
        "accuracy": 0.5, "margin": 0.5, "chosen_score": 0.75, "rejected_score": 0.25,
    }  # fmt: skip
    assert bradley_terry_loss(torch.zeros(3), torch.zeros(3))[1]["accuracy"].item() == 0
    # P(a over b) = e^a / (e^a + e^b), the probability that the model of Bradley and Terry gives to each choice.
    chosen, rejected = torch.tensor([0.3, -2.0, 30.0]), torch.tensor([0.1, 1.0, -30.0])
    likelihood = math.prod(math.exp(a) / (math.exp(a) + math.exp(b)) for a, b in zip(chosen, rejected, strict=True))
    assert bradley_terry_loss(chosen, rejected)[0].item() * 3 == pytest.approx(-math.log(likelihood), rel=1e-5)


def test_bradley_terry_gradient_shift_and_shapes() -> None:
    scores = [torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    assert torch.autograd.gradcheck(lambda *pair: bradley_terry_loss(*pair)[0], [s.requires_grad_() for s in scores])
    shifted = bradley_terry_loss(scores[0] + 7, scores[1] + 7)[0]
    assert shifted.item() == pytest.approx(bradley_terry_loss(*scores)[0].item())
    assert torch.isfinite(bradley_terry_loss(torch.tensor([-1e4]), torch.tensor([1e4]))[0])
    with pytest.raises(ValueError, match="one shape"):
        bradley_terry_loss(scores[0], scores[1][:3])


# The model


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_packed_score_is_that_of_a_padded_row(tmp_path: Path, kind: Kind) -> None:
    start = tiny_model_folder(tmp_path, kind=kind)
    settings = config(tmp_path, start, learner={"learning_rate": 3e-3})
    folder = train_reward_model(settings)
    tokenizer = load_tokenizer(str(folder))
    long, one = [50, 51, 52, 53, 54, 55, tokenizer.eos_token_id], [60]
    groups = [([5, 6, 7, 8], [long, one]), ([9], [[61, 62], [tokenizer.eos_token_id], [63] * 20])]
    reward = learned_reward(str(folder), policy=str(start), device=CPU)
    prompts = [tokenizer.decode(prompt) for prompt, own in groups for _ in own]
    encoded = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    ids = [list(own) for _, completions in groups for own in completions]
    found = reward(prompts=prompts, completions=[""] * 5, completion_ids=ids)
    expected = padded_scores(folder, [prompt + own for prompt, own in zip(encoded, ids, strict=True)])
    assert found == pytest.approx(expected, abs=1e-4)
    assert max(expected) - min(expected) > 0.01


def test_a_new_head_is_small_and_decided_by_the_seed(tiny: Path) -> None:
    def weight(seed: int) -> torch.Tensor:
        torch.manual_seed(seed * 100)  # of no influence
        head: torch.Tensor = new_reward_model(str(tiny), load_tokenizer(str(tiny)), seed=seed, device=CPU).score.weight
        return head

    torch.manual_seed(3)
    first = weight(0)
    torch.manual_seed(4)
    assert torch.equal(first, weight(0))
    assert not torch.equal(first, weight(1))
    assert 0.2 / 32 < first.std().item() < 2 / 32


def test_training_continues_from_the_head_of_a_reward_model(trained: Path) -> None:
    model = new_reward_model(str(trained), load_tokenizer(str(trained)), seed=5, device=CPU)
    assert fingerprint(model) == fingerprint(load_reward_model(str(trained), device=CPU))


def retokenized(tmp_path: Path, tiny: Path, **special: Any) -> Path:
    """The tiny model with a tokenizer that has other special tokens."""
    backend = load_tokenizer(str(tiny)).backend_tokenizer
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", **special)
    save_model(AutoModelForCausalLM.from_pretrained(tiny), tokenizer, tmp_path / "retokenized")
    return tmp_path / "retokenized"


def test_the_end_token_is_never_the_padding(tmp_path: Path, tiny: Path) -> None:
    start = retokenized(tmp_path, tiny, pad_token="<|end|>", bos_token="<|system|>")
    settings = config(tmp_path, start)
    folder = train_reward_model(settings)
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.pad_token == "<|system|>"
    assert AutoModelForSequenceClassification.from_pretrained(folder).config.pad_token_id == tokenizer.pad_token_id
    assert tokenizer.get_vocab() == load_tokenizer(str(start)).get_vocab()
    ids = [[50, 51, tokenizer.eos_token_id], [50, 51]]
    found = learned_reward(str(folder), policy=str(start), device=CPU)(["a", "a"], ["", ""], ids)
    prompt = tokenizer("a")["input_ids"]
    assert found == pytest.approx(padded_scores(folder, [prompt + own for own in ids]), abs=1e-4)
    assert abs(found[0] - found[1]) > 1e-4  # type: ignore[operator]


def test_a_tokenizer_with_nothing_to_pad_with_is_refused(tmp_path: Path, tiny: Path) -> None:
    start = retokenized(tmp_path, tiny)
    with pytest.raises(UserError, match=r"expected a tokenizer with a special token for padding.*pad_token"):
        train_reward_model(config(tmp_path, start))
    assert not (tmp_path / "runs").exists()


# Training


def test_the_gradient_is_that_of_padded_rows(tmp_path: Path, tiny: Path) -> None:
    settings = config(tmp_path, tiny)
    tokenizer = load_tokenizer(str(tiny))
    groups = [pair.group for pair in load_preferences(settings.preferences, tokenizer)]
    found = []
    for budget in (16384, 60, 1):
        model = new_reward_model(str(tiny), tokenizer, seed=0, device=CPU)
        learned = SupervisedLoss(reward_metrics(model), config(tmp_path, tiny, learner={"micro_batch_tokens": budget}))
        metrics = learned.metrics(groups, gradient=True)
        found.append((metrics, {name: weight.grad for name, weight in model.named_parameters()}))
    save_model(new_reward_model(str(tiny), tokenizer, seed=0, device=CPU), tokenizer, tmp_path / "start")
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "start").eval()
    scores = torch.cat([plain(input_ids=torch.tensor([row])).logits[:, 0] for row in rows_of(groups)])
    loss = torch.log1p(torch.exp(scores[1::2] - scores[::2])).mean()
    loss.backward()
    expected = {name: weight.grad for name, weight in plain.named_parameters()}
    for metrics, gradients in found:
        assert metrics == pytest.approx(found[0][0], abs=1e-6)
        assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
        assert metrics["accuracy"] == pytest.approx((scores[::2] > scores[1::2]).double().mean().item())
        assert gradients.keys() == expected.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-3)


def test_held_out_pairs_are_judged_before_and_after(trained: Path, tiny: Path) -> None:
    run = trained.parent
    summary = json.loads((run / "summary.json").read_text())
    settings = config(run.parent.parent, tiny)
    pairs = load_preferences(settings.preferences, load_tokenizer(str(tiny)))
    _, test = split_preferences(pairs, 0.25)
    scores = torch.tensor(padded_scores(trained, rows_of([pair.group for pair in test])))
    margins = scores[::2] - scores[1::2]
    assert summary["after"]["accuracy"] == pytest.approx((margins > 0).float().mean().item())
    assert summary["after"]["margin"] == pytest.approx(margins.mean().item(), abs=1e-4)
    assert summary["after"]["loss"] == pytest.approx(torch.log1p(torch.exp(-margins)).mean().item(), abs=1e-4)
    assert summary["before"]["loss"] == pytest.approx(math.log(2), abs=0.1)
    # Wilson's interval of 3 of 3 is [3 / (3 + 1.96^2), 1].
    assert summary["after"]["accuracy"] == 1
    assert summary["after"]["accuracy_interval"] == pytest.approx([3 / (3 + 1.959964**2), 1.0], abs=1e-4)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["loss"] < 0.1 < rows[0]["loss"]
    expected = {"loss", "accuracy", "margin", "chosen_score", "rejected_score", "grad_norm", "learning_rate"}
    assert all(expected <= row.keys() for row in rows)


def test_the_command_line_trains_one_and_shows_an_example(tmp_path: Path, tiny: Path) -> None:
    data = write_rows(tmp_path / "pairs.jsonl", ROWS)
    ended = grouprl(
        "reward-model", "--model", tiny, f"preferences.path={data}", f"runs_dir={tmp_path / 'runs'}", "model.threads=1"
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert f"Reward model: {tmp_path / 'runs' / 'reward-model' / 'model'}" in ended.text
    assert "2 held-out pairs" in ended.text
    assert "Example: grouprl reward-model abacus_reward_model" in grouprl("reward-model", "--help").text
    before = tree(tmp_path)
    ended = grouprl("reward-model", "--model", tiny, f"preferences.path={tmp_path / 'no.jsonl'}")
    assert (ended.code, tree(tmp_path)) == (2, before)


# As a reward


def test_token_ids_are_scored_as_they_are_and_however_they_are_packed(trained: Path, tiny: Path) -> None:
    tokenizer = load_tokenizer(str(tiny))
    chat = [{"role": "user", "content": "Hi"}]
    prompts: list[Any] = ["Say 1.", "Say 1.", chat, chat, chat, "Say 1."]
    ids = [[70, 71], [72], [73, 74, 75], [76], [77, 78], [79]]  # not what any text is encoded as
    texts = [tokenizer.decode(own) for own in ids]
    said = [text if isinstance(prompt, str) else [{"role": "assistant", "content": text}] for prompt, text in
            zip(prompts, texts, strict=True)]  # fmt: skip
    templated = [p if isinstance(p, str) else "<|user|>Hi<|assistant|>" for p in prompts]
    rows = [tokenizer(p)["input_ids"] + own for p, own in zip(templated, ids, strict=True)]
    for budget in (16384, 20, 1):
        reward = learned_reward(str(trained), policy=str(tiny), device=CPU, micro_batch_tokens=budget)
        found = reward(prompts, said, ids, answer=[None] * 6)
        assert found == pytest.approx(padded_scores(trained, rows), abs=1e-4)


def test_a_pack_keeps_to_its_budget_with_each_prompt_once(trained: Path, tiny: Path) -> None:
    reward = learned_reward(str(trained), policy=str(tiny), device=CPU, micro_batch_tokens=30)
    sizes: list[int] = []
    reward.model.get_decoder().register_forward_pre_hook(
        lambda _, args, given: sizes.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    prompt = len(load_tokenizer(str(tiny))("Say 1.")["input_ids"])
    assert prompt == 6
    reward(["Say 1."] * 6 + ["Say 2."], [""] * 7, [[50] * 8] * 3 + [[50] * 40] + [[50] * 2] * 3)
    # 6 + 3 * 8 = 30; one that is too long by itself; 6 + 2 + 2, and 6 + 2 behind the other prompt.
    assert sizes == [30, 46, 18]


def test_the_judge_takes_it_like_any_reward(trained: Path, tiny: Path) -> None:
    tokenizer = load_tokenizer(str(tiny))
    prompt_ids = tuple(tokenizer("Say 1.")["input_ids"])
    own = tuple(completion(i, [70 + i, 71, tokenizer.eos_token_id], tokenizer) for i in range(3))
    group = Group(Problem("p", "Say 1.", {"answer": "1"}), prompt_ids, own)
    reward = learned_reward(str(trained), policy=str(tiny), device=CPU)
    before = fingerprint(reward.model)
    (outcomes,) = judged([group], [WeightedReward("taste", reward, 2.0)])
    expected = padded_scores(trained, rows_of([group]))
    assert [outcome.total for outcome in outcomes] == pytest.approx([2 * score for score in expected], abs=2e-4)
    assert [outcome.components["taste"] for outcome in outcomes] == pytest.approx(expected, abs=1e-4)
    assert fingerprint(reward.model) == before
    assert not any(weight.requires_grad for weight in reward.model.parameters())
    assert not reward.model.training


def test_a_completion_that_does_not_fit_is_refused(trained: Path, tiny: Path) -> None:
    reward = learned_reward(str(trained), policy=str(tiny), device=CPU)
    with pytest.raises(UserError, match=r"expected a prompt of 1 to 6 tokens .* shorten the prompt or lower"):
        reward(["What is it, please?" * 3], [""], [[50] * 250])


CHAT = [{"role": "user", "content": "Hi"}]


def test_a_foreign_reward_model_reads_the_conversation_in_its_own_tokens(trained: Path) -> None:
    reward = learned_reward(str(trained), policy="abacus", device=CPU, micro_batch_tokens=20)
    tokenizer = load_tokenizer(str(trained))
    prompts: list[Any] = ["Say 1.", "Say 1.", CHAT, CHAT, CHAT, "What?"]
    said = ["One", "One", "Two", "", "Two and three", "No"]
    completions = [
        text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        for prompt, text in zip(prompts, said, strict=True)
    ]
    texts = [
        prompt + text if isinstance(prompt, str) else f"<|user|>Hi<|assistant|>{text}<|end|>"
        for prompt, text in zip(prompts, said, strict=True)
    ]
    found = reward(prompts, completions, [[0]] * 6)  # the policy's ids mean nothing to it
    assert found == pytest.approx(padded_scores(trained, [tokenizer(text)["input_ids"] for text in texts]), abs=1e-4)
    rows = [tokenizer(text)["input_ids"] for text in ("apples", "boxes, and more")]
    assert rows[0][0] != rows[1][0]  # no token is shared
    assert reward(["", ""], ["apples", "boxes, and more"], [[0]] * 2) == pytest.approx(
        padded_scores(trained, rows), abs=1e-4
    )


def test_a_conversation_beyond_a_foreign_context_is_invalid(trained: Path, tiny: Path) -> None:
    reward = learned_reward(str(trained), policy="abacus", device=CPU)
    long = "What is it, please?" * 90
    found = reward(["Say 1."] * 3, ["One", long, "Two"], [[0]] * 3)
    assert isinstance(found[1], Invalid)
    assert [found[0], found[2]] == reward(["Say 1."] * 2, ["One", "Two"], [[0]] * 2)
    problem = Problem("p", "Say 1.", {"answer": "1"})
    own = tuple(completion(i, [70 + i], load_tokenizer("abacus")) for i in range(2))
    group = Group(problem, (5,), (own[0], dataclasses.replace(own[1], text=long)))
    (outcomes,) = judged([group], [WeightedReward("taste", reward, 1.0)])
    assert math.isfinite(outcomes[0].total)
    assert "is longer than the reward model's context of 256 tokens" in (outcomes[1].reason)


def test_messages_without_a_template_are_one_sentence(trained: Path) -> None:
    reward = learned_reward(str(trained), policy="abacus", device=CPU)
    reward.tokenizer.chat_template = None
    with pytest.raises(UserError, match="reward model: its tokenizer has no chat template"):
        reward([CHAT], [[{"role": "assistant", "content": "Two"}]], [[0]])


def test_an_unfit_reward_model_is_refused(trained: Path, tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected a classifier with one trained score, got no weights for score"):
        learned_reward(str(tiny), policy=str(tiny), device=CPU)
    two = AutoModelForSequenceClassification.from_pretrained(tiny, num_labels=2)
    save_model(two, load_tokenizer(str(tiny)), tmp_path / "two")
    with pytest.raises(UserError, match="expected a classifier with one trained score, got 2 labels"):
        learned_reward(str(tmp_path / "two"), policy=str(tiny), device=CPU)
    with pytest.raises(UserError, match=r"model '.*two': expected a model with a sequence classifier"):
        train_reward_model(config(tmp_path, tmp_path / "two"))
    with pytest.raises(UserError, match=r"model './nothing': expected a folder"):
        learned_reward("./nothing", policy=str(tiny), device=CPU)
