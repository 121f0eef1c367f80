"""Recipes from verl's configurations and scripts, and its compute_score as a reward."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from grouprl import UserError
from grouprl.config.files import load_config
from grouprl.config.other_names import name_here
from grouprl.config.run import RunConfig
from grouprl.rewards.configured import open_scorer
from grouprl.rewards.functions import FromFile, WeightedReward
from grouprl.tools.imported.read import Foreign, read_foreign
from grouprl.tools.imported.recipe import Line, import_foreign, write_recipe
from grouprl.tools.imported.table import Entry, key_table
from grouprl.tools.imported.trl_keys import TRL
from grouprl.tools.imported.verl_keys import NOT_NEEDED, VERL
from grouprl.types import Completion, Group, Problem, StopReason
from source_tree import ROOT

GRPO = {
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.rollout.n": 5,
    "custom_reward_function.path": "score.py",
    "custom_reward_function.name": "compute_score",
}
ACTOR = "actor_rollout_ref.actor."
SCRIPT = """
set -x
batch=512
MODEL=${MODEL:-abacus}
python3 -m verl.trainer.main_ppo --config-name ppo \\
    algorithm.adv_estimator=grpo data.train_batch_size=$batch \\
    actor_rollout_ref.model.path="${MODEL}" actor_rollout_ref.rollout.n=8 \\
    trainer.logger='["console","wandb"]' +custom_reward_function.path=score.py actor_rollout_ref.actor.optim.lr=3e-6 $@
