"""Recipes from TRL's configurations: numbers worked by hand from what TRL's own documentation says of its keys."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grouprl import UserError
from grouprl.algorithms.losses import Sapo
from grouprl.algorithms.named import NAMED
from grouprl.cli import app
from grouprl.config.files import load_config
from grouprl.config.run import RunConfig
from grouprl.tools.imported.read import Foreign, read_foreign
from grouprl.tools.imported.recipe import Line, import_foreign, write_recipe
from grouprl.tools.imported.trl_keys import TRL
from grouprl.tools.imported.trl_versions import default_in

RUN = CliRunner()


def recipe(tmp_path: Path, *, world: int = 1, **values: Any) -> RunConfig:
    target = tmp_path / "made.yaml"
    write_recipe(import_foreign(Foreign("trl", values), world=world), "their.yaml", target, force=True)
    return load_config(RunConfig, [target], [])


def line(key: str, **values: Any) -> Line:
    found = import_foreign(Foreign("trl", values), allow=[key] if key in values else [])
    return next(one for one in found.lines if one.key == key)


@pytest.mark.parametrize(
    ("values", "world", "groups", "updates"),
    [
        ({}, 1, 1, 1),  # 8 completions = one group of 8
        ({}, 4, 4, 1),
        ({"gradient_accumulation_steps": 16, "num_generations": 4}, 2, 64, 1),  # 8 x 2 x 16 / 4
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 8}, 1, 8, 2),
        ({"generation_batch_size": 64, "gradient_accumulation_steps": 2}, 1, 8, 4),
        ({"gradient_accumulation_steps": 4, "steps_per_generation": 2}, 1, 4, 1),  # two generations of one policy
    ],
)
def test_trl_counts_completions_per_device_and_process(
    tmp_path: Path, values: dict[str, int], world: int, groups: int, updates: int
):
    config = recipe(tmp_path, world=world, **values)
    assert (config.rollout.problems_per_step, config.algorithm.updates.minibatches) == (groups, updates)


def test_numbers_that_do_not_make_whole_groups_are_refused():
    with pytest.raises(UserError, match="whole groups of 8 completions, got 6 completions"):
        import_foreign(Foreign("trl", {"per_device_train_batch_size": 6}))


@pytest.mark.parametrize(
    ("written", "scale"),
    [(True, "group_std"), (False, "none"), ("batch", "batch_std"), ("group", "group_std"), ("none", "none")],
)
def test_scale_rewards_is_a_flag_or_a_word(tmp_path: Path, written: object, scale: str):
    assert recipe(tmp_path, scale_rewards=written).algorithm.advantage.scale == scale


def test_a_step_of_trl_is_an_update_and_a_step_here_a_batch(tmp_path: Path):
    values = {"steps_per_generation": 2, "num_iterations": 3, "max_steps": 60, "save_steps": 12}
    config = recipe(tmp_path, **values)
    assert (config.steps, config.checkpoint.every, config.epochs) == (10, 2, None)
    assert line("max_steps", **values | {"max_steps": 61}).outcome.verdict == "changed"
    # 61 updates are 10 1/6 batches of 6: the last one is made, too.
    assert recipe(tmp_path, **values | {"max_steps": 61}).steps == 11


def test_what_is_not_named_is_a_default_of_trl(tmp_path: Path):
    config = recipe(tmp_path)
    assert (config.algorithm.name, config.algorithm.kl_coef, config.epochs, config.seed) == ("trl", 0.0, 3.0, 42)
    assert (config.rollout.max_tokens, config.learner.schedule, config.model.dtype) == (512, "linear", "bfloat16")


def test_the_range_of_cispo_is_that_of_the_weight_itself(tmp_path: Path):
    objective = recipe(tmp_path, loss_type="cispo", epsilon_high=5.0).algorithm.objective
    assert (objective.surrogate, objective.range) == ("cispo", (1.0, 4.0))
    assert line("epsilon_high", loss_type="cispo", epsilon_high=0.28).outcome.verdict == "unsupported"


def test_sapo_has_temperatures_and_no_clip(tmp_path: Path):
    objective = recipe(tmp_path, loss_type="sapo", sapo_temperature_neg=1.2, epsilon=0.3, delta=2.0).algorithm.objective
    assert objective == Sapo(tau_pos=1.0, tau_neg=1.2)
    assert line("sapo_temperature_neg", sapo_temperature_neg=1.2).outcome.verdict == "not needed"


def test_luspo_is_that_of_whole_sequences(tmp_path: Path):
    given = {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
    assert recipe(tmp_path, **given).algorithm.objective == NAMED["luspo"].objective
    assert line("loss_type", loss_type="luspo").outcome.verdict == "unsupported"


def test_the_mask_of_off_policy_completions_is_ours(tmp_path: Path):
    assert recipe(tmp_path, off_policy_mask_threshold=0.5).algorithm.objective.off_policy_delta == 0.5


def test_qlora_is_ours(tmp_path: Path):
    model = recipe(tmp_path, use_peft=True, load_in_4bit=True, dtype="bfloat16").model
    assert (model.weights, model.dtype, model.lora is not None) == ("nf4", "bfloat16", True)
    with pytest.raises(UserError, match="load_in_4bit=True: expected use_peft and nf4"):
        import_foreign(Foreign("trl", {"load_in_4bit": True}))


def test_a_repetition_penalty_is_the_learners_too(tmp_path: Path):
    assert recipe(tmp_path, repetition_penalty=1.1).rollout.sampling.repetition_penalty == 1.1
    assert line("repetition_penalty", repetition_penalty=1.1).outcome.verdict == "changed"
    assert recipe(tmp_path).rollout.sampling.repetition_penalty == 1.0


def test_an_adaptive_entropy_bonus_keeps_its_controller(tmp_path: Path):
    """TRL's delta of 0.005 and target of 0.2 unless they are given; its bounds of 0 and 1 are those here."""
    spread = recipe(tmp_path, use_adaptive_entropy=True, entropy_target=0.5, entropy_coef=0.01).algorithm.spread
    assert (spread.entropy_coef, spread.entropy_target, spread.entropy_step) == (0.01, 0.5, 0.005)
    assert recipe(tmp_path, use_adaptive_entropy=True).algorithm.spread.entropy_target == 0.2
    assert recipe(tmp_path, entropy_target=0.5).algorithm.entropy is None
    assert line("use_adaptive_entropy", use_adaptive_entropy=True).outcome.verdict == "equal"
    assert line("use_adaptive_entropy", use_adaptive_entropy=True, num_iterations=2).outcome.verdict == "changed"
    with pytest.raises(UserError, match=r"use_adaptive_entropy=True: expected entropy_coef_min: 0\.0"):
        import_foreign(Foreign("trl", {"use_adaptive_entropy": True, "entropy_coef_min": 0.001}))


