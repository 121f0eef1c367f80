"""Recipes from TRL's configurations: numbers worked by hand from what TRL's own documentation says of its keys."""

from __future__ import annotations

import json
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
from grouprl.imported.read import Foreign
from grouprl.imported.recipe import Line, import_foreign, write_recipe

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
    assert recipe(tmp_path, vllm_structured_outputs_regex="[0-9]+").rollout.engine.regex == "[0-9]+"
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


@pytest.mark.parametrize("text", ["", "[1, 2]", "a: [", "beta: 0.1\nbeta: 0.2\n"])
def test_a_file_that_cannot_be_read_writes_nothing(tmp_path: Path, text: str):
    file, target = tmp_path / "bad.yaml", tmp_path / "made.yaml"
    file.write_text(text)
    result = RUN.invoke(app, ["import-config", str(file), "--output", str(target), "--force"])
    assert isinstance(result.exception, UserError)
    assert str(file) in str(result.exception)
    assert not target.exists()