"""


def lines_of(**changes: Any) -> dict[str, Line]:
    return {one.key: one for one in import_foreign(Foreign("verl", GRPO | changes), allow=changes).lines}


def recipe(tmp_path: Path, foreign: Foreign) -> RunConfig:
    target = tmp_path / "made.yaml"
    write_recipe(import_foreign(foreign), "theirs", target, force=True)
    return load_config(RunConfig, [target], [])


def test_the_mini_batch_counts_prompts(tmp_path: Path):
    """1024 prompts by 256 are 4 updates, whatever n; completions would give 20."""
    assert recipe(tmp_path, Foreign("verl", GRPO)).algorithm.updates.minibatches == 4
    config = recipe(tmp_path, Foreign("verl", GRPO | {"data.train_batch_size": 96, f"{ACTOR}ppo_mini_batch_size": 32}))
    assert (config.rollout.problems_per_step, config.algorithm.updates.minibatches) == (96, 3)
    with pytest.raises(UserError, match=r"divisor of data\.train_batch_size=100, both in prompts"):
        import_foreign(Foreign("verl", GRPO | {"data.train_batch_size": 100}))


def test_without_an_estimator_it_is_ppo_with_a_critic_and_one_completion(tmp_path: Path):
    given = {key: value for key, value in GRPO.items() if not key.endswith(("adv_estimator", ".n"))}
    config = recipe(tmp_path, Foreign("verl", given))
    assert (config.algorithm.name, config.rollout.group_size, config.algorithm.kl_coef) == ("ppo", 1, 0.0)
    assert config.algorithm.advantage.baseline == "critic"
    assert config.learner.critic_learning_rate == 1e-5
    assert config.algorithm.critic.value_clip == 0.5  # the default there; 0.2 here


def test_grpo_with_the_default_of_one_completion_stops():
    with pytest.raises(UserError, match=r"rollout.n=1: grpo compares completions.*default: 1"):
        import_foreign(Foreign("verl", {key: value for key, value in GRPO.items() if not key.endswith(".n")}))


def test_the_coefficient_of_a_kl_that_is_off_does_nothing(tmp_path: Path):
    off = {f"{ACTOR}kl_loss_coef": 0.5}
    assert recipe(tmp_path, Foreign("verl", GRPO | off)).algorithm.kl_coef == 0.0
    assert lines_of(**off)[f"{ACTOR}kl_loss_coef"].outcome.verdict == "not needed"
    assert recipe(tmp_path, Foreign("verl", GRPO | off | {f"{ACTOR}use_kl_loss": True})).algorithm.kl_coef == 0.5


def test_clip_ratio_does_nothing_beside_its_two_sides(tmp_path: Path):
    assert recipe(tmp_path, Foreign("verl", GRPO | {f"{ACTOR}clip_ratio": 0.4})).algorithm.objective.range == (0.2, 0.2)
    freed = {f"{ACTOR}clip_ratio": 0.4, f"{ACTOR}clip_ratio_low": None, f"{ACTOR}clip_ratio_high": 0.3}
    assert recipe(tmp_path, Foreign("verl", GRPO | freed)).algorithm.objective.range == (0.4, 0.3)


def test_a_script_is_read_with_its_variables(tmp_path: Path):
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT)
    config = recipe(tmp_path, read_foreign(script))
    assert (config.model.path, config.rollout.group_size, config.rollout.problems_per_step) == ("abacus", 8, 512)
    assert (config.learner.learning_rate, config.trackers.names) == (3e-6, ("wandb",))
    assert (config.rewards[0].name, config.rewards[0].path) == ("compute_score", "score.py")


def test_a_value_that_the_script_does_not_say_stops_where_it_counts(tmp_path: Path):
    """The engine does not count here, the batch does."""
    foreign = Foreign("verl", GRPO | {"data.train_batch_size": "$(nproc)", "actor_rollout_ref.rollout.name": "$ENGINE"})
    with pytest.raises(UserError, match=r"batch_size=\$\(nproc\): cannot be decided: the file does not") as refused:
        import_foreign(foreign)
    assert "rollout.name" not in str(refused.value)
    found = {one.key: one for one in import_foreign(foreign, allow=["data.train_batch_size"]).lines}
    assert found["actor_rollout_ref.rollout.name"].outcome.verdict == "not needed"


def test_a_resolved_file_is_told_from_one_of_trl(tmp_path: Path):
    file = tmp_path / "resolved.yaml"
    file.write_text(
        "actor_rollout_ref:\n  rollout: {n: 4, response_length: '${oc.select:data.max_response_length,512}'}\n"
        "  actor: {_target_: x, ppo_mini_batch_size: '${data.train_batch_size}'}\n"
        "data: {train_batch_size: 64, max_response_length: 99, apply_chat_template_kwargs: {enable_thinking: false}}\n"
        "algorithm: {adv_estimator: grpo}\ncustom_reward_function: {path: score.py, name: null}\n"
    )
    config = recipe(tmp_path, read_foreign(file))
    assert (config.algorithm.name, config.rollout.group_size, config.algorithm.updates.minibatches) == ("verl", 4, 1)
    assert (config.rollout.max_tokens, config.model.chat_template_kwargs) == (99, {"enable_thinking": False})


@pytest.mark.parametrize("value", ["${data.nothing}", "${oc.env:SIZE}", "${data.train_batch_size}"])
def test_a_reference_to_nothing_or_to_itself_is_not_taken_for_the_default(value: str):
    with pytest.raises(UserError, match=r"data\.train_batch_size=.*cannot be decided: the file does not"):
        import_foreign(Foreign("verl", GRPO | {"data.train_batch_size": value}))


def test_hydras_list_of_overrides_is_read(tmp_path: Path):
    file = tmp_path / "overrides.yaml"
    file.write_text("- algorithm.adv_estimator=grpo\n- +actor_rollout_ref.rollout.n=6\n- data.train_batch_size=256\n")
    config = recipe(tmp_path, read_foreign(file))
    assert (config.rollout.group_size, config.rollout.problems_per_step) == (6, 256)


def test_examples_of_verls_defaults_do_not_enter_the_recipe(tmp_path: Path):
    """Without a named model, data and compute_score the recipe has none, and the command asks for them."""
    imported = import_foreign(Foreign("verl", {"algorithm.adv_estimator": "grpo", "actor_rollout_ref.rollout.n": 8}))
    assert imported.missing == ("model", "task", "reward")
    assert not any(key.startswith(("model.path", "task.")) and "prompt_column" not in key for key in imported.changes)


def test_the_penalty_of_length_of_dapo_is_ours(tmp_path: Path):
    """verl: the reward falls over the last 4096 of 20480 tokens by up to 1."""
    at = "reward_model.reward_kwargs."
    given = {
        "data.max_response_length": 20480,
        "reward_model.reward_manager": "dapo",
        f"{at}overlong_buffer_cfg.enable": True,
        f"{at}overlong_buffer_cfg.len": 4096,
        f"{at}max_resp_len": 20480,
    }
    assert recipe(tmp_path, Foreign("verl", GRPO | given)).algorithm.groups.overlong_buffer == 0.2
    for key, value in ((f"{at}overlong_buffer_cfg.penalty_factor", 0.5), (f"{at}max_resp_len", 9000)):
        with pytest.raises(UserError, match="expected penalty_factor=1 and max_resp_len equal"):
            import_foreign(Foreign("verl", GRPO | given | {key: value}))


@pytest.mark.parametrize(
    "key",
    [
        "data.train_batchsize",
        f"{ACTOR}kl_loss_coeff",
        "actor_rollout_ref.rollout.temprature",
        "critic.optim.lrr",
        "reward_model.enabel",
    ],
)
def test_a_misspelt_key_is_not_taken_for_one_that_does_nothing(key: str):
    with pytest.raises(UserError, match=f"{key}=1: unknown key; did you mean"):
        import_foreign(Foreign("verl", GRPO | {key: 1}))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("num_generations", "is here rollout.group_size"),
        ("lr", "is here learner.learning_rate"),
        ("wandb_project", "is here trackers.project"),
        ("deepspeed", "has no setting here: TRL's layout of batches"),
        ("batch_size", "is here rollout.problems_per_step x rollout.group_size"),
        ("enable", ""),  # many sections of verl have it
        ("no_such_name", ""),
    ],
)
def test_a_hint_comes_from_the_tables(name: str, words: str):
    assert words in name_here(name)
    assert bool(words) == bool(name_here(name))


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"data.filter_overlong_prompts": True}, "changed"),
        ({"data.filter_overlong_prompts": True, "data.max_prompt_length": 99}, "changed"),
        ({"data.truncation": "left"}, "changed"),
        ({"data.max_prompt_length": 99}, "equal"),  # verl stops at a longer one
        ({"data.image_key": "images"}, "unsupported"),
        ({"data.tool_config_path": "tools.yaml"}, "unsupported"),
        ({"data.gen_batch_size": 96}, "unsupported"),
        ({"data.train_files": "a.parquet", "data.val_files": "b.parquet"}, "equal"),
        ({"data.train_files": "a.parquet"}, "changed"),  # a tenth is held out
    ],
)
def test_data_is_what_it_says_to_be(changes: dict[str, Any], verdict: str):
    assert lines_of(**changes)[next(iter(changes))].outcome.verdict == verdict


def test_no_key_of_the_data_is_not_needed():
    """Whatever it is, it may change which rows are trained; a file that Hydra resolved names all of them."""
    file = {key: entry.default for key, entry in VERL.items()} | {
        key: None for key in NOT_NEEDED if not key.endswith("*") and not key.startswith("data.")
    }
    file |= {"data.use_shm": False, "data.return_raw_chat": True, "data.mm_processor_kwargs": {}}
    lines = import_foreign(Foreign("verl", file | GRPO)).lines
    assert [one.key for one in lines if one.key.startswith("data.") and one.outcome.verdict == "not needed"] == []
    assert {"data.image_key", "data.use_shm"} <= {one.key for one in lines}


@pytest.mark.parametrize(("value", "low"), [(10, 1.0), (1.5, 1.0), (0.9, 0.9)])
def test_a_clip_below_zero_is_no_clip(tmp_path: Path, value: float, low: float):
    """verl's CISPO example has clip_ratio_low=10: a ratio above 1 - 10 is any ratio."""
    given = {f"{ACTOR}policy_loss.loss_mode": "cispo", f"{ACTOR}clip_ratio_low": value}
    assert recipe(tmp_path, Foreign("verl", GRPO | given)).algorithm.objective.range[0] == low


