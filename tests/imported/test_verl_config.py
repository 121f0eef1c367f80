"""Recipes from verl's configurations and scripts, and its compute_score as a reward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grouprl import UserError
from grouprl.config.files import load_config
from grouprl.config.other_names import HERE
from grouprl.config.run import RunConfig
from grouprl.imported.read import Foreign, read_foreign
from grouprl.imported.recipe import Line, import_foreign, write_recipe
from grouprl.imported.table import Entry, key_table
from grouprl.imported.trl_keys import TRL
from grouprl.imported.trl_older import RENAMED
from grouprl.imported.verl_keys import NOT_NEEDED, VERL
from grouprl.scoring.functions import FromFile, WeightedReward
from grouprl.scoring.scorer import open_scorer
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
    with pytest.raises(UserError, match=r"batch_size=\$\(nproc\): the file does not define \$\(nproc\)") as refused:
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
    with pytest.raises(UserError, match=r"data\.train_batch_size=.*the file does not define"):
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


def test_hints_and_tables_know_the_same_keys():
    """A hint for a name of TRL or verl has an entry, but for names that only older versions or tables have."""
    of_verl = {key.rpartition(".")[2] for key in (*VERL, *NOT_NEEDED)}
    older = {"batch_size", "clip_range", "dataset", "delta", "max_length", "model_name", "tokenizer"}
    older |= {"cliprange", "kl_coef", "max_new_tokens", "mini_batch_size", "wandb", "ppo_micro_batch_size_per_gpu"}
    assert set(HERE) - set(TRL) - set(RENAMED) - of_verl <= older


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
        ("later", {}, {}, [1, 2]),
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
