"""Recipes from verl's configurations, its compute_score as a reward, the gradient of each loss_mode of 0.9.1."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from grouprl import UserError
from grouprl.algorithms import token_weights
from grouprl.algorithms.losses import TokenGrid
from grouprl.algorithms.named import NAMED
from grouprl.algorithms.spec import Algorithm
from grouprl.cli import app
from grouprl.config.algorithm import name_here
from grouprl.config.files import load_config
from grouprl.config.run import RunConfig
from grouprl.rewards.configured import open_scorer
from grouprl.rewards.functions import FromFile, WeightedReward
from grouprl.tools.imported.keys import NOT_NEEDED, VERL
from grouprl.tools.imported.read import Foreign, read_foreign
from grouprl.tools.imported.recipe import Line, import_foreign, write_recipe
from grouprl.types import Completion, Group, Problem, StopReason

GRPO = {
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.rollout.n": 5,
    "custom_reward_function.path": "score.py",
    "custom_reward_function.name": "compute_score",
}
ACTOR = "actor_rollout_ref.actor."
ESTIMATOR, MODE = "algorithm.adv_estimator", f"{ACTOR}policy_loss.loss_mode"
RUN = CliRunner()
PASTED = """
# python3 -m verl.trainer.main_ppo --config-name ppo
    algorithm.adv_estimator=grpo data.train_batch_size=512 \\
    actor_rollout_ref.model.path="abacus" actor_rollout_ref.rollout.n=8 \\
    trainer.logger='["console","wandb"]' +custom_reward_function.path=score.py  actor_rollout_ref.actor.optim.lr=3e-6
