"""One wrong line fails a fast test: each part of a line below is changed in a copy of the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import grouprl

SRC = Path(grouprl.__file__).parent
SUPPORT = Path(__file__).parents[1] / "support"
CAUGHT = 0.95  # of the mutants, at least

ALGORITHM, BY_HAND = "tests/algorithms/test_algorithm.py", "tests/algorithms/test_algorithms.py"
LOSS, TOKENS = "tests/algorithms/test_policy_loss.py", "tests/algorithms/test_token_functions.py"
STEPS = "tests/algorithms/test_steps_gae_dpo.py"
CREDIT, PACKS, NO_SIGNAL = (f"tests/learner/test_{name}.py" for name in ("credit", "packs", "no_signal"))
LEARNER, OPTIONS, LINES = (f"tests/learner/test_{name}.py" for name in ("learner", "learner_options", "single_lines"))
ENDS, SHARES, RESUME = "tests/rollout/test_ends.py", "tests/ranks/test_shares.py", "tests/run/test_resume.py"
PAIRED, CLAIMS = "tests/evaluation/test_paired.py", "tests/tools/test_claims.py"
TREE, ANSWERS = "tests/rollout/test_tree.py", "tests/tasks/test_answers.py"
FOREIGN, GROWTH = "tests/record/test_foreign_files.py", "tests/models/test_tokenizer_growth.py"
TEACHER = "tests/learner/test_teacher.py"
BRANCHES, CONVERSATION = "tests/rollout/test_branches.py", "tests/environments/test_conversation.py"
LAST_TENTH = "test_a_metric_counts_in_the_last_tenth_of_the_steps_and_grows_from_the_first"
POWER = "tests/run/test_survival.py::test_a_run_that_loses_power_ends_as_if_it_had_not"

# file: (part of a line, what stands there instead, tests of which one fails)
MUTANTS: dict[str, tuple[tuple[str, str, str], ...]] = {
    # What a run survives.
    "run/checkpoint.py": (
        ("check_manifest(checkpoint.path)", "pass", RESUME),
        ("range(0, len(problems), stride)", "range(0, len(problems) - 1, stride)", "tests/run/test_checkpoint.py"),
    ),
    "models/load.py": (("check_manifest(Path(folder))", "pass", RESUME),),
    "run/resume.py": (
        ("= lock_directory(saved_path(directory).parent)", "= os.open(saved_path(directory).parent, 0)", RESUME),
    ),
    "record/read.py": (
        ("return lacking if before or not until else (0, *lacking)", "return ()", RESUME),
        ('if any("run" in row', 'if all("run" in row', FOREIGN),
    ),
    "received/files.py": (
        ("sum(len(str(text)) * times + more for", "sum(len(str(text)) * times for", GROWTH),
        ("more * factor + addition", "more + addition", GROWTH),
        ("for tokens in added[:2] for token", "for tokens in added[:1] for token", GROWTH),
        ("table[4 + int", "table[int", GROWTH),
    ),
    "record/write.py": (('kept[path] = [row for row in kept[path] if row["step"] in evaluated]', "pass", RESUME),),
    "record/files.py": (("os.fsync(lines.fileno())", "pass", POWER),),
    # The mathematics.
    "algorithms/advantages.py": (
        ("(count_N - 1).clamp", "count_N.clamp", BY_HAND),
        ('1.0 if std == "sample" else 0.0', '0.0 if std == "sample" else 1.0', BY_HAND),
        ("= valid_N & has_signal(", "= has_signal(", BY_HAND),
        ("return (highest > lowest)", "return (highest >= lowest)", BY_HAND),
        ("return (highest > lowest)", "return (highest > lowest + 1e-6)", BY_HAND),
        ('"batch_mean": batch_mean.expand_as(mean_N),', '"batch_mean": mean_N,', BY_HAND),
        ('"none": torch.zeros_like(mean_N),', '"none": batch_mean.expand_as(mean_N),', BY_HAND),
        ("size_N, deviation_N + eps)", "size_N, deviation_N)", BY_HAND),
        ("(values_N - middle).square() * valid_N64", "(values_N - middle).square()", BY_HAND),
        (' or self.scale in ("batch_std", "advantage_std")', "", CREDIT),
        ("advantages_N + weight * alone", "advantages_N + alone", CREDIT),
        ("batch.rewards_N - batch.kl_NT.sum(1)", "batch.rewards_N + batch.kl_NT.sum(1)", CREDIT),
    ),
    "algorithms/corrections.py": (
        (
            "learner_logprobs_NT.detach() - sampler_logprobs_NT",
            "sampler_logprobs_NT - learner_logprobs_NT.detach()",
            TOKENS,
        ),
        ("(weight_NT <= cap) & (weight_NT >= floor)", "weight_NT <= cap", TOKENS),
        ("(weight_NT <= cap) & (weight_NT >= floor)", "(weight_NT < cap) & (weight_NT > floor)", TOKENS),
        ("floor: float = 0.5,", "floor: float = 0.75,", TOKENS),
    ),
    "algorithms/entropy.py": (
        ("int(share * (len(entropies) - 1)) + 1)", "int(share * (len(entropies) - 1)) + 1, largest=False)", TOKENS),
        ("steered_entropy_coef(coefs[0]", "steered_entropy_coef(coefs[1]", TOKENS),
    ),
    "algorithms/filters.py": (
        ("return -((lengths_N", "return ((lengths_N", TOKENS),
        ("low <= rewards_G.nanmean() <= high", "low < rewards_G.nanmean() < high", TOKENS),
    ),
    "algorithms/kl.py": (
        ("return -log_ratio", "return log_ratio", BY_HAND),
        ("torch.expm1(log_ratio) - log_ratio", "torch.expm1(log_ratio) + log_ratio", BY_HAND),
        ("min(0.2, kl / target - 1)", "min(0.2, 1 - kl / target)", TOKENS),
        ("if self.kl_coef == 0:", "if self.kl_coef == 1:", ALGORITHM),
    ),
    "algorithms/losses.py": (
        ("/ (sequences * mask_NT.sum(1, keepdim=True).clamp(min=1))", "/ mask_NT.sum(1, keepdim=True)", BY_HAND),
        ("(sequences * constant_length)", "constant_length", BY_HAND),
        ("mask_NT = mask_NT.float()", "mask_NT = mask_NT", BY_HAND),
        ("_masked_mean(below_NT.float()", "_masked_mean(above_NT.float()", LOSS),
        ("_blank(tokens.old_logprobs_NT.detach()", "_blank(tokens.old_logprobs_NT", LOSS),
        ("torch.where(advantages_NT < 0, bounded", "torch.where(advantages_NT > 0, bounded", LOSS),
        ("cost_NT = cost_NT + kl_coef", "cost_NT = cost_NT - kl_coef", LOSS),
        ("ratios_NT = ratio_NT.detach()", "ratios_NT = ratio_NT", LOSS),
        ("(logprobs_NT - sampler_NT).square()", "(logprobs_NT - old_logprobs_NT).square()", LOSS),
        ("(len(unique) * tokens_P", "(tokens_P", BY_HAND),
    ),
    "algorithms/spec.py": (("% self.kl.refresh_reference == 0", "% self.kl.refresh_reference == 1", ALGORITHM),),
    "algorithms/surrogates.py": (
        ("return torch.minimum(", "return torch.maximum(", LOSS),
        ("< 1 - clip_low) & (advantages_NT < 0)", "< 1 - clip_low) & (advantages_NT > 0)", LOSS),
        ("> 1 + clip_high) & (advantages_NT > 0)", "> 1 + clip_high) & (advantages_NT < 0)", LOSS),
        (".clamp(1 - low, 1 + high).detach()", ".clamp(1 - low, 1 + high)", LOSS),
        ("log_ratio_NT.sum(1, keepdim=True) / mask_NT.sum(1, keepdim=True)", "log_ratio_NT.sum(1, keepdim=True)", LOSS),
        ("> delta * mask_NT.sum(1, keepdim=True)", "> delta", LOSS),
        ("> delta * mask_NT.sum(1, keepdim=True)", ">= delta * mask_NT.sum(1, keepdim=True)", LOSS),
        ("out_NT = out_NT | diverged(", "out_NT = diverged(", LOSS),
        ("k_NT * log_w_N1 - lambda_NT", "k_NT * log_w_N1 + lambda_NT", LOSS),
    ),
    "algorithms/tokens.py": (
        ("delta_N + gamma * lam * advantage_N", "delta_N + lam * advantage_N", TOKENS),
        ("batch.trained_NT & ~batch.rewards_N.isnan()[:, None]", "batch.trained_NT", CREDIT),
        ("rewards_NT = -batch.kl_NT", "rewards_NT = batch.kl_NT.clone()", CREDIT),
        ("float(values.abs().max())", "float(values.max())", TOKENS),
        ("> rounding", ">= rounding", TOKENS),
    ),
    "algorithms/steps.py": (
        ("advantages_NT[row, : end + 1]", "advantages_NT[row, :end]", STEPS),
        (" if reward == reward else []", "", CREDIT),
    ),
    "algorithms/values.py": (
        ("torch.maximum(plain_NT", "torch.minimum(plain_NT", TOKENS),
        (".clamp(-clip, clip)", ".clamp(max=clip)", TOKENS),
    ),
    "algorithms/preferences.py": (("chosen_N - rejected_N", "rejected_N - chosen_N", STEPS),),
    "algorithms/named/dppo.py": (("divergence_tv=0.15", "divergence_tv=0.2", ALGORITHM),),
    # Which tokens count, and when an update is made.
    "learner/batch.py": (
        ("batch.trained_NT, share=", "batch.mask_NT, share=", LINES),
        ("mask_NT & whole_N[:, None] if mask_overlong else mask_NT", "mask_NT", PACKS),
        ("stop_reason is not StopReason.LENGTH", "stop_reason is StopReason.LENGTH", PACKS),
        ("self.batch.trained_NT).any()", "self.batch.mask_NT).any()", LINES),
        ("entropy_share < 1 and", "entropy_share <= 1 and", LINES),
    ),
    "terms/critic.py": (
        ("counted_NT[list(rows)] = credit.counted_NT[list(rows)]", "counted_NT[:] = credit.counted_NT", LINES),
    ),
    "learner/learner.py": (
        ("self.optimizer.turn = turn", "self.optimizer.turn = 0", LINES),
        (".abs().max()) <= AT_REFERENCE", ".max()) <= AT_REFERENCE", NO_SIGNAL),
        ("self.optimizer.updates + (0 if critic", "self.optimizer.updates - (0 if critic", LINES),
    ),
    "learner/terms.py": (
        (
            "logprobs_nT.detach() if denominator_NT is None else cut(pack, denominator_NT)",
            "sampler_logprobs_nT",
            LEARNER,
        ),
        (
            "(weights_NT[rows] > 0).any(1) & (inputs.advantages_NT[rows] != 0).any(1)",
            "(weights_NT[rows] > 0).any(1)",
            OPTIONS,
        ),
    ),
    "learner/packs.py": (
        ("range(min(count, len(groups)))", "range(count)", PACKS),
        ('Random(f"minibatches/{seed}")', 'Random("minibatches")', PACKS),
        ("len(batch.prompts[group]) - shared", "len(batch.prompts[group])", PACKS),
        ("if any(row in batch.observations for row", "if all(row in batch.observations for row", PACKS),
        ("tokens += prompt_length + common", "tokens += prompt_length", PACKS),
        ('("sampler_learner_gap", "ratio_max")', '("ratio_max",)', PACKS),
        ('max(values) if name == "ratio_max"', 'min(values) if name == "ratio_max"', PACKS),
    ),
    "terms/distill.py": (
        ("row := row + len(group.completions)", "row := row + len(groups[0].completions)", TEACHER),
        ("trained_NT[inputs.has_teacher_N].sum()", "inputs.batch.mask_NT[inputs.has_teacher_N].sum()", TEACHER),
        ("last = max(at for at", "last = min(at for at", TEACHER),
        ("not all(outcome.correct", "not any(outcome.correct", TEACHER),
        (
            "for row in pack.rows if row in hidden_by_row]",
            "for row in sorted(pack.rows) if row in hidden_by_row]",
            "tests/learner/test_distillation.py::test_packed_rows_are_single_rows",
        ),
    ),
    # What is compared.
    "evaluation/paired.py": (
        (
            "{name: mean for name, mean in means if mean is not None}",
            "{name: mean or 0.0 for name, mean in means}",
            PAIRED,
        ),
        ("for column in numbers[:2]", "for column in numbers[:1]", PAIRED),
        ("            or (numbers[1] and not numbers[0])\n", "", PAIRED),
        ("span = max(1.0, *(max(side) - min(side) for side in (ours, theirs)))", "span = 1.0", PAIRED),
    ),
    "tools/compare/claims.py": (
        ("values_PX[:, 0] if claim.grows else np", "np", f"{CLAIMS}::test_growth_begins_at_the_first_evaluation"),
        ("fmean(reached[:tenth])", "fmean(reached[-tenth:])", f"{CLAIMS}::test_growth_begins_at_the_first_evaluation"),
        (
            "simultaneous_confidence(max(1, len(claim.pairs)))",
            "simultaneous_confidence(1)",
            f"{CLAIMS}::test_of_two_expectations_each_interval_is_wrong_half_as_often",
        ),
        (
            "result.sampled_by_problem or result.greedy_by_problem",
            "result.greedy_by_problem or result.sampled_by_problem",
            f"{CLAIMS}::test_sampled_completions_count_before_the_greedy_one",
        ),
        (
            "(grid_X[-1] - grid_X[0])",
            "grid_X[-1]",
            f"{CLAIMS}::test_speed_is_a_mean_from_the_first_evaluation_on",
        ),
        ("// _TENTH", "// 2", f"{CLAIMS}::{LAST_TENTH}"),
        (
            "sum(o[key] for o in others) for key in ours if all(key in o for o in others)",
            "sum(o.get(key, 0.0) for o in others) for key in ours",
            f"{CLAIMS}::test_only_problems_of_every_evaluation_and_seed_are_compared",
        ),
    ),
    "tools/compare/inference.py": (
        (
            "both, by_seed, by_problem)",
            "both, by_seed)",
            f"{CLAIMS}::test_an_error_is_never_below_that_of_the_seeds_or_of_the_problems_alone",
        ),
    ),
    "record/queries.py": (
        (
            "WHERE correct = 0 GROUP BY step ORDER",
            "WHERE correct = 1 GROUP BY step ORDER",
            f"{CLAIMS}::test_wrong_length_is_of_wrong_completions_alone",
        ),
    ),
    "tasks/spelling.py": (("            power = 1\n        else", "            pass\n        else", ANSWERS),),
    "rollout/tree.py": (
        ("(node for node in self._nodes if not node.children)", "self._nodes", TREE),
        ("same == len(node.token_ids) and at < len(ids)", "at < len(ids)", TREE),
    ),
    "learner/trace.py": (("left_out(logprobs_NT, batch.old_logprobs_NT", "left_out(logprobs_NT, old_NT", LINES),),
    "rollout/rows.py": (
        (
            "torch.where(torch.isin(tokens_n, self._ends), _END, full_n)",
            "torch.where(full_n > 0, full_n, torch.isin(tokens_n, self._ends) * _END)",
            ENDS,
        ),
    ),
    "rollout/decoding.py": ((" and ended.get(row) is not StopReason.END", "", ENDS),),
    "tools/proof/branch_engine.py": (
        (
            "before_T = prompt +",
            "before_T = prompt - 1 +",
            f"{BRANCHES}::test_the_likely_tokens_are_those_of_the_distribution",
        ),
    ),
    "environments/conversation.py": (
        (" + (live.rewards[-1] or 0.0)", "", f"{CONVERSATION}::test_the_rewards_of_the_calls_of_a_turn_add_up"),
    ),
    "tools/proof/replay.py": (("(a == b)", "(np.abs(a - b) < 1e-9)", LINES),),
    "ranks/ranks.py": (("if not self.exact or", "if self.exact or", SHARES),),
}
ALL = [(file, *mutant) for file, mutants in MUTANTS.items() for mutant in mutants]


@pytest.mark.parametrize(("file", "part"), [pytest.param(*mutant[:2], id=mutant[0]) for mutant in ALL])
def test_a_part_to_change_stands_in_its_file_once(file: str, part: str) -> None:
    assert (SRC / file).read_text(encoding="utf-8").count(part) == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_wrong_line_is_noticed() -> None:
    result = subprocess.run(
        [sys.executable, str(SUPPORT / "mutants.py")],
        input=json.dumps(ALL),
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr[-4000:]
    codes = json.loads(result.stdout.splitlines()[-1])
    assert len(codes) == len(ALL)
    # 1 is pytest's code for a failed test; 2 and more say that the tests did not run.
    missed = [(mutant, code) for mutant, code in zip(ALL, codes, strict=True) if code != 1]
    assert [mutant for mutant, code in missed if code != 0] == []
    assert len(missed) <= (1 - CAUGHT) * len(ALL), missed
