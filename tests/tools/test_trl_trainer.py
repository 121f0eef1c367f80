"""TRL's GRPOConfig and GRPOTrainer: numbers worked by hand from TRL's documentation, and what scripts do with them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, IterableDataset
from transformers import AutoModelForCausalLM, HfArgumentParser, TrainerCallback, TrainerState, TrainingArguments

from grouprl import UserError
from grouprl.algorithms.named import NAMED
from grouprl.models.load import load_tokenizer
from grouprl.tools.compare.trl_log import rows_beside
from grouprl.trl import GRPOConfig, GRPOTrainer
from grouprl.trl.arguments import plan_training
from grouprl.trl.history import trl_metrics
from grouprl.types import Completion, Group, Problem, RewardOutcome, StepRecord, StopReason, TokenTrace
from letter_rewards import InProcess
from small_runs import ROWS, metrics

LETTERS = InProcess(lambda _: None)
DATA = Dataset.from_list(ROWS[:12])
TINY = {"num_generations": 4, "max_completion_length": 8, "bf16": False, "use_cpu": True, "learning_rate": 1e-2}
NOTHING = dict.fromkeys(
    (
        "peft_config",
        "quantization_config",
        "eval_dataset",
        "processing_class",
        "rollout_func",
        "environment_factory",
        "callbacks",
        "tools",
    )
) | {"model": "any", "train_dataset": DATA, "optimizers": (None, None)}


class Events(TrainerCallback):
    """Notes the events of a training with their update, and stops it after one of them."""

    def __init__(self, last: int = 10**6) -> None:
        self.seen, self.last = list[tuple[str, int]](), last

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seen.append(("begin", state.global_step))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seen.append(("step", state.global_step))
        control.should_training_stop = state.global_step >= self.last

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.seen.append(("log", state.global_step))

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seen.append(("save", state.global_step))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seen.append(("end", state.global_step))


class Gradients(TrainerCallback):
    """Waits for an event that no run has."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None: ...


class Bar(TrainerCallback):
    """Draws how far an evaluation is."""

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None: ...


def trainer(model: Any, folder: Path, **settings: Any) -> GRPOTrainer:
    """A training of 12 prompts in steps of two groups of four."""
    arguments = {name: settings.pop(name) for name in tuple(settings) if name in NOTHING}
    args = GRPOConfig(str(folder / "out"), **{**TINY, "num_train_epochs": 1, "logging_steps": 2, **settings})
    return GRPOTrainer(
        str(model) if isinstance(model, Path) else model, LETTERS, args, **{"train_dataset": DATA} | arguments
    )


# The configuration


def test_the_fields_and_defaults_are_trls() -> None:
    theirs = pytest.importorskip("trl.trainer.grpo_config").GRPOConfig
    ours = {field.name: field for field in dataclasses.fields(GRPOConfig)}
    usual = GRPOConfig()
    for field in dataclasses.fields(theirs):
        default = field.default if field.default is not dataclasses.MISSING else field.default_factory()
        if field.name != "output_dir":
            assert (ours.pop(field.name).name, getattr(usual, field.name)) == (field.name, default)
    assert ours.keys() == {"output_dir"}


def test_a_parser_of_arguments_reads_it() -> None:
    words = ["--output_dir", "x", "--epsilon_high", "0.28", "--generation_kwargs", '{"top_p": 0.5}', "--beta", "0"]
    (config,) = HfArgumentParser(GRPOConfig).parse_args_into_dataclasses(words)
    assert config.named == {"output_dir": "x", "epsilon_high": 0.28, "generation_kwargs": {"top_p": 0.5}}


def test_older_names_are_read_and_unknown_ones_name_the_nearest() -> None:
    config = GRPOConfig("x", max_prompt_length=512, per_gpu_train_batch_size=16)
    assert config.named == {"output_dir": "x", "max_prompt_length": 512, "per_device_train_batch_size": 16}
    with pytest.raises(UserError, match="got learning_rat: did you mean learning_rate"):
        GRPOConfig("x", learning_rat=1.0)