"""


def lines_of(**changes: Any) -> dict[str, Line]:
    return {one.key: one for one in import_foreign(Foreign("verl", GRPO | changes), allow=changes).lines}


def recipe(tmp_path: Path, foreign: Foreign) -> RunConfig:
    target = tmp_path / "made.yaml"
    write_recipe(import_foreign(foreign), "theirs", target, force=True)
    return load_config(RunConfig, [target], [])


AT = "reward_model.reward_kwargs."
DAPO = {  # verl: the reward falls over the last 4096 of 20480 tokens by up to 1
    "data.max_response_length": 20480,
    "reward_model.reward_manager": "dapo",
    f"{AT}overlong_buffer_cfg.enable": True,
    f"{AT}overlong_buffer_cfg.len": 4096,
    f"{AT}max_resp_len": 20480,
}
CISPO = {f"{ACTOR}policy_loss.loss_mode": "cispo"}
SIDES = {f"{ACTOR}clip_ratio": 0.4, f"{ACTOR}clip_ratio_low": None, f"{ACTOR}clip_ratio_high": 0.3}


@pytest.mark.parametrize(
    ("values", "ours"),
    [
        # 512 prompts by 256 are 2 updates, whatever n; completions would give 10.
        ({"data.train_batch_size": 512}, {"algorithm.minibatches": 2}),
        (
            {"data.train_batch_size": 96, f"{ACTOR}ppo_mini_batch_size": 32},
            {"rollout.problems_per_step": 96, "algorithm.minibatches": 3},
        ),
        # The coefficient of a KL that is off, and clip_ratio beside its two sides, do nothing.
        ({f"{ACTOR}kl_loss_coef": 0.5}, {"algorithm.kl_coef": 0.0}),
        ({f"{ACTOR}kl_loss_coef": 0.5, f"{ACTOR}use_kl_loss": True}, {"algorithm.kl_coef": 0.5}),
        (SIDES, {"algorithm.clip_low": 0.4, "algorithm.clip_high": 0.3}),
        # verl's CISPO example has clip_ratio_low=10: a ratio above 1 - 10 is any ratio.
        (CISPO | {f"{ACTOR}clip_ratio_low": 10}, {"algorithm.clip_low": 1.0}),
        (DAPO, {"algorithm.overlong_buffer": 0.2}),
        ({ESTIMATOR: "opo"}, {"algorithm.baseline": "length_mean", "algorithm.scale": "none"}),
        ({ESTIMATOR: "grpo_passk"}, {"algorithm.baseline": "best_other", "algorithm.scale": None}),
        ({ESTIMATOR: "grpo_passk", "algorithm.norm_adv_by_std_in_grpo": False}, {"algorithm.scale": "none"}),
        ({ESTIMATOR: "gpg"}, {"algorithm.scale": "none", "algorithm.drop_equal": True}),
        ({ESTIMATOR: "gpg", MODE: "gpg"}, {"algorithm.clip_low": 0.0, "algorithm.clip_high": 0.0}),
        ({"actor_rollout_ref.model.path": None}, {"model.path": None}),
        (
            {"data.train_batch_size": "64", f"{ACTOR}ppo_mini_batch_size": 64, f"{ACTOR}use_kl_loss": "True"},
            {"rollout.problems_per_step": 64, "algorithm.kl_coef": None},
        ),
    ],
)
def test_what_a_file_becomes(values: dict[str, Any], ours: dict[str, Any]):
    """None = as it is by default here."""
    changes = import_foreign(Foreign("verl", GRPO | values)).changes
    assert {key: changes.get(key) for key in ours} == ours


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({f"{ACTOR}kl_loss_coef": 0.5}, "not needed"),
        ({"data.filter_overlong_prompts": True}, "changed"),
        ({"data.truncation": "left"}, "changed"),
        ({"data.max_prompt_length": 99}, "equal"),  # verl stops at a longer one
        ({"data.image_key": "images"}, "unsupported"),
        ({ESTIMATOR: "gpg"}, "changed"),  # another factor
        ({ESTIMATOR: "opo"}, "equal"),
        ({f"{ACTOR}clip_ratio_high": 0.3, MODE: "gpg"}, "not needed"),
        ({"data.train_files": "a.parquet", "data.val_files": "b.parquet"}, "equal"),
        ({"data.train_files": "a.parquet"}, "changed"),  # a tenth is held out
    ],
)
def test_the_verdict_on_a_key(changes: dict[str, Any], verdict: str):
    assert lines_of(**changes)[next(iter(changes))].outcome.verdict == verdict


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"data.train_batch_size": 100}, "divisor of data.train_batch_size=100, both in prompts"),
        ({"actor_rollout_ref.rollout.n": 1}, "rollout.n=1: grpo compares completions"),
        (DAPO | {f"{AT}overlong_buffer_cfg.penalty_factor": 0.5}, "expected penalty_factor=1 and max_resp_len equal"),
        (DAPO | {f"{AT}max_resp_len": 9000}, "expected penalty_factor=1 and max_resp_len equal"),
        ({"data.train_batch_size": "${data.nothing}"}, "${data.nothing}: cannot be decided: the file does not"),
        ({"data.train_batch_size": "${data.train_batch_size}"}, "size}: cannot be decided: the file does not"),
        (
            {f"x.a{at}": f"${{x.a{at + 1}}}" * 8 for at in range(7)} | {"x.a7": "text"},  # they multiply
            "x.a0=${x.a1}",
        ),
        # A misspelt key is not taken for one that does nothing.
        *(
            ({key: 1}, f"{key}=1: unknown key; did you mean")
            for key in (*("data.train_batchsize", f"{ACTOR}kl_loss_coeff", "actor_rollout_ref.rollout.temprature"),)
        ),
        # A value of another kind names its own key.
        ({"data.train_batch_size": "many"}, "data.train_batch_size: expected a number such as 1024, got 'many'"),
        ({"data.train_batch_size": None}, "data.train_batch_size: expected a value like 1024, got None"),
        ({f"{ACTOR}policy_loss.loss_mode": ["gspo"]}, "loss_mode: expected a value like 'vanilla', got ['gspo']"),
        ({f"{ACTOR}use_kl_loss": "perhaps"}, "use_kl_loss: expected true or false such as false, got 'perhaps'"),
        ({"data.max_response_length": 10**400}, "data.max_response_length: expected a smaller number"),
        ({"config_name": "ppo_megatron_trainer.yaml"}, "config_name=ppo_megatron_trainer.yaml: another base"),
    ],
)
def test_what_cannot_be_had_stops(values: dict[str, Any], words: str):
    with pytest.raises(UserError, match=re.escape(words)):
        import_foreign(Foreign("verl", GRPO | values))


def test_without_an_estimator_it_is_ppo_with_a_critic_and_one_completion(tmp_path: Path):
    given = {key: value for key, value in GRPO.items() if not key.endswith(("adv_estimator", ".n"))}
    config = recipe(tmp_path, Foreign("verl", given))
    assert (config.algorithm.name, config.rollout.group_size, config.algorithm.kl_coef) == ("ppo", 1, 0.0)
    assert config.algorithm.advantage.baseline == "critic"
    assert config.learner.critic_learning_rate == 1e-5
    assert config.algorithm.critic.value_clip == 0.5  # the default there; 0.2 here


def test_pasted_overrides_are_read_from_a_file_and_behind_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("run.txt").write_text(PASTED)
    made = RUN.invoke(app, ["import-config", *shlex.split(PASTED.replace("\\\n", " "), comments=True)])
    assert made.exit_code == 0, made.exception
    assert "Wrote verl.yaml" in made.output
    for config in (recipe(tmp_path, read_foreign(Path("run.txt"))), load_config(RunConfig, [Path("verl.yaml")], [])):
        assert (config.model.path, config.rollout.group_size, config.rollout.problems_per_step) == ("abacus", 8, 512)
        assert (config.learner.learning_rate, config.trackers.names) == (3e-6, ("wandb",))
        assert (config.rewards[0].name, config.rewards[0].path) == ("compute_score", "score.py")
    again = RUN.invoke(app, ["import-config", "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4"])
    assert "verl.yaml: expected a new file" in str(again.exception)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "data.train_batch_size=$BATCH algorithm.adv_estimator=grpo",
            "data.train_batch_size=$BATCH: cannot be decided",
        ),
        ("python3 -m verl.trainer.main_ppo data.train_batch_size=64", "verl's overrides KEY=VALUE alone, got python3"),
        ("data.train_batch_size='64", "verl's overrides KEY=VALUE alone, got none"),
        ("- data.train_batch_size=$BATCH\n- algorithm.adv_estimator=grpo", "cannot be decided"),  # Hydra's own list
    ],
)
def test_a_list_of_overrides_is_plain(tmp_path: Path, text: str, words: str):
    (tmp_path / "run.txt").write_text(text)
    with pytest.raises(UserError, match=re.escape(words)):
        import_foreign(read_foreign(tmp_path / "run.txt", ["actor_rollout_ref.rollout.n=4"]))


def test_a_value_that_the_file_does_not_say_stops_where_it_counts(tmp_path: Path):
    """The engine does not count here, the batch does."""
    foreign = Foreign("verl", GRPO | {"data.train_batch_size": "$(nproc)", "actor_rollout_ref.rollout.name": "$ENGINE"})
    with pytest.raises(UserError, match=r"batch_size=\$\(nproc\): cannot be decided: the file does not") as refused:
        import_foreign(foreign)
    assert "rollout.name" not in str(refused.value)
    found = {one.key: one for one in import_foreign(foreign, allow=["data.train_batch_size"]).lines}
    assert found["actor_rollout_ref.rollout.name"].outcome.verdict == "not needed"


@pytest.mark.parametrize(
    ("value", "names"),
    [("$HOME/test.parquet", r"\$HOME"), ("${oc.env:DATA}/${X}.parquet", r"\$DATA and \$X"), ("${HOME}/a", r"\$HOME")],
)
def test_a_variable_of_the_shell_is_named(value: str, names: str):
    words = rf"it needs the variable {names}, which is not read: pass data.val_files=VALUE"
    with pytest.raises(UserError, match=words):
        import_foreign(Foreign("verl", GRPO | {"data.val_files": value}))


@pytest.mark.parametrize("key", ["attention_dropout", "embd_pdrop", "resid_pdrop"])
def test_no_dropout_is_equal_and_any_other_is_refused(key: str):
    key = f"actor_rollout_ref.model.override_config.{key}"
    found = {one.key: one.outcome for one in import_foreign(Foreign("verl", GRPO | {key: 0.0})).lines}
    assert found[key].verdict == "equal"
    with pytest.raises(UserError, match="GroupRL has no dropout"):
        import_foreign(Foreign("verl", GRPO | {key: 0.1}))


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


def test_examples_of_verls_defaults_do_not_enter_the_recipe(tmp_path: Path):
    """Without a named model, data and compute_score the recipe has none, and the command asks for them."""
    imported = import_foreign(Foreign("verl", {"algorithm.adv_estimator": "grpo", "actor_rollout_ref.rollout.n": 8}))
    assert imported.missing == ("model", "task", "reward")
    assert not any(key.startswith(("model.path", "task.")) and "prompt_column" not in key for key in imported.changes)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("num_generations", "is here rollout.group_size"),
        ("deepspeed", "has no setting here: `torchrun` with distributed.shard=true"),
        ("batch_size", "is here rollout.problems_per_step x rollout.group_size"),
        ("enable", ""),  # many sections of verl have it
        ("no_such_name", ""),
    ],
)
def test_a_hint_comes_from_the_tables(name: str, words: str):
    assert words in name_here(name)
    assert bool(words) == bool(name_here(name))


def test_no_key_of_the_data_is_not_needed():
    """Whatever it is, it may change which rows are trained; a file that Hydra resolved names all of them."""
    file = {key: entry.default for key, entry in VERL.items()} | {
        key: None for key in NOT_NEEDED if not key.endswith("*") and not key.startswith("data.")
    }
    file |= {"data.use_shm": False, "data.return_raw_chat": True, "data.mm_processor_kwargs": {}}
    lines = import_foreign(Foreign("verl", file | GRPO)).lines
    assert [one.key for one in lines if one.key.startswith("data.") and one.outcome.verdict == "not needed"] == []
    assert {"data.image_key", "data.use_shm"} <= {one.key for one in lines}


@pytest.mark.parametrize(
    ("key", "value", "here"),
    [
        ("actor_rollout_ref.rollout.temperature", 0.0, "rollout.temperature"),
        (f"{ACTOR}optim.betas", [0.9, 1.0], "learner.betas"),
        ("actor_rollout_ref.model.lora_rank", 10**6, "model.lora.rank"),
    ],
)
def test_a_value_that_a_run_would_refuse_is_refused_by_their_name(key: str, value: Any, here: str):
    with pytest.raises(UserError, match=f"\n  {key}=.*: its counterpart takes other values: {here}"):
        import_foreign(Foreign("verl", GRPO | {key: value}))
    assert lines_of(**{key: value})[key].outcome.verdict == "unsupported"


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


LENGTHS = (3, 5, 2, 4)
ADVANTAGES = (1.3, -0.7, 0.4, -1.1)
LOW, HIGH, C = 0.15, 0.25, 1.6
Token = Callable[[float, float, float], float]
"""From log-prob, old log-prob and advantage to the factor of the log-prob's gradient, to be minimized."""


