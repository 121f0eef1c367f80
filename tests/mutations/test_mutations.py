"""One wrong line fails a fast test: each line below is changed in a copy of the package."""

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

CREDIT = "tests/learner/test_credit.py"
LOSS, TOKENS = "tests/algorithms/test_policy_loss.py", "tests/algorithms/test_token_functions.py"
BY_HAND, STEPS = "tests/algorithms/test_algorithms.py", "tests/algorithms/test_steps_gae_dpo.py"
LINES, ENDS = "tests/learner/test_single_lines.py", "tests/rollout/test_ends.py"
RESUME = "tests/run/test_resume.py"
POWER = "tests/run/test_survival.py::test_a_run_that_loses_power_ends_as_if_it_had_not"

# (file, line, what stands there instead, tests of which one fails)
MUTANTS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    # What a run survives.
    ("run/checkpoint.py", "check_manifest(checkpoint.path)", "pass", (RESUME,)),
    ("models/load.py", "check_manifest(Path(folder))", "pass", (RESUME,)),
    (
        "run/resume.py",
        "lock = lock_directory(saved_path(directory).parent)",
        "lock = os.open(saved_path(directory).parent, os.O_RDONLY)",
        (RESUME,),
    ),
    ("record/read.py", "return lacking if before or not until else (0, *lacking)", "return ()", (RESUME,)),
    ("record/write.py", 'kept = [row for row in kept if row["step"] in evaluated]', "pass", (RESUME,)),
    ("record/files.py", "os.fsync(lines.fileno())", "pass", (POWER,)),
    # The mathematics.
    (
        "algorithms/advantages.py",
        '"leave_one_out": (sum_N - rewards_N64) / (count_N - 1).clamp(min=1),',
        '"leave_one_out": (sum_N - rewards_N64) / count_N.clamp(min=1),',
        (BY_HAND,),
    ),
    (
        "algorithms/advantages.py",
        'freedom = 1.0 if std == "sample" else 0.0',
        'freedom = 0.0 if std == "sample" else 1.0',
        (BY_HAND,),
    ),
    (
        "algorithms/advantages.py",
        "signal_N = valid_N & has_signal(rewards_N, group_ids_N)",
        "signal_N = has_signal(rewards_N, group_ids_N)",
        (BY_HAND,),
    ),
    (
        "algorithms/advantages.py",
        "return (highest > lowest)[group_of_N]",
        "return (highest >= lowest)[group_of_N]",
        (BY_HAND,),
    ),
    (
        "algorithms/advantages.py",
        '"batch_mean": batch_mean.expand_as(mean_N),',
        '"batch_mean": mean_N,',
        (LINES,),
    ),
    (
        "algorithms/advantages.py",
        '"none": torch.zeros_like(mean_N),',
        '"none": batch_mean.expand_as(mean_N),',
        (BY_HAND,),
    ),
    (
        "algorithms/advantages.py",
        "divisor_N = torch.where(deviation_N + eps <= size_N * _ROUNDING, size_N, deviation_N + eps)",
        "divisor_N = torch.where(deviation_N + eps <= size_N * _ROUNDING, size_N, deviation_N)",
        (BY_HAND,),
    ),
    (
        "algorithms/advantages.py",
        "squares = ((rewards_N64 - batch_mean).square() * valid_N64).sum()",
        "squares = (rewards_N64 - batch_mean).square().sum()",
        (LINES, BY_HAND),
    ),
    (
        "algorithms/advantages.py",
        'return self.baseline == "batch_mean" or self.scale == "batch_std"',
        'return self.baseline == "batch_mean"',
        (LINES,),
    ),
    (
        "algorithms/advantages.py",
        "advantages_N = advantages_N + weight * alone",
        "advantages_N = advantages_N + alone",
        (CREDIT,),
    ),
    (
        "algorithms/advantages.py",
        "rewards_N = batch.rewards_N - batch.kl_NT.sum(1)",
        "rewards_N = batch.rewards_N + batch.kl_NT.sum(1)",
        (CREDIT,),
    ),
    (
        "algorithms/corrections.py",
        "log_weight_NT = torch.where(mask_NT, learner_logprobs_NT.detach() - sampler_logprobs_NT, 0.0)",
        "log_weight_NT = torch.where(mask_NT, sampler_logprobs_NT - learner_logprobs_NT.detach(), 0.0)",
        (TOKENS,),
    ),
    (
        "algorithms/corrections.py",
        "weight_NT = torch.where((weight_NT <= cap) & (weight_NT >= floor), weight_NT, 0.0)",
        "weight_NT = torch.where(weight_NT <= cap, weight_NT, 0.0)",
        (TOKENS,),
    ),
    (
        "algorithms/entropy.py",
        "highest = entropies.topk(int(share * (len(entropies) - 1)) + 1)",
        "highest = entropies.topk(int(share * (len(entropies) - 1)) + 1, largest=False)",
        (TOKENS,),
    ),
    (
        "algorithms/filters.py",
        "return -((lengths_N.double() - (max_tokens - width)) / width).clamp(0.0, 1.0)",
        "return ((lengths_N.double() - (max_tokens - width)) / width).clamp(0.0, 1.0)",
        (TOKENS,),
    ),
    (
        "algorithms/filters.py",
        "within = not bounded or bool(low <= rewards_G.nanmean() <= high)",
        "within = not bounded or bool(low < rewards_G.nanmean() < high)",
        (LINES,),
    ),
    ("algorithms/kl.py", "return -log_ratio", "return log_ratio", (BY_HAND,)),
    (
        "algorithms/kl.py",
        "return torch.expm1(log_ratio) - log_ratio",
        "return torch.expm1(log_ratio) + log_ratio",
        (BY_HAND,),
    ),
    (
        "algorithms/kl.py",
        "error = max(-0.2, min(0.2, kl / target - 1))",
        "error = max(-0.2, min(0.2, 1 - kl / target))",
        (TOKENS,),
    ),
    (
        "algorithms/losses.py",
        "return mask_NT / (sequences * mask_NT.sum(1, keepdim=True).clamp(min=1))",
        "return mask_NT / mask_NT.sum(1, keepdim=True).clamp(min=1)",
        (BY_HAND,),
    ),
    (
        "algorithms/losses.py",
        "return mask_NT / (sequences * constant_length)",
        "return mask_NT / constant_length",
        (BY_HAND,),
    ),
    (
        "algorithms/surrogates.py",
        "return torch.minimum(terms.ratio_NT * terms.advantages_NT, clipped_NT * terms.advantages_NT)",
        "return torch.maximum(terms.ratio_NT * terms.advantages_NT, clipped_NT * terms.advantages_NT)",
        (LOSS,),
    ),
    (
        "algorithms/surrogates.py",
        "below_NT = (ratios_NT < 1 - clip_low) & (advantages_NT < 0)",
        "below_NT = (ratios_NT < 1 - clip_low) & (advantages_NT > 0)",
        (LOSS,),
    ),
    (
        "algorithms/surrogates.py",
        "above_NT = (ratios_NT > 1 + clip_high) & (advantages_NT > 0)",
        "above_NT = (ratios_NT > 1 + clip_high) & (advantages_NT < 0)",
        (LOSS,),
    ),
    (
        "algorithms/losses.py",
        '"clip_low_fraction": _masked_mean(below_NT.float(), mask_NT),',
        '"clip_low_fraction": _masked_mean(above_NT.float(), mask_NT),',
        (LOSS,),
    ),
    (
        "algorithms/losses.py",
        "logprobs_NT, old_logprobs_NT = _blank(logprobs_NT, mask_NT), _blank(old_logprobs_NT.detach(), mask_NT)",
        "logprobs_NT, old_logprobs_NT = _blank(logprobs_NT, mask_NT), _blank(old_logprobs_NT, mask_NT)",
        (LOSS,),
    ),
    (
        "algorithms/surrogates.py",
        "return terms.ratio_NT.clamp(1 - low, 1 + high).detach() * terms.advantages_NT * terms.logprobs_NT",
        "return terms.ratio_NT.clamp(1 - low, 1 + high) * terms.advantages_NT * terms.logprobs_NT",
        (LOSS,),
    ),
    (
        "algorithms/losses.py",
        "gain_NT = torch.where(advantages_NT < 0, torch.maximum(gain_NT, dual_clip * advantages_NT), gain_NT)",
        "gain_NT = torch.where(advantages_NT > 0, torch.maximum(gain_NT, dual_clip * advantages_NT), gain_NT)",
        (LOSS,),
    ),
    (
        "algorithms/surrogates.py",
        "mean_N1 = log_ratio_NT.sum(1, keepdim=True) / mask_NT.sum(1, keepdim=True).clamp(min=1)",
        "mean_N1 = log_ratio_NT.sum(1, keepdim=True)",
        (LOSS,),
    ),
    (
        "algorithms/losses.py",
        "cost_NT = cost_NT + kl_coef * (ratio_NT * kl_NT if kl_unbiased else kl_NT)",
        "cost_NT = cost_NT - kl_coef * (ratio_NT * kl_NT if kl_unbiased else kl_NT)",
        (LOSS,),
    ),
    (
        "algorithms/tokens.py",
        "advantage_N = torch.where(inside_N, delta_N + gamma * lam * advantage_N, advantage_N)",
        "advantage_N = torch.where(inside_N, delta_N + lam * advantage_N, advantage_N)",
        (TOKENS,),
    ),
    (
        "algorithms/tokens.py",
        "counted_NT = batch.trained_NT & ~batch.rewards_N.isnan()[:, None]",
        "counted_NT = batch.trained_NT",
        (CREDIT,),
    ),
    ("algorithms/tokens.py", "rewards_NT = -batch.kl_NT", "rewards_NT = batch.kl_NT.clone()", (CREDIT,)),
    (
        "algorithms/steps.py",
        "advantages_NT[row, : end + 1] += next(normalized)",
        "advantages_NT[row, :end] += next(normalized)",
        (STEPS,),
    ),
    (
        "algorithms/steps.py",
        "[*steps, (reward, length - 1)] if reward == reward else []  # NaN = invalid",
        "[*steps, (reward, length - 1)]",
        (LINES,),
    ),
    (
        "algorithms/values.py",
        "worst_NT = torch.maximum(plain_NT, (near_NT - returns_NT).square())",
        "worst_NT = torch.minimum(plain_NT, (near_NT - returns_NT).square())",
        (TOKENS,),
    ),
    ("algorithms/preferences.py", "margin_N = chosen_N - rejected_N", "margin_N = rejected_N - chosen_N", (STEPS,)),
    (
        "learner/batch.py",
        "counted_NT[list(rows)] = self.counted_NT[list(rows)]",
        "counted_NT[:] = self.counted_NT",
        (LINES,),
    ),
    (
        "learner/batch.py",
        "before.entropies_NT.cpu(), batch.trained_NT, share=algorithm.spread.entropy_share",
        "before.entropies_NT.cpu(), batch.mask_NT, share=algorithm.spread.entropy_share",
        (LINES,),
    ),
    (
        "learner/batch.py",
        "trained_NT=mask_NT & whole_N[:, None] if mask_overlong else mask_NT,",
        "trained_NT=mask_NT,",
        (LINES,),
    ),
    (
        "learner/batch.py",
        "whole_N = torch.tensor([completion.stop_reason is not StopReason.LENGTH for completion in completions])",
        "whole_N = torch.tensor([completion.stop_reason is StopReason.LENGTH for completion in completions])",
        (LINES,),
    ),
    (
        "rollout/rows.py",
        "reason_n = torch.where(torch.isin(tokens_n, self._ends), _END, full_n)",
        "reason_n = torch.where(full_n > 0, full_n, torch.isin(tokens_n, self._ends) * _END)",
        (ENDS,),
    ),
    (
        "rollout/decoding.py",
        "stopped = (row for row in self._stopped_rows() if over.get(row) is not StopReason.END)",
        "stopped = self._stopped_rows()",
        (ENDS,),
    ),
    # What the lines above leave alive.
    (
        "algorithms/corrections.py",
        "weight_NT = torch.where((weight_NT <= cap) & (weight_NT >= floor), weight_NT, 0.0)",
        "weight_NT = torch.where((weight_NT < cap) & (weight_NT > floor), weight_NT, 0.0)",
        (LINES,),
    ),
    (
        "algorithms/surrogates.py",
        "return (gap_NT.sum(1, keepdim=True) > delta * mask_NT.sum(1, keepdim=True)) & (advantages_NT < 0)",
        "return (gap_NT.sum(1, keepdim=True) > delta) & (advantages_NT < 0)",
        (LINES,),
    ),
    (
        "algorithms/surrogates.py",
        "out_NT = out_NT | diverged(logprobs_NT, sampler_logprobs_NT, advantages_NT, tv=tv, kl=kl)",
        "out_NT = diverged(logprobs_NT, sampler_logprobs_NT, advantages_NT, tv=tv, kl=kl)",
        (LINES,),
    ),
    (
        "algorithms/advantages.py",
        "return (highest > lowest)[group_of_N]",
        "return (highest > lowest + 1e-6)[group_of_N]",
        (LINES,),
    ),
    (
        "algorithms/entropy.py",
        "return steered_entropy_coef(coefs[0], entropy, target=self.entropy_target, step=self.entropy_step)",
        "return steered_entropy_coef(coefs[1], entropy, target=self.entropy_target, step=self.entropy_step)",
        (LINES,),
    ),
    (
        "algorithms/named/dppo.py",
        '"dppo", objective=Plain(aggregate="token_mean", divergence_tv=0.15), kl=None, updates=Updates(minibatches=4)',
        '"dppo", objective=Plain(aggregate="token_mean", divergence_tv=0.2), kl=None, updates=Updates(minibatches=4)',
        (LINES,),
    ),
    (
        "algorithms/values.py",
        "near_NT = old_NT + (values_NT - old_NT).clamp(-clip, clip)",
        "near_NT = old_NT + (values_NT - old_NT).clamp(max=clip)",
        (LINES,),
    ),
    (
        "learner/learner.py",
        "optimizer.turn = turn  # by the step: the rate follows the run, whichever updates had no gradient",
        "optimizer.turn = 0  # by the step: the rate follows the run, whichever updates had no gradient",
        (LINES,),
    ),
    (
        "learner/learner.py",
        "old_logprobs_NT=logprobs_nT.detach() if work.old_NT is None else cut(pack, work.old_NT),",
        "old_logprobs_NT=sampled_nT,",
        ("tests/learner/test_learner.py",),
    ),
    (
        "learner/trace.py",
        "left_NT = left_out(logprobs_NT, batch.old_logprobs_NT, advantages_NT, batch.mask_NT, *limits)",
        "left_NT = left_out(logprobs_NT, old_NT, advantages_NT, batch.mask_NT, *limits)",
        (LINES,),
    ),
    (
        "tools/proof/replay.py",
        "differing = ~((a == b) | (~np.isfinite(a) & ~np.isfinite(b)))",
        "differing = ~((np.abs(a - b) < 1e-9) | (~np.isfinite(a) & ~np.isfinite(b)))",
        (LINES,),
    ),
    # What a hunt of a hundred single lines left alive.
    (
        "algorithms/corrections.py",
        "floor: float = 0.5,",
        "floor: float = 0.75,",
        (LINES,),
    ),
    (
        "algorithms/kl.py",
        "if self.kl_coef == 0:",
        "if self.kl_coef == 1:",
        (LINES,),
    ),
    (
        "algorithms/losses.py",
        "mask_NT = mask_NT.float()",
        "mask_NT = mask_NT",
        (LINES,),
    ),
    (
        "algorithms/losses.py",
        "stats = _ratio_stats(ratio_NT.detach(), advantages_NT, counted_NT, clip_low, clip_high)",
        "stats = _ratio_stats(ratio_NT, advantages_NT, counted_NT, clip_low, clip_high)",
        (LINES,),
    ),
    (
        "algorithms/spec.py",
        "return self.kl is not None and self.kl.refresh_reference > 0 and step % self.kl.refresh_reference == 0",
        "return self.kl is not None and self.kl.refresh_reference > 0 and step % self.kl.refresh_reference == 1",
        (LINES,),
    ),
    (
        "algorithms/surrogates.py",
        "return (gap_NT.sum(1, keepdim=True) > delta * mask_NT.sum(1, keepdim=True)) & (advantages_NT < 0)",
        "return (gap_NT.sum(1, keepdim=True) >= delta * mask_NT.sum(1, keepdim=True)) & (advantages_NT < 0)",
        (LINES,),
    ),
    (
        "algorithms/tokens.py",
        "return float(values.abs().max()) if len(values) else 0.0",
        "return float(values.max()) if len(values) else 0.0",
        (LINES,),
    ),
    (
        "algorithms/tokens.py",
        "varied = len(tokens) > 1 and float(tokens.std(correction=0)) > rounding",
        "varied = len(tokens) > 1 and float(tokens.std(correction=0)) >= rounding",
        (LINES,),
    ),
    (
        "learner/learner.py",
        "return float(gap_NT[batch.mask_NT.to(self.device)].abs().max()) <= AT_REFERENCE[self.dtype]",
        "return float(gap_NT[batch.mask_NT.to(self.device)].max()) <= AT_REFERENCE[self.dtype]",
        (LINES,),
    ),
    (
        "learner/learner.py",
        "seed = self.optimizer.updates + (self.critic.optimizer.updates if self.critic else 0)",
        "seed = self.optimizer.updates - (self.critic.optimizer.updates if self.critic else 0)",
        (LINES,),
    ),
    (
        "learner/learner.py",
        "counted_nT = mask_nT & (weights_nT > 0).any(1, keepdim=True) & (advantages_nT != 0).any(1, keepdim=True)",
        "counted_nT = mask_nT & (weights_nT > 0).any(1, keepdim=True)",
        ("tests/learner/test_learner_options.py",),
    ),
    (
        "learner/batch.py",
        "return bool((self.advantages_NT * self.batch.trained_NT).any())",
        "return bool((self.advantages_NT * self.batch.mask_NT).any())",
        (LINES,),
    ),
    (
        "learner/batch.py",
        "if algorithm.spread.entropy_share < 1 and before.entropies_NT is not None:",
        "if algorithm.spread.entropy_share <= 1 and before.entropies_NT is not None:",
        (LINES,),
    ),
    (
        "ranks/ranks.py",
        "if not self.exact or self.world == 1:",
        "if self.exact or self.world == 1:",
        ("tests/ranks/test_shares.py",),
    ),
)


@pytest.mark.parametrize(("file", "line"), [pytest.param(*one[:2], id=one[0]) for one in MUTANTS])
def test_a_line_to_change_stands_in_its_file_once(file: str, line: str) -> None:
    assert (SRC / file).read_text(encoding="utf-8").count(line) == 1


@pytest.mark.slow
def test_a_wrong_line_is_noticed() -> None:
    result = subprocess.run(
        [sys.executable, str(SUPPORT / "mutants.py")],
        input=json.dumps(MUTANTS),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr[-4000:]
    codes = json.loads(result.stdout.splitlines()[-1])
    assert len(codes) == len(MUTANTS)
    # 1 is pytest's code for a failed test; 2 and more say that the tests did not run.
    missed = [(mutant, code) for mutant, code in zip(MUTANTS, codes, strict=True) if code != 1]
    assert [mutant for mutant, code in missed if code != 0] == []
    assert len(missed) <= (1 - CAUGHT) * len(MUTANTS), missed