@pytest.mark.parametrize(
    ("settings", "rows", "ours"),
    [
        # 8 completions a device = one group of 8: 12 updates an epoch, 3 epochs by default.
        ({}, 12, {"steps": 36, "updates": 1, "updates_per_epoch": 12, "max_steps": 36, "groups": 1, "samples": 36}),
        # 32 completions = 4 groups; of 14 rows TRL drops two: 3 updates an epoch.
        ({"gradient_accumulation_steps": 4}, 14, {"steps": 9, "updates_per_epoch": 3, "samples": 42, "groups": 4}),
        # Four groups in 4 updates of a group each, twice: 8 updates a generation, 24 an epoch.
        (
            {"steps_per_generation": 4, "num_iterations": 2, "num_train_epochs": 1},
            12,
            {"steps": 3, "updates": 8, "updates_per_epoch": 24, "max_steps": 24, "groups": 4},
        ),
        ({"num_train_epochs": 0.5}, 12, {"steps": 6, "max_steps": 6}),
        ({"max_steps": 7}, 12, {"steps": 7, "max_steps": 7, "updates_per_epoch": 12, "samples": 7 * 8}),
        ({"save_strategy": "epoch"}, 12, {"every": 12, "keep": 10**6}),
        ({"save_steps": 0.25, "save_total_limit": 3}, 12, {"every": 9, "keep": 3}),
        ({"learning_rate": 1e-6, "beta": 0.1}, 12, {"rate": 1e-6, "kl_coef": 0.1, "dtype": "bfloat16"}),
    ],
)
def test_the_counts_of_a_training_are_trls(settings: dict[str, Any], rows: int, ours: dict[str, Any]) -> None:
    data = Dataset.from_list(ROWS[:rows])
    plan = plan_training(GRPOConfig("x/name", **settings), NOTHING | {"train_dataset": data}, [])
    config = plan.config
    values = {
        **dataclasses.asdict(plan),
        "steps": config.steps,
        "groups": config.rollout.problems_per_step,
        "every": config.checkpoint.every,
        "keep": config.checkpoint.keep,
        "rate": config.learner.learning_rate,
        "kl_coef": config.algorithm.kl_coef,
        "dtype": config.model.dtype,
    }
    assert {name: values[name] for name in ours} == ours
    assert (config.name, config.runs_dir, config.evaluation.problems) == ("name", "x", 0)


@pytest.mark.parametrize(("iterations", "turns"), [(None, 10_000), (0, 1), (25, 26)])
def test_an_episode_is_as_long_as_trls(iterations: int | None, turns: int) -> None:
    args = GRPOConfig("x", bf16=False, max_completion_length=300, max_tool_calling_iterations=iterations)
    plan = plan_training(args, NOTHING | {"tools": [print]}, [])
    assert (plan.config.environment.max_tokens, plan.config.environment.turns) == (300, turns)
    assert plan.notes[-1].startswith("tools: lists and mappings are shown as JSON")
    assert plan_training(args, NOTHING, []).config.environment.max_tokens is None


def test_a_bar_that_is_not_drawn_is_said() -> None:
    plan = plan_training(GRPOConfig("x", bf16=False), NOTHING | {"callbacks": [Bar(), Events]}, [])
    assert plan.notes == ("callbacks: Bar is not called for on_prediction_step",)
    assert plan.notes == plan_training(GRPOConfig("x", bf16=False), NOTHING | {"callbacks": [Bar]}, []).notes


# What cannot be