@pytest.mark.parametrize(
    ("key", "value", "here"),
    [
        ("actor_rollout_ref.rollout.temperature", 0.0, "rollout.temperature"),
        (f"{ACTOR}clip_ratio_low", 10, "algorithm.clip_low"),
        (f"{ACTOR}clip_ratio_c", 0.5, "algorithm.dual_clip"),
        (f"{ACTOR}optim.betas", [0.9, 1.0], "learner.betas"),
        ("trainer.total_epochs", 0, "epochs"),
        ("actor_rollout_ref.model.lora_rank", 10**6, "model.lora.rank"),
    ],
)
def test_a_value_that_a_run_would_refuse_is_refused_by_their_name(key: str, value: Any, here: str):
    with pytest.raises(UserError, match=f"\n  {key}=.*: its counterpart takes other values: {here}"):
        import_foreign(Foreign("verl", GRPO | {key: value}))
    assert lines_of(**{key: value})[key].outcome.verdict == "unsupported"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("data.train_batch_size", "many", "data.train_batch_size: expected a number such as 1024, got 'many'"),
        (f"{ACTOR}ppo_mini_batch_size", None, "ppo_mini_batch_size: expected a value like 256, got None"),
        ("data.train_batch_size", None, "data.train_batch_size: expected a value like 1024, got None"),
        (f"{ACTOR}policy_loss.loss_mode", ["gspo"], "loss_mode: expected a value like 'vanilla', got ['gspo']"),
        (f"{ACTOR}use_kl_loss", "perhaps", "use_kl_loss: expected true or false such as false, got 'perhaps'"),
        ("data.max_response_length", 10**400, "data.max_response_length: expected a smaller number"),
    ],
)
def test_a_value_of_another_kind_names_its_own_key(key: str, value: Any, words: str):
    with pytest.raises(UserError, match=re.escape(words)):
        import_foreign(Foreign("verl", GRPO | {key: value}))


