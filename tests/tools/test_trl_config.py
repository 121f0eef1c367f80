"""Recipes from TRL's configurations: numbers worked by hand from what TRL's own documentation says of its keys."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grouprl import UserError
from grouprl.algorithms.named import NAMED
from grouprl.algorithms.named.sapo import Sapo
from grouprl.algorithms.named.vespo import Vespo
from grouprl.cli import app
from grouprl.config.files import load_config
from grouprl.config.run import RunConfig
from grouprl.tools.imported.read import Foreign, read_foreign, read_words
from grouprl.tools.imported.recipe import Line, import_foreign, write_recipe

RUN = CliRunner()


def recipe(tmp_path: Path, **values: Any) -> RunConfig:
    target = tmp_path / "made.yaml"
    write_recipe(import_foreign(Foreign("trl", values)), "their.yaml", target, force=True)
    return load_config(RunConfig, [target], [])


def line(key: str, **values: Any) -> Line:
    found = import_foreign(Foreign("trl", values), allow=[key] if key in values else [])
    return next(one for one in found.lines if one.key == key)


VESPO = {"loss_type": "vespo", "vespo_k_neg": 1.5}
REFERENCE = {"sync_ref_model": True, "beta": 0.04}
UPDATES = {"steps_per_generation": 2, "num_iterations": 3, "max_steps": 60, "save_steps": 12}
ADAPTIVE = {"use_adaptive_entropy": True, "entropy_target": 0.5, "entropy_coef": 0.01}


@pytest.mark.parametrize(
    ("values", "world", "ours"),
    [
        # Completions a device and process, to groups: 8 completions = one group of 8.
        ({}, 1, {"rollout.problems_per_step": 1, "algorithm.minibatches": None}),
        ({}, 4, {"rollout.problems_per_step": 4}),
        ({"generation_batch_size": 64, "gradient_accumulation_steps": 2}, 1, {"algorithm.minibatches": 4}),
        # Two generations of one policy.
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 2}, 1, {"rollout.problems_per_step": 4}),
        ({"per_gpu_train_batch_size": 32}, 1, {"rollout.problems_per_step": 4}),
        # A step there is an update, here a batch; 61 updates are 10 1/6 batches of 6: the last one is made, too.
        (UPDATES, 1, {"steps": 10, "checkpoint.every": 2, "epochs": None}),
        (UPDATES | {"max_steps": 61}, 1, {"steps": 11}),
        # transformers: ceil(max_steps x share).
        ({"save_steps": 0.1, "max_steps": 200}, 1, {"checkpoint.every": 20}),
        (
            {"save_steps": 0.1, "max_steps": 205, "eval_strategy": "steps", "eval_steps": 0.25},
            1,
            {"checkpoint.every": 21, "evaluation.every": 52},
        ),
        ({"eval_strategy": "steps", "logging_steps": 0.5, "max_steps": 10}, 1, {"evaluation.every": 5}),
        ({"eval_strategy": "steps"}, 1, {"evaluation.every": 10}),
        ({"scale_rewards": False}, 1, {"algorithm.scale": "none"}),
        ({"scale_rewards": "batch"}, 1, {"algorithm.scale": "batch_std"}),
        ({"off_policy_mask_threshold": 0.5}, 1, {"algorithm.off_policy_delta": 0.5}),
        ({}, 1, {"rollout.repetition_penalty": None, "algorithm.kl_coef": None}),
        ({"vllm_structured_outputs_regex": "[0-9]+"}, 1, {"rollout.regex": "[0-9]+"}),
        # TRL's target of 0.2 unless it is given.
        (ADAPTIVE, 1, {"algorithm.entropy_coef": 0.01, "algorithm.entropy_target": 0.5}),
        ({"use_adaptive_entropy": True}, 1, {"algorithm.entropy_target": 0.2}),
        # 512 updates and 0.6 of the policy are TRL's defaults; nothing without a KL.
        (REFERENCE, 1, {"algorithm.refresh_reference": 512, "algorithm.reference_mixup": 0.6}),
        (REFERENCE | {"beta": 0.0}, 1, {"algorithm.refresh_reference": None}),
        ({"optim": "adamw_torch"}, 1, {"learner.moments": None, "learner.paged": None}),
        ({}, 1, {"checkpoint.keep": 10**6}),
        ({"save_total_limit": 3}, 1, {"checkpoint.keep": 3}),
        ({"optim": "paged_adamw_8bit"}, 1, {"learner.moments": "8bit", "learner.paged": True}),
        ({"top_k": -1}, 1, {"rollout.top_k": None}),
        ({"generation_kwargs": {"stop_strings": ["</answer>"]}}, 1, {"rollout.stop": ["</answer>"]}),
        (
            {"dataset_prompt_column": "problem", "system_prompt": "Think.", "wandb_project": "open-r1"},
            1,
            {
                "task.system_prompt": "Think.",
                "task.arguments.prompt_column": "problem",
                "task.arguments.messages": True,
                "trackers.project": "open-r1",
            },
        ),
        ({"dataset_name": "a/b"}, 1, {"task.path": "hub:a/b", "task.arguments.test_path": None}),
        ({"dataset_name": "a/b", "eval_strategy": "steps"}, 1, {"task.arguments.test_path": "hub:a/b"}),
        (
            {"reward_funcs": ["think_format_reward", "my.lib.short"], "reward_weights": [1.0, 0.5]},
            1,
            {
                "rewards": [
                    {"name": "think_format_reward", "function": "think_format", "weight": 1.0},
                    {"name": "short", "path": "my/lib.py", "weight": 0.5},
                ]
            },
        ),
    ],
)
def test_what_a_file_becomes(values: dict[str, Any], world: int, ours: dict[str, Any]):
    """None = as it is by default here."""
    changes = import_foreign(Foreign("trl", values), world=world).changes
    assert {key: changes.get(key) for key in ours} == ours


@pytest.mark.parametrize(
    ("key", "values", "verdict", "words"),
    [
        ("max_steps", UPDATES | {"max_steps": 61}, "changed", ""),
        ("epsilon_high", {"loss_type": "cispo", "epsilon_high": 0.28}, "unsupported", "at least 1"),
        ("sapo_temperature_neg", {"sapo_temperature_neg": 1.2}, "not needed", ""),
        ("vespo_k_pos", {"vespo_k_pos": 1.2}, "not needed", ""),
        ("loss_type", UPDATES | VESPO, "changed", "tokens of the update"),
        ("entropy_coef", VESPO | {"entropy_coef": 0.01}, "equal", ""),
        ("use_adaptive_entropy", {"use_adaptive_entropy": True}, "equal", ""),
        ("use_adaptive_entropy", {"use_adaptive_entropy": True, "num_iterations": 2}, "changed", ""),
        # A bonus is equal where the loss is a mean over tokens.
        ("entropy_coef", {"entropy_coef": 0.01}, "equal", ""),
        ("entropy_coef", {"entropy_coef": 0.01, "loss_type": "grpo"}, "changed", ""),
        ("max_grad_norm", {"max_grad_norm": 0.0}, "changed", "no bound -> 1000000000.0"),
        ("use_liger_loss", {"use_liger_loss": True}, "unsupported", "no kernel is needed"),
        ("use_liger_loss", {"use_liger_loss": False}, "equal", ""),
        ("deepspeed", {"deepspeed": "zero3.json"}, "unsupported", "distributed.shard=true divides a model"),
        ("max_prompt_length", {"max_prompt_length": 256}, "changed", "256 -> no limit"),
        ("shuffle_dataset", {"shuffle_dataset": False}, "changed", "the order of the file -> a random order"),
        ("reward_funcs", {"reward_funcs": ["accuracy", "format"]}, "changed", "accuracy -> math_verify"),
        ("dataset_name", {"dataset_name": "a/b"}, "changed", ""),  # a tenth is held out, which TRL trains on
        ("dataset_name", {"dataset_name": "a/b", "eval_strategy": "steps"}, "equal", ""),
        (
            "per_device_train_batch_size",
            {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4},
            "equal",
            "8 completions x 4 accumulated x 1 processes: 32 completions a step = 4 groups",
        ),
    ],
)
def test_the_verdict_on_a_key(key: str, values: dict[str, Any], verdict: str, words: str):
    outcome = line(key, **values).outcome
    assert (outcome.verdict, words in outcome.words) == (verdict, True)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"per_device_train_batch_size": 6}, "whole groups of 8 completions, got 6 completions"),
        ({"load_in_4bit": True}, "load_in_4bit=True: expected use_peft and nf4"),
        (ADAPTIVE | {"entropy_coef_min": 0.001}, r"use_adaptive_entropy=True: expected entropy_coef_min: 0\.0"),
        ({"loss_type": "luspo"}, r"loss_type=luspo.*\n.*--allow loss_type"),
        (VESPO | {"use_vllm": True, "vllm_mode": "server"}, "TRL multiplies vespo's ratio by the correction"),
        ({"num_generation": 8}, "num_generation=8: unknown key; did you mean num_generations"),
        ({"dtype": "float32", "torch_dtype": "bfloat16"}, "torch_dtype: expected one name of the key, got dtype too"),
        ({"torch_dtype": "float16"}, "torch_dtype=float16: expected float32 or bfloat16"),
        ({"save_steps": 0.1}, r"save_steps=0\.1: a share of max_steps, which the file does not name"),
        ({"generation_kwargs": {"stop_token_ids": [7]}}, "stop_strings; rollout has no setting for stop_token_ids"),
        ({"num_generations": 1}, r"num_generations=1: its counterpart takes other values: rollout\.group_size"),
        ({"dtype": "auto"}, "dtype=auto: the dtype of the checkpoint, which the file does not say"),
        ({"reward_funcs": ["accuracy", "cosine"]}, "cosine is no function that GroupRL has"),
        # TRL's null is no limit, the default here is one.
        ({"max_completion_length": None}, "max_completion_length: expected a value like 512, got None"),
        ({"learning_rate": None}, "learning_rate: expected a value like 1e-06, got None"),
    ],
)
def test_what_cannot_be_had_stops(values: dict[str, Any], words: str):
    with pytest.raises(UserError, match=words):
        import_foreign(Foreign("trl", values))


def test_many_unknown_keys_are_counted():
    with pytest.raises(UserError, match="and 1980 more") as refused:
        import_foreign(Foreign("trl", {f"{'x' * 90}{at}": "y" * 5000 for at in range(2000)}))
    assert len(str(refused.value)) < 20_000


def test_what_is_not_named_is_a_default_of_trl(tmp_path: Path):
    config = recipe(tmp_path)
    assert (config.algorithm.name, config.algorithm.kl_coef, config.epochs, config.seed) == ("trl", 0.0, 3.0, 42)
    assert (config.rollout.max_tokens, config.learner.schedule, config.model.dtype) == (512, "linear", "bfloat16")


def test_the_objective_is_that_of_the_loss_type(tmp_path: Path):
    cispo = recipe(tmp_path, loss_type="cispo", epsilon_high=5.0).algorithm.objective
    assert (cispo.surrogate, cispo.range) == ("cispo", (1.0, 4.0))  # TRL's bound is that of the weight itself
    sapo = {"loss_type": "sapo", "sapo_temperature_neg": 1.2, "epsilon": 0.3, "delta": 2.0}
    assert recipe(tmp_path, **sapo).algorithm.objective == Sapo(tau_pos=1.0, tau_neg=1.2)
    lost = {"epsilon": 0.3, "delta": 2.0, "importance_sampling_level": "sequence"}  # without effect there
    assert recipe(tmp_path, **VESPO, **lost).algorithm.objective == Vespo(aggregate="token_mean", k_neg=1.5)
    given = {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
    assert recipe(tmp_path, **given).algorithm.objective == NAMED["luspo"].objective
    model = recipe(tmp_path, use_peft=True, load_in_4bit=True, dtype="bfloat16").model
    assert (model.weights, model.dtype, model.lora is not None) == ("nf4", "bfloat16", True)


def test_the_command_writes_a_recipe_and_says_how_to_run_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("grpo.json").write_text(json.dumps({"beta": 0.04, "model_name_or_path": "abacus"}))
    first = RUN.invoke(app, ["import-config", "grpo.json"])
    assert first.exit_code == 0, first.exception
    assert "grouprl train grpo.yaml --task FILE.jsonl --reward FILE.py:FUNCTION" in first.output
    assert load_config(RunConfig, [Path("grpo.yaml")], []).algorithm.kl_coef == 0.04
    assert "…" not in first.output  # in 80 columns
    Path("grpo.yaml").write_text("steps: 7\n")
    again = RUN.invoke(app, ["import-config", "grpo.json"])
    assert isinstance(again.exception, UserError)
    assert Path("grpo.yaml").read_text() == "steps: 7\n"
    assert RUN.invoke(app, ["import-config", "grpo.json", "--force"]).exit_code == 0


def test_every_key_is_whole_in_a_narrow_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What was lost comes first, and a key can be copied from its line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    Path("grpo.yaml").write_text("vllm_importance_sampling_correction: true\nlora_dropout: 0.1\nmax_grad_norm: 0\n")
    output = RUN.invoke(app, ["import-config", "grpo.yaml"]).output
    assert "vllm_importance_sampling_correction=true" in output
    assert output.index("changed: ") < output.index("equal: ") < output.index("not needed: ")
    assert "max_grad_norm=0 -> learner.max_grad_norm=1000000000.0" in " ".join(output.split())


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("train.py", "from trl import GRPOConfig\n", "a Python script, which import-config does not run"),
        (
            "run.sh",
            "python3 -m openrlhf.cli.train_ppo_ray --a.b 1\n",
            "a script of OpenRLHF, which has no importer: docs/",
        ),
        ("run.sh", "python3 -m verl.trainer.main_ppo a.b=1\n", "a shell script.*paste the KEY=VALUE"),
        ("job", "#!/bin/bash\ntrl grpo --config grpo.yaml\n", r"a shell script.*for TRL, give the YAML of --config"),
        ("big.yaml", "a: 1\n" + "# x\n" * 70_000, "at most 262144 bytes"),
        ("many.json", json.dumps({f"k{at}": at for at in range(3000)}), "at most 2000 keys, got 3000"),
        ("deep.yaml", "[" * 5_000, "expected YAML or JSON"),
    ],
)
def test_a_file_of_another_kind_is_recognized(tmp_path: Path, name: str, text: str, words: str):
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(UserError, match=words):
        read_foreign(file)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(UserError, match="expected a file, got a folder"):
        read_foreign(file)  # at once


@pytest.mark.parametrize("text", ["", "[1, 2]", "a: [", "beta: 0.1\nbeta: 0.2\n"])
def test_a_file_that_cannot_be_read_writes_nothing(tmp_path: Path, text: str):
    file, target = tmp_path / "bad.yaml", tmp_path / "made.yaml"
    file.write_text(text)
    result = RUN.invoke(app, ["import-config", str(file), "--output", str(target), "--force"])
    assert isinstance(result.exception, UserError)
    assert str(file) in str(result.exception)
    assert not target.exists()


BATCH = "--per_device_train_batch_size 8 --num_generations 4"


@pytest.mark.parametrize(
    ("words", "library", "values", "world"),
    [
        ("learning_rate=1e-6 num_generations=4", "trl", {"learning_rate": 1e-6, "num_generations": 4}, None),
        ("--learning_rate 1e-6 --num-generations 4", "trl", {"learning_rate": 1e-6, "num_generations": 4}, None),
        ("--learning_rate=1e-6 --bf16 --top_k -1", "trl", {"learning_rate": 1e-6, "bf16": True, "top_k": -1}, None),
        ("--report_to wandb trackio beta=0.1", "trl", {"report_to": ["wandb", "trackio"], "beta": 0.1}, None),
        ("grpo.yaml --beta 0.1 seed=3", "trl", {"learning_rate": 1e-5, "beta": 0.1, "seed": 3}, None),
        ("accelerate launch --config_file zero3.yaml --num_processes 8 a/train.py --beta 0.1", "trl", {"beta": 0.1}, 8),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=2 train.py --beta 0.1", "trl", {"beta": 0.1}, 2),
        ("trl grpo --config grpo.yaml --num_processes 4", "trl", {"learning_rate": 1e-5}, 4),
        ("python3 -m verl.trainer.main_ppo ++data.seed=1 trainer.logger=wandb", "verl", {"data.seed": 1}, None),
        ("data.seed=1 data.shuffle=true ~data.shuffle", "verl", {"data.seed": 1}, None),
    ],
)
def test_a_pasted_command_is_read(
    words: str, library: str, values: dict[str, Any], world: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("grpo.yaml").write_text("learning_rate: 1e-5\n")
    _, foreign = read_words(shlex.split(words))
    expected = values | ({"trainer.logger": "wandb"} if "logger" in words else {})
    assert (foreign.library, dict(foreign.values), foreign.world) == (library, expected, world)


def test_flags_and_processes_of_a_launch_reach_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    command = f"accelerate launch --num_processes 3 train.py {BATCH}"
    made = RUN.invoke(app, ["import-config", *command.split()])
    assert made.exit_code == 0, made.exception
    assert "a default of TRL 1.16" in made.output
    config = load_config(RunConfig, [Path("trl.yaml")], [])
    assert (config.rollout.group_size, config.rollout.problems_per_step) == (4, 6)  # 3 x 8 completions


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("chat.jsonl", "got a data file: train on it with grouprl train --task chat.jsonl"),
        ("accelerate launch train.py", "expected a command with settings, got none"),
        ("--learning_rate", "learning_rate: expected a number such as 1e-06, got True"),
        ("beta=0.1 seed", "seed: expected KEY=VALUE with a key of trl"),
        ("nothere.yaml beta=0.1", "nothere.yaml: expected a YAML or JSON file, got no such file"),
    ],
)
def test_a_pasted_line_that_is_no_configuration(words: str, sentence: str):
    refused = RUN.invoke(app, ["import-config", *words.split()])
    assert sentence in str(refused.exception)