def imported(tmp_path: Path, **actor: Any) -> Algorithm:
    given = GRPO | {ACTOR + key.replace("__", "."): value for key, value in actor.items()}
    target = tmp_path / "made.yaml"
    write_recipe(import_foreign(Foreign("verl", given)), "theirs", target, force=True)
    return load_config(RunConfig, [target], []).algorithm


def completions() -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, old log-probs and mask [N, T], with ratios on both sides of every edge."""
    draw = torch.Generator().manual_seed(3)
    old = -2 * torch.rand(len(LENGTHS), max(LENGTHS), generator=draw, dtype=torch.float64) - 0.05
    new = (old + 0.9 * torch.randn(old.shape, generator=draw, dtype=torch.float64)).clamp(max=-0.01)
    return new, old, torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]


def equal(algorithm: Algorithm, there: list[list[float]]) -> None:
    """The gradient of the imported algorithm is the other one."""
    new, old, mask = completions()
    policy = new.clone().requires_grad_()
    weights = token_weights(mask.double(), aggregate=algorithm.objective.aggregate)
    advantages = torch.tensor(ADVANTAGES, dtype=torch.float64)[:, None].expand_as(old)
    algorithm.objective.loss(TokenGrid(policy, old, advantages, weights, mask))[0].backward()
    expected = torch.tensor(there, dtype=torch.float64)
    assert expected.count_nonzero() > 4
    torch.testing.assert_close(policy.grad, expected, rtol=1e-6, atol=1e-9)


def same(algorithm: Algorithm, factor: Token, *, token_mean: bool = True) -> None:
    new, old, _ = completions()
    rows = []
    for i, (length, advantage) in enumerate(zip(LENGTHS, ADVANTAGES, strict=True)):
        weight = 1 / sum(LENGTHS) if token_mean else 1 / (len(LENGTHS) * length)
        own = [weight * factor(float(new[i, t]), float(old[i, t]), advantage) for t in range(length)]
        rows.append(own + [0.0] * (max(LENGTHS) - length))
    equal(algorithm, rows)


def test_cispo_bounds_the_ratio_on_both_sides(tmp_path: Path):
    algorithm = imported(tmp_path, policy_loss__loss_mode="cispo", clip_ratio_low=LOW, clip_ratio_high=HIGH)
    same(algorithm, lambda new, old, a: -a * min(max(math.exp(new - old), 1 - LOW), 1 + HIGH))


def test_gpg_has_no_ratio(tmp_path: Path):
    same(imported(tmp_path, policy_loss__loss_mode="gpg", clip_ratio_low=LOW), lambda new, old, a: -a)


def test_reinforce_plus_plus_baseline_is_the_named_algorithm_with_the_clip_of_verl(tmp_path: Path):
    given = GRPO | {
        ESTIMATOR: "reinforce_plus_plus_baseline",
        f"{ACTOR}use_kl_loss": True,
        f"{ACTOR}kl_loss_type": "mse",
    }
    made = recipe(tmp_path, Foreign("verl", given)).algorithm
    assert (made.advantage, made.kl) == (NAMED["rf_baseline"].advantage, NAMED["rf_baseline"].kl)
    with pytest.raises(UserError, match="expected one advantage for each completion"):
        import_foreign(Foreign("verl", given | {MODE: "gspo"}))


@pytest.mark.parametrize("kind", ["tv", "kl"])
def test_dppo_cuts_the_ratio_and_masks_by_divergence(tmp_path: Path, kind: str):
    def factor(new: float, old: float, a: float) -> float:
        p, q = math.exp(new), math.exp(old)
        moved = abs(p - q) if kind == "tv" else q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
        away = p > q if a > 0 else p < q
        return 0.0 if away and moved > LOW else -a * min(math.exp(new - old), C)

    sides = {"clip_ratio_low": LOW, "clip_ratio_high": LOW, "clip_ratio_c": C}
    same(imported(tmp_path, policy_loss__loss_mode=f"dppo_{kind}", **sides), factor)
    with pytest.raises(UserError, match=r"clip_ratio_low equal to clip_ratio_high, one divergence, got 0\.15 and 0\.3"):
        imported(tmp_path, policy_loss__loss_mode=f"dppo_{kind}", clip_ratio_low=LOW, clip_ratio_high=0.3)


def test_sapo_has_its_temperatures_and_its_own_mean(tmp_path: Path):
    def factor(new: float, old: float, a: float) -> float:
        ratio, tau = math.exp(new - old), 1.5 if a > 0 else 2.5
        gate = 1 / (1 + math.exp(-tau * (ratio - 1)))
        return -a * 4 * gate * (1 - gate) * ratio

    made = imported(tmp_path, policy_loss__loss_mode="sapo", tau_pos=1.5, tau_neg=2.5, loss_agg_mode="token-mean")
    same(made, factor, token_mean=False)


def of_whole(edge: Callable[[float, float], float], *, inside: Callable[[float, float], bool]) -> list[list[float]]:
    """The gradient of -A exp(mean of `edge(log-ratio, A)`), mean over completions."""
    new, old, _ = completions()
    rows = []
    for i, (length, a) in enumerate(zip(LENGTHS, ADVANTAGES, strict=True)):
        logs = [float(new[i, t] - old[i, t]) for t in range(length)]
        ratio = math.exp(sum(edge(x, a) for x in logs) / length)
        own = [-a * ratio / length / len(LENGTHS) if inside(x, a) else 0.0 for x in logs]
        rows.append(own + [0.0] * (max(LENGTHS) - length))
    return rows


def test_geo_mean_clips_the_logs_of_ratios(tmp_path: Path):
    def edge(x: float, a: float) -> float:
        return min(x, HIGH) if a > 0 else max(x, -LOW)

    made = imported(tmp_path, policy_loss__loss_mode="geo_mean", clip_ratio_low=LOW, clip_ratio_high=HIGH)
    equal(made, of_whole(edge, inside=lambda x, a: edge(x, a) == x))


def test_gspo_has_the_ratio_of_the_completion_and_no_dual_clip(tmp_path: Path):
    """verl spreads it over tokens: s = sg[s_i] p / sg[p], whose gradient is s_i at each token."""
    wide = {"clip_ratio_low": 0.9, "clip_ratio_high": 9.0, "loss_agg_mode": "seq-mean-token-mean"}
    made = imported(tmp_path, policy_loss__loss_mode="gspo", **wide)
    equal(made, of_whole(lambda x, _: x, inside=lambda *_: True))
    assert made.objective.dual_clip is None
    assert made.objective.range == (0.9, 9.0)


@pytest.mark.parametrize("mode", ["gspo", "geo_mean"])
def test_a_ratio_of_the_completion_needs_one_advantage(mode: str):
    with pytest.raises(UserError, match=f"loss_mode={mode}: expected one advantage for each completion"):
        import_foreign(Foreign("verl", GRPO | {MODE: mode, "algorithm.adv_estimator": "gae"}))


@pytest.mark.parametrize("mode", ["clip_cov", "kl_cov", "dro", "no_such"])
def test_other_modes_stop(mode: str):
    with pytest.raises(
        UserError, match=f"loss_mode={mode}: expected one of vanilla, gspo, sapo, cispo, geo_mean, gpg, dppo_tv"
    ):
        import_foreign(Foreign("verl", GRPO | {MODE: mode}))