def test_a_null_model_and_a_number_as_text_are_read(tmp_path: Path):
    given = {"actor_rollout_ref.model.path": None, "data.train_batch_size": "512", f"{ACTOR}use_kl_loss": "True"}
    config = recipe(tmp_path, Foreign("verl", GRPO | given))
    assert (config.model.path, config.rollout.problems_per_step, config.algorithm.kl_coef) == ("abacus", 512, 0.001)


def test_references_that_multiply_are_refused(tmp_path: Path):
    chain = {f"x.a{at}": f"${{x.a{at + 1}}}" * 8 for at in range(7)} | {"x.a7": "text"}
    with pytest.raises(UserError, match=r"x\.a0=.*cannot be decided"):
        import_foreign(Foreign("verl", GRPO | chain))


@pytest.mark.parametrize(("page", "entries"), [("from_trl", TRL), ("from_verl", VERL)])
def test_the_pages_have_every_key(page: str, entries: dict[str, Entry]):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert key_table(entries) in text
    if page == "from_verl":
        rows = [f"| `{pattern}` | {why} |" for pattern, why in NOT_NEEDED.items()]
        assert text.partition("| key | why |\n|---|---|\n")[2].partition("\n\n")[0].splitlines() == rows


SCORE = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    right = float(solution_str == ground_truth and data_source == "sums")
    return {"score": right + bonus + extra_info.get("more", 0.0), "acc": right}

async def later(data_source, solution_str, ground_truth, extra_info):
    return len(solution_str)
"""


@pytest.mark.parametrize(
    ("function", "arguments", "columns", "scores"),
    [
        (
            "compute_score",
            {},
            {"reward_model": {"style": "rule", "ground_truth": "7"}, "extra_info": {"more": 2.0}},
            [3, 2],
        ),
        ("compute_score", {"bonus": 0.25}, {"ground_truth": "7"}, [1.25, 0.25]),
        ("later", {}, {"ground_truth": "7"}, [1, 2]),
    ],
)
def test_compute_score_of_verl_is_called_for_each_completion(
    tmp_path: Path, function: str, arguments: dict[str, float], columns: dict[str, Any], scores: list[float]
):
    file = tmp_path / "score.py"
    file.write_text(SCORE)
    members = [Completion(at, (5,), (-0.5,), (-0.5,), text, StopReason.END, 0) for at, text in enumerate(("7", "17"))]
    problem = Problem("one", ({"role": "user", "content": "3 + 4"},), {"data_source": "sums", **columns})
    with open_scorer([WeightedReward("score", FromFile(str(file), function, arguments))]) as scorer:
        (scored,) = scorer.finish([scorer.begin(Group(problem, (7,), tuple(members)))])
    assert [one.total for one in scored] == scores