@pytest.mark.parametrize(
    ("values", "verdict"),
    [({}, "equal"), ({"loss_type": "grpo"}, "changed"), ({"gradient_accumulation_steps": 2}, "changed")],
)
def test_an_entropy_bonus_is_equal_where_the_loss_is_a_mean_over_tokens(values: dict[str, Any], verdict: str):
    assert line("entropy_coef", entropy_coef=0.01, **values).outcome.verdict == verdict


def test_an_expression_is_the_learners_too(tmp_path: Path):
    assert recipe(tmp_path, vllm_structured_outputs_regex="[0-9]+").rollout.regex == "[0-9]+"
    assert line("vllm_structured_outputs_regex", vllm_structured_outputs_regex="[0-9]+").outcome.verdict == "changed"


def test_a_reference_that_follows_goes_as_far_as_trls(tmp_path: Path):
    """512 updates and 0.6 of the policy are TRL's defaults; nothing without a KL."""
    kl = recipe(tmp_path, sync_ref_model=True, beta=0.04).algorithm.kl
    assert kl is not None
    assert (kl.refresh_reference, kl.reference_mixup) == (512, 0.6)
    kl = recipe(
        tmp_path, sync_ref_model=True, beta=0.04, ref_model_sync_steps=64, ref_model_mixup_alpha=1.0
    ).algorithm.kl
    assert kl is not None
    assert (kl.refresh_reference, kl.reference_mixup) == (64, 1.0)
    assert recipe(tmp_path, sync_ref_model=True, beta=0.0).algorithm.kl is None


def test_a_changed_value_is_shown_with_both_numbers():
    outcome = line("max_grad_norm", max_grad_norm=0.0).outcome
    assert outcome.verdict == "changed"
    assert "no bound -> 1000000000.0" in outcome.words


