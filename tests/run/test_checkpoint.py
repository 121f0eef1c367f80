"""Checkpoints: anyone can load them, a failure while saving costs nothing, and they know what they belong to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from grouprl.algorithms.spec import Algorithm
from grouprl.config.run import LearnerConfig
from grouprl.learner import Learner, Optimizer
from grouprl.models.load import load_model, load_tokenizer
from grouprl.models.manifest import write_manifest
from grouprl.problems.gsm8k import Gsm8k
from grouprl.record.layout import RunDirectory
from grouprl.run.checkpoint import TrainerState, load_learner, problems_fingerprint, read_state, save_checkpoint
from grouprl.tasks import task_from_list
from grouprl.types import UserError
from small_runs import assert_same_weights, checkpoint_names, gsm8k_row, tree, write_rows
from tiny import tiny_model_folder

STATE = TrainerState(
    step=1,
    updates=3,
    train_seconds=0.1 + 0.2,
    completion_tokens=1234,
    peak_rss_mib=56.75,
    start="weights",
    data="problems",
    kl_coef=0.07,  # another one than the algorithm's
    entropy_coef=0.1,
    entropy_bonus=0.0,
)
CPU = torch.device("cpu")
IDS = torch.tensor([[5, 9, 2, 40, 41], [7, 7, 1, 250, 3]])


class Policy:
    """A model with an optimizer that has made one update."""

    def __init__(self, folder: Path) -> None:
        self.model: PreTrainedModel = load_model(str(folder), device=CPU)
        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(str(folder))
        self.optimizer = Optimizer(self.model, LearnerConfig(learning_rate=0.01))
        self.update()

    def update(self) -> None:
        for weight in self.model.parameters():
            weight.grad = torch.sin(torch.arange(weight.numel()) + self.optimizer.updates).view_as(weight)
        self.optimizer.step()

    def save(self, run: Path, step: int, keep: int = 9) -> Path:
        state = replace(STATE, step=step)
        return save_checkpoint(run, state, self.learner, self.tokenizer, keep=keep)

    @property
    def learner(self) -> Learner:
        algorithm = Algorithm()
        return Learner(self.model, None, self.optimizer, algorithm, CPU, "float32", 100)


@pytest.fixture
def policy(tiny: Path) -> Policy:
    return Policy(tiny)


def test_plain_transformers_loads_the_policy_with_its_logits_and_its_tokenizer(
    policy: Policy, tiny: Path, tmp_path: Path
) -> None:
    folder = policy.save(tmp_path, 1)
    policy.model.set_attn_implementation("eager")  # the implementation that is written out in transformers itself
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    started = AutoModelForCausalLM.from_pretrained(tiny)
    with torch.no_grad():
        ours, theirs, old = (model(IDS).logits for model in (policy.model, loaded, started))
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=0)
    assert (theirs - old).abs().max() > 0.01  # and not those of the model that the run started from
    tokenizer, text = AutoTokenizer.from_pretrained(folder), "John has 15 apples. \\boxed{7}"
    assert tokenizer(text)["input_ids"] == AutoTokenizer.from_pretrained(tiny)(text)["input_ids"]
    assert tokenizer.chat_template == policy.tokenizer.chat_template
    assert tokenizer.eos_token_id == policy.tokenizer.eos_token_id


def test_a_checkpoint_gives_back_state_weights_and_optimizer_to_the_last_bit(policy: Policy, tmp_path: Path) -> None:
    folder = policy.save(tmp_path, 1)
    found = RunDirectory(tmp_path).checkpoints()[-1]
    state = read_state(found)
    assert (found.path, state) == (folder, STATE)
    again = Policy(folder)
    again.model.load_state_dict(load_model(str(folder), device=CPU).state_dict())
    load_learner(found, again.learner, state)
    assert again.optimizer.updates == STATE.updates
    learner = again.learner
    load_learner(found, learner, state)
    assert (learner.kl_coef, learner.entropy_coefs) == (0.07, (0.1, 0.0))
    policy.optimizer.updates = STATE.updates
    for one in (policy, again):
        one.update()
    assert_same_weights(policy.save(tmp_path / "a", 2), again.save(tmp_path / "b", 2))


class FullDisk(Optimizer):
    """Breaks off when the weights are written and the optimizer is not."""

    def moments(self) -> dict[str, Tensor]:
        raise OSError(28, "No space left on device")


def test_a_failure_while_saving_leaves_the_earlier_checkpoint_alone(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path, 1)
    before = tree(tmp_path)
    policy.optimizer = FullDisk(policy.model, LearnerConfig())
    for step in (2, 1):
        with pytest.raises(OSError, match="No space left"):
            policy.save(tmp_path, step, keep=1)
        assert tree(tmp_path) == before


def test_the_newest_are_kept(policy: Policy, tmp_path: Path) -> None:
    for step in (1, 2, 9, 10):
        policy.save(tmp_path, step, keep=2)
    assert checkpoint_names(tmp_path) == ["step-000009", "step-000010"]
    assert read_state(RunDirectory(tmp_path).checkpoints()[-1]) == replace(STATE, step=10)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"kl_coef"', '"beta"', r"expected a state with .*kl_coef.*, got beta, .*another version"),
        ('"step": 1,', '"step": 0,', "expected the state after this step, got step 0"),
        ('"step": 1,', '"step": 2,', "expected the state after this step, got step 2"),
    ],
)
def test_the_state_of_another_version_or_step_is_a_sentence(
    policy: Policy, tmp_path: Path, old: str, new: str, said: str
) -> None:
    state = policy.save(tmp_path, 1) / "trainer" / "state.json"
    state.write_text(state.read_text().replace(old, new))
    write_manifest(state.parents[1])
    with pytest.raises(UserError, match=said):
        read_state(RunDirectory(tmp_path).checkpoint(1))


def test_the_optimizer_of_another_model_is_refused(policy: Policy, tmp_path: Path) -> None:
    policy.save(tmp_path, 1)
    other = Policy(tiny_model_folder(tmp_path, kind="llama"))
    with pytest.raises(UserError, match="expected optimizer state for the weights of this model, got a difference in"):
        load_learner(RunDirectory(tmp_path).checkpoint(1), other.learner, STATE)


def test_a_change_of_any_row_of_a_data_file_changes_the_fingerprint(tmp_path: Path) -> None:
    rows = [gsm8k_row(number) for number in range(100)]

    def fingerprint() -> str:
        return problems_fingerprint(Gsm8k(str(write_rows(tmp_path / "data.jsonl", rows))).problems("train"))

    first = fingerprint()
    assert fingerprint() == first
    places = Gsm8k(str(tmp_path / "data.jsonl")).problems("train")
    train = {problem.columns["question"] for problem in places}
    numbers = [number for number, row in enumerate(rows) if row["question"] in train]
    for number in (numbers[0], numbers[1], numbers[-1]):
        right = rows[number]
        rows[number] = {**right, "answer": right["answer"] + "0"}
        assert fingerprint() != first
        rows[number] = right


def test_the_fingerprint_knows_prompts_columns_number_and_order() -> None:
    rows = [{"prompt": f"{number} + 1 = ?", "answer": number + 1} for number in range(20)]
    base = problems_fingerprint(task_from_list(rows).problems("train"))
    other_column = [{**row, "answer": str(row["answer"])} for row in rows]
    other_name = [{"prompt": row["prompt"], "gold": row["answer"]} for row in rows]
    as_chat = [{**row, "prompt": [{"role": "system", "content": row["prompt"]}]} for row in rows]
    for changed in (rows[:-4], rows[::-1], other_column, other_name, as_chat):
        assert problems_fingerprint(task_from_list(changed).problems("train")) != base
    assert problems_fingerprint(task_from_list([dict(row) for row in rows]).problems("train")) == base