@pytest.mark.parametrize(
    ("settings", "sentences"),
    [
        (
            {"rollout_func": print, "loss_type": "other", "optimizers": (1, None), "use_liger_loss": True},
            (
                "rollout_func: GroupRL samples",
                "loss_type=other: expected dapo",
                "optimizers: the",
                "use_liger_loss=True: ",
            ),
        ),
        ({"deepspeed": "zero3.json"}, ("deepspeed=zero3.json: `torchrun`",)),
        ({"train_dataset": [{"prompt": "a", "image": 1}]}, ("train_dataset: expected text, got rows with images",)),
        (
            {"train_dataset": [{"prompt": [{"role": "user", "content": [{"type": "image"}]}]}]},
            ("train_dataset: expected text, got rows with images",),
        ),
        ({"eval_dataset": {"easy": DATA}}, ("eval_dataset: expected one data set",)),
        ({"callbacks": [Gradients]}, ("Gradients waits for on_pre_optimizer_step",)),
        ({"model": torch.nn.Linear(1, 1)}, ("model: expected a name, or a model of transformers or peft, got Linear",)),
        (
            {"train_dataset": IterableDataset.from_generator(lambda: iter(ROWS))},
            ("max_steps: expected a number of updates where train_dataset has no length",),
        ),
        ({"generation_kwargs": {"num_beams": 2}}, ("rollout has no setting for num_beams",)),
    ],
)
def test_what_has_no_counterpart_is_said_at_once_before_a_model_is_loaded(
    settings: dict[str, Any], sentences: Sequence[str], tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        trainer(settings.pop("model", "no/such-model"), tmp_path, **settings)
    assert [sentence for sentence in sentences if sentence not in str(error.value)] == []
    assert "--allow" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_what_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(ImportError, match="expected GRPOConfig or GRPOTrainer, got RLOOTrainer: import it from trl"):
        from grouprl.trl import RLOOTrainer  # type: ignore[attr-defined]  # noqa: F401
    import grouprl.trl

    assert not hasattr(grouprl.trl, "pytest_plugins")  # what other libraries look for in any module


def test_the_configuration_is_that_of_this_library(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"got transformers\.training_args\.TrainingArguments: import it from grouprl\.trl"
    ):
        GRPOTrainer("no/such-model", LETTERS, TrainingArguments(str(tmp_path), use_cpu=True), DATA)


def test_checkpoints_of_another_library_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tmp_path / "out" / "checkpoint-500"
    theirs.mkdir(parents=True)
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(UserError, match=r"(?s)output_dir: expected a new folder.*DeepSpeed plugin"):
        trainer("no/such-model", tmp_path)
    assert [*theirs.parent.iterdir()] == [theirs]


# A training


def test_a_script_trains_saves_and_resumes(tiny: Path, tmp_path: Path) -> None:
    events, out = Events(last=4), tmp_path / "out"
    first = trainer(tiny, tmp_path, callbacks=[events], save_steps=2, per_device_train_batch_size=8, max_steps=6)
    first.train()
    assert events.seen[:5] == [("begin", 0), ("step", 1), ("step", 2), ("log", 2), ("save", 2)]
    assert events.seen[5:] == [("step", 3), ("step", 4), ("log", 4), ("save", 4), ("log", 4), ("end", 4)]

    again = trainer(tiny, tmp_path, save_steps=2, per_device_train_batch_size=8, max_steps=6, save_total_limit=None)
    result = again.train(resume_from_checkpoint=str(out / "checkpoint-2"))
    assert result.global_step == again.state.global_step == 6
    spent = result.metrics  # transformers rounds to three digits
    assert spent["train_samples_per_second"] == pytest.approx(8 * spent["train_steps_per_second"], abs=5e-3)
    assert spent["epoch"] == 1
    assert [entry["step"] for entry in again.state.log_history] == [2, 4, 6, 6]
    assert {path.name for path in out.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4", "checkpoint-6"}
    saved = TrainerState.load_from_json(str(out / "checkpoint-6" / "trainer_state.json"))
    assert saved.log_history == again.state.log_history[:3]
    # Means of two steps; the tokens are those of prompts and completions so far.
    steps = metrics(out)
    entry = saved.log_history[1]
    assert entry["reward"] == pytest.approx((steps[2]["reward"] + steps[3]["reward"]) / 2)
    assert (entry["grad_norm"], entry["epoch"]) == (steps[3]["grad_norm"], 4 / 6)
    prompts = [load_tokenizer(str(tiny))(row["prompt"])["input_ids"] for row in ROWS[:12]]
    assert saved.num_input_tokens_seen == 4 * sum(map(len, prompts)) + sum(row["completion_tokens"] for row in steps)

    again.save_model()
    again.save_state()
    again.save_metrics("train", result.metrics)
    again.create_model_card()
    names = {path.name for path in out.iterdir()}
    assert {"config.json", "model.safetensors", "trainer_state.json", "train_results.json", "README.md"} <= names
    states = [AutoModelForCausalLM.from_pretrained(place).state_dict() for place in (out, out / "checkpoint-6")]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    with pytest.raises(UserError, match="already holds a run"):
        trainer(tiny, tmp_path).train()


def test_what_scripts_ask_of_a_trainer_beside_training(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = Events()
    script = trainer(tiny, tmp_path, callbacks=[Events, Bar, mine])
    assert script.processing_class.get_vocab() == load_tokenizer(str(tiny)).get_vocab()
    script.remove_callback(Bar)
    script.remove_callback(mine)
    assert [type(callback) for callback in script.callbacks] == [Events]
    assert script.hub_model_id == "out"
    assert trainer(tiny, tmp_path, hub_model_id="me/mine").hub_model_id == "me/mine"
    capsys.readouterr()
    for rank in (0, 1):
        dataclasses.replace(script.accelerator, process_index=rank).print("rank", rank, end="!")
    assert capsys.readouterr().out == "rank 0!"
    assert script.accelerator.unwrap_model(mine) is mine


def test_a_model_object_is_trained_in_place_and_evaluated(tiny: Path, tmp_path: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny), load_tokenizer(str(tiny))
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    script = trainer(
        model,
        tmp_path,
        max_steps=2,
        eval_strategy="steps",
        eval_steps=1,
        eval_dataset=DATA.select(range(2)),
        processing_class=tokenizer,
    )
    script.train()
    assert script.model is model
    assert any(not torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    evaluations = [entry["step"] for entry in script.state.log_history if "eval_reward" in entry]
    assert evaluations == [0, 1, 2]
    assert script.evaluate()["eval_rewards/InProcess/mean"] == pytest.approx(
        script.state.log_history[-3]["eval_reward"]
    )
    with pytest.raises(AttributeError, match=r"GRPOTrainer\.generate: GroupRL's trainer has train"):
        script.generate  # noqa: B018


def test_an_adapter_of_peft_is_trained_in_place(tiny: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        AutoModelForCausalLM.from_pretrained(tiny), peft.LoraConfig(r=2, target_modules=["q_proj"])
    )
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    script = trainer(model, tmp_path, max_steps=2)
    script.train()
    changed = {name for name, weight in script.model.state_dict().items() if not torch.equal(weight, start[name])}
    assert changed == {name for name in start if "lora_" in name}
    assert script.model.merge_and_unload() is not None


# The log


def record(**changes: Any) -> StepRecord:
    """Two groups of two: lengths 2, 4 (cut) and 1, 1; rewards 0, 1 and 3, 3; a ratio of 1.5 with A > 0 in a token."""
    rows = [(2, StopReason.END, 0.0), (4, StopReason.LENGTH, 1.0), (1, StopReason.END, 3.0), (1, StopReason.END, 3.0)]
    completions = [
        Completion(index % 2, (5,) * length, (-1.0,) * length, (-1.0,) * length, "", reason, 0)
        for index, (length, reason, _) in enumerate(rows)
    ]
    groups = [Group(Problem(str(at), ""), (1, 2, 3), tuple(completions[2 * at : 2 * at + 2])) for at in (0, 1)]
    outcomes = [RewardOutcome(reward, {"one": reward, "other": None if reward else 2.0}) for _, _, reward in rows]
    step = {
        "loss": 0.5,
        "grad_norm": 2.0,
        "learning_rate": 1e-3,
        "entropy": 4.0,
        "time/total": 9.0,
        "reward_logs/hits": 7.0,
    }
    logprobs = [(-1.0, -1.0), (-1.0 + math.log(1.5), -1.0, -1.0, -1.0), None, None]
    traces = [TokenTrace(logprobs=values) for values in logprobs]
    advantages = [(-1.0, -1.0), (1.0,) * 4, (0.0,), (0.0,)]
    return StepRecord(
        1,
        step | changes,
        groups,
        [outcomes[:2], outcomes[2:]],
        [advantages[:2], advantages[2:]],
        [traces[:2], traces[2:]],
    )


def test_the_metrics_of_a_step_are_trls() -> None:
    twice = dataclasses.replace(NAMED["trl"], updates=dataclasses.replace(NAMED["trl"].updates, passes=2))
    logged = trl_metrics(record(), twice)
    # Sample deviations over the batch: of 0, 1, 3, 3 sqrt(27 / 12); of the one 2.0 none.
    assert logged.pop("reward_std") == logged.pop("rewards/one/std") == pytest.approx(1.5)
    assert math.isnan(logged.pop("rewards/other/std"))
    assert logged == {
        "loss": 0.5,
        "grad_norm": 2.0,
        "learning_rate": 1e-3,
        "num_tokens": 3 * 4 + 8,
        "completions/mean_length": 2.0,
        "completions/min_length": 1.0,
        "completions/max_length": 4.0,
        "completions/mean_terminated_length": pytest.approx(4 / 3),
        "completions/min_terminated_length": 1.0,
        "completions/max_terminated_length": 2.0,
        "completions/clipped_ratio": 0.25,
        "rewards/one/mean": 1.75,
        "rewards/other/mean": 2.0,
        "reward": 1.75,
        "frac_reward_zero_std": 0.5,
        "hits": 7.0,
        "entropy": 4.0,
        "clip_ratio/low_mean": 0.0,
        "clip_ratio/high_mean": 1 / 8,
        "clip_ratio/region_mean": 1 / 8,
        "clip_ratio/low_min": 0.0,
        "clip_ratio/high_max": 1 / 4,
        "step_time": 9.0,
    }
    # With one update a batch TRL takes the policy itself for the old one.
    assert trl_metrics(record(), NAMED["trl"])["clip_ratio/high_mean"] == 0.0


def test_a_run_stands_beside_the_log_of_trl(tiny: Path, tmp_path: Path) -> None:
    trainer(tiny, tmp_path, max_steps=4).train()
    out, log = tmp_path / "out", tmp_path / "trainer_state.json"
    entries = [{"step": 2, "reward": 0.25, "kl": None}, {"step": 4, "reward": 0.5}, {"step": 4, "train_loss": 0.1}]
    log.write_text(json.dumps({"log_history": entries}))
    rewards = [row["reward"] for row in metrics(out)]
    means = [f"{sum(rewards[at : at + 2]) / 2:.4g}" for at in (0, 2)]
    assert list(rows_beside(out, log)) == [
        ("updates", "reward here", "reward TRL"),
        ("1-2", means[0], "0.25"),
        ("3-4", means[1], "0.5"),
    ]
    log.write_text(json.dumps({"log_history": [{"step": 1, "loss": 2.0}]}))
    with pytest.raises(UserError, match=r"expected trainer_state.json of a GRPO training with TRL"):
        list(rows_beside(out, log))