@pytest.mark.parametrize(
    ("name", "moments", "paged"),
    [
        ("adamw_torch", "float32", False),
        ("adamw_bnb_8bit", "8bit", False),
        ("paged_adamw_8bit", "8bit", True),
        ("paged_adamw_32bit", "float32", True),
    ],
)
def test_the_optimizer_keeps_its_moments_where_it_did(tmp_path: Path, name: str, moments: str, paged: bool):
    learner = recipe(tmp_path, optim=name).learner
    assert (learner.moments, learner.paged) == (moments, paged)


@pytest.mark.parametrize(
    ("key", "value"),
    [("loss_type", "vespo"), ("optim", "adafactor"), ("load_in_8bit", True)],
)
def test_what_cannot_be_had_stops_unless_it_is_allowed(key: str, value: object):
    with pytest.raises(UserError, match=f"{key}={value}.*\n.*--allow {key}"):
        import_foreign(Foreign("trl", {key: value}))
    assert line(key, **{key: value}).outcome.verdict == "unsupported"


def test_a_key_that_no_table_names_stops_with_the_nearest_one():
    with pytest.raises(UserError, match="num_generation=8: unknown key; did you mean num_generations"):
        import_foreign(Foreign("trl", {"num_generation": 8}))


def test_older_names_of_keys_are_read(tmp_path: Path):
    config = recipe(tmp_path, torch_dtype="bfloat16", evaluation_strategy="steps", eval_steps=3)
    assert (config.model.weights, config.evaluation.every) == ("bfloat16", 3)
    assert line("max_prompt_length", max_prompt_length=256).outcome.words.startswith("256 -> no limit")
    assert line("overwrite_output_dir", overwrite_output_dir=True).outcome.verdict == "not needed"
    with pytest.raises(UserError, match="torch_dtype: expected one name of the key, got dtype too"):
        import_foreign(Foreign("trl", {"dtype": "float32", "torch_dtype": "bfloat16"}))
    with pytest.raises(UserError, match="torch_dtype=float16: expected float32 or bfloat16"):
        import_foreign(Foreign("trl", {"torch_dtype": "float16"}))


def test_a_recipe_of_open_r1_keeps_its_prompts(tmp_path: Path):
    config = recipe(tmp_path, dataset_prompt_column="problem", system_prompt="Think.", wandb_project="open-r1")
    assert config.task.system_prompt == "Think."
    assert config.task.arguments == {"prompt_column": "problem", "messages": True}


def test_an_order_that_is_not_shuffled_is_shown_as_changed():
    outcome = line("shuffle_dataset", shuffle_dataset=False).outcome
    assert (outcome.verdict, "the order of the file -> a random order" in outcome.words) == ("changed", True)


def test_rewards_of_the_script_become_rewards_of_the_recipe(tmp_path: Path):
    values = {"reward_funcs": ["think_format_reward", "my.lib.short"], "reward_weights": [1.0, 0.5]}
    found = recipe(tmp_path, **values).rewards
    assert [(one.function or one.name, one.path, one.weight) for one in found] == [
        ("think_format", None, 1.0),
        ("short", "my/lib.py", 0.5),
    ]


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


COURSE = {
    "learning_rate": 2e-5,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "max_prompt_length": 512,
    "max_completion_length": 96,
    "num_generations": 8,
    "optim": "adamw_8bit",
    "num_train_epochs": 1,
    "bf16": True,
}


def test_the_release_decides_what_a_file_means(tmp_path: Path):
    """TRL 0.14 made 8 completions of each of 8 x 2 prompts and had a KL; 1.16 makes 16 completions and has none."""
    old, new = (import_foreign(Foreign("trl", COURSE), version=name) for name in ("0.14.0", "1.16"))
    words = {one.key: one.outcome.words for one in old.lines}["per_device_train_batch_size"]
    assert words == "8 prompts x 2 accumulated x 1 processes: 128 completions a step = 16 groups"
    assert (old.changes.get("rollout.problems_per_step", 16), old.changes["algorithm.kl_coef"]) == (16, 0.04)
    assert (old.changes["rollout.temperature"], old.changes["rollout.top_k"]) == (0.9, 50)
    assert (old.changes["algorithm.aggregate"], "algorithm.kl_unbiased" in old.changes) == ("sequence_mean", False)
    assert new.changes["rollout.problems_per_step"] == 2
    assert "algorithm.kl_coef" not in new.changes
    for name in ("0.13", "1.17", "2", "new", "0.14.0.1"):
        with pytest.raises(UserError, match=rf"--trl: expected a release from 0\.14 to 1\.16, got {name}"):
            import_foreign(Foreign("trl", COURSE), version=name)


def test_without_a_release_nothing_that_changed_is_called_equal():
    lines = {one.key: one for one in import_foreign(Foreign("trl", COURSE)).lines}
    assert lines["per_device_train_batch_size"].outcome.verdict == "changed"
    assert "TRL before 0.15 counts prompts, 16 groups" in lines["per_device_train_batch_size"].outcome.words
    assert lines["beta"].outcome.words == "TRL 1.16's default; 0.04 in TRL 0.14: name the file's release with --trl"
    assert {"beta", "temperature", "top_k", "loss_type"} <= {
        key for key, one in lines.items() if one.outcome.verdict == "changed"
    }
    named = {one.key: one for one in import_foreign(Foreign("trl", COURSE | {"beta": 0.0})).lines}
    assert named["beta"].outcome.verdict == "equal"


@pytest.mark.parametrize(
    ("version", "key", "default"),
    [
        ("0.14", "gradient_accumulation_steps", 8),
        ("0.15", "ref_model_sync_steps", 64),
        ("0.17", "loss_type", "bnpo"),
        ("0.17", "temperature", 0.9),
        ("0.18", "temperature", 1.0),
        ("0.21", "gradient_checkpointing", False),
        ("1.9", "use_bias_correction_kl", False),
        ("1.9", "max_completion_length", 256),
        ("1.10", "max_completion_length", 512),
    ],
)
def test_defaults_are_those_of_the_releases_dataclass(version: str, key: str, default: object):
    """GRPOConfig's fields in the wheel of that release."""
    release = tuple(map(int, version.split(".")))
    assert default_in(release, key, TRL[key].default) == default


def test_the_accumulation_is_shown():
    words = line(
        "per_device_train_batch_size", per_device_train_batch_size=8, gradient_accumulation_steps=4
    ).outcome.words
    assert words.startswith("8 completions x 4 accumulated x 1 processes: 32 completions a step = 4 groups")


@pytest.mark.parametrize(
    ("values", "every"),
    [
        ({"save_steps": 0.1, "max_steps": 200}, (20, 0)),
        ({"save_steps": 0.001, "max_steps": 200}, (1, 0)),
        ({"save_steps": 0.1, "max_steps": 205, "eval_strategy": "steps", "eval_steps": 0.25}, (21, 52)),  # rounded up
        ({"eval_strategy": "steps", "logging_steps": 0.5, "max_steps": 10}, (500, 5)),
        ({"eval_strategy": "steps", "logging_steps": 7}, (500, 7)),
        ({"eval_strategy": "steps"}, (500, 10)),
    ],
)
def test_steps_below_one_are_shares_of_max_steps(tmp_path: Path, values: dict[str, Any], every: tuple[int, int]):
    """transformers: ceil(max_steps x share)."""
    config = recipe(tmp_path, **values)
    assert (config.checkpoint.every, config.evaluation.every) == every


def test_a_share_of_steps_that_nothing_says_is_unsupported():
    with pytest.raises(UserError, match=r"save_steps=0\.1: a share of max_steps, which the file does not name"):
        import_foreign(Foreign("trl", {"save_steps": 0.1}))


@pytest.mark.parametrize("value", [-1, 0, None])
def test_top_k_is_off_in_three_ways(tmp_path: Path, value: int | None):
    assert recipe(tmp_path, top_k=value).rollout.top_k == 0


@pytest.mark.parametrize(
    ("arguments", "stop"),
    [({"stop_strings": ["</answer>"]}, ("</answer>",)), ({"stop_strings": "."}, (".",)), ({}, ()), (None, ())],
)
def test_stop_strings_end_completions_here_too(tmp_path: Path, arguments: Any, stop: tuple[str, ...]):
    assert recipe(tmp_path, generation_kwargs=arguments).rollout.stop == stop


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "generation_kwargs",
            {"stop_token_ids": [7]},
            "expected stop_strings; rollout has no setting for stop_token_ids",
        ),
        ("num_generations", 1, r"its counterpart takes other values: rollout\.group_size"),
        ("dtype", "auto", "the dtype of the checkpoint, which the file does not say: write bfloat16 or float32"),
        ("reward_funcs", ["accuracy", "cosine"], "cosine is no function that GroupRL has"),
        ("temperature", 0, r"its counterpart takes other values: rollout\.temperature"),
    ],
)
def test_legal_values_without_a_counterpart_are_named(key: str, value: Any, words: str):
    with pytest.raises(UserError, match=rf"\n  {key}=.*: .*{words}"):
        import_foreign(Foreign("trl", {key: value, "per_device_train_batch_size": 8}))


def test_rewards_of_open_r1_are_recognized(tmp_path: Path):
    assert [one.function for one in recipe(tmp_path, reward_funcs="accuracy").rewards] == ["math_verify"]
    found = recipe(tmp_path, reward_funcs=["accuracy", "format"]).rewards
    assert [(one.name, one.function) for one in found] == [("accuracy", "math_verify"), ("format", "think_format")]
    outcome = line("reward_funcs", reward_funcs=["accuracy", "format"]).outcome
    assert (outcome.verdict, "accuracy -> math_verify" in outcome.words) == ("changed", True)


@pytest.mark.parametrize(
    ("values", "verdict", "test_path"),
    [
        ({"dataset_name": "a/b"}, "changed", None),  # a tenth is held out, which TRL trains on
        ({"dataset_name": "a/b", "eval_strategy": "steps", "eval_steps": 5}, "equal", "hub:a/b"),
        ({"dataset_name": "rows.jsonl"}, "changed", None),
    ],
)
def test_rows_that_are_held_out_are_no_equal_data(
    tmp_path: Path, values: dict[str, Any], verdict: str, test_path: object
):
    assert line("dataset_name", **values).outcome.verdict == verdict
    assert recipe(tmp_path, **values).task.arguments.get("test_path") == test_path


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("train.py", "from trl import GRPOConfig\n", "a Python script, which import-config does not run"),
        ("train", "#!/usr/bin/env python3\nimport trl\n", "a Python script, which import-config does not run"),
        ("run.sh", "python3 -m openrlhf.cli.train_ppo_ray --a.b 1\n", r"a script of OpenRLHF.*docs/from_openrlhf\.md"),
        ("run.sh", "trl grpo --config grpo.yaml\n", r"expected verl's overrides.*for TRL, give the YAML of --config"),
        ("big.yaml", "a: 1\n" + "# x\n" * 70_000, "at most 262144 bytes"),
        ("many.json", json.dumps({f"k{at}": at for at in range(3000)}), "at most 2000 keys, got 3000"),
        ("deep.json", "[" * 50_000, "expected YAML or JSON"),
        ("deep.yaml", "[" * 50_000, "expected YAML or JSON"),
    ],
)
def test_a_file_of_another_kind_is_recognized(tmp_path: Path, name: str, text: str, words: str):
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(UserError, match=words):
        read_foreign(file)


def test_a_pipe_is_refused_at_once(tmp_path: Path):
    os.mkfifo(tmp_path / "grpo.yaml")
    with pytest.raises(UserError, match="expected a file, got a folder"):
        read_foreign(tmp_path / "grpo.yaml")


def test_many_unknown_keys_are_counted():
    with pytest.raises(UserError, match="and 1980 more") as refused:
        import_foreign(Foreign("trl", {f"{'x' * 90}{at}": "y" * 5000 for at in range(2000)}))
    assert len(str(refused.value)) < 20_000


@pytest.mark.parametrize("text", ["", "[1, 2]", "a: [", "beta: 0.1\nbeta: 0.2\n"])
def test_a_file_that_cannot_be_read_writes_nothing(tmp_path: Path, text: str):
    file, target = tmp_path / "bad.yaml", tmp_path / "made.yaml"
    file.write_text(text)
    result = RUN.invoke(app, ["import-config", str(file), "--output", str(target), "--force"])
    assert isinstance(result.exception, UserError)
    assert str(file) in str(result.exception)
    assert not target.exists()


def test_the_oldest_name_of_the_batch_counts(tmp_path: Path):
    assert recipe(tmp_path, per_gpu_train_batch_size=32).rollout.problems_per_step == 4
