"""The metrics of a run: name, unit, meaning, formula, when to worry. The site and the page are generated from them.

`python -m grouprl.record.metric_tables` generates the page's definitions.
"""

from __future__ import annotations

import re

from grouprl.record.metric import Metric as Metric
from grouprl.record.token_ledger import LEDGER

# fmt: off
_WORKED_SHARE = (
    "share of completions with a property that the task reports but never rewards"
)
_WORKED_SHARE_WORRY = (
    "when correct completions lose the property you hoped to see"
)
_FRAC_SOLVED = (
    "share of groups in which every completion is correct (solved), or none is (hopeless); the rest is "
    "mixed. Completions without a verdict do not count; absent without a verifier"
)
_FRAC_SOLVED_WORRY = (
    "when few are mixed: only those have right and wrong completions to compare"
)
_CURRICULUM_SEEN = (
    "problems visited so far (seen), and how many of them have an estimated pass rate of at least 90 "
    "% (solved), of at most 10 % (hopeless), or between the two (edge) ([how](evidence.md#a-curriculum))"
)
_CURRICULUM_SEEN_WORRY = (
    "when the hopeless grow with the seen: such problems are too hard to teach anything, or their "
    "verifier is wrong"
)
_JUDGE_REQUESTS = (
    "usage of a [judge model](rewards.md#judge_model) since the process of the run began: requests, "
    "retries among them, completions left without a score, tokens that the judge model read and "
    "wrote, and their cost"
)
_JUDGE_REQUESTS_WORRY = (
    "when retries or failures grow with the requests: the judge model's server is overloaded or refuses"
)
_GROUPS_SAMPLED = (
    "groups sampled in the step, refills included, and the groups among them that enter the loss (kept)"
)
_GROUPS_SAMPLED_WORRY = (
    "when far fewer are kept than sampled: most of the sampling is lost"
)
_COMPLETIONS_MEAN_LENGTH = (
    "length of the step's completions in tokens, end token included: the mean, and the longest"
)
_CLIP_LOW_FRACTION = (
    "share of tokens, of the completions with an advantage, whose ratio was clipped: below, where the advantage is "
    "negative, and above, where it is positive"
)
_CLIP_LOW_FRACTION_WORRY = (
    "above a tenth: the updates of a step then move the policy too far from its data; with gspo more is "
    "normal, and with one update a step it is 0"
)
_RATIO_MEAN = (
    "ratio of the policy to the behavior policy in the last pass, mean and largest over the tokens of the "
    "completions with an advantage: 1 until the weights move, and exactly 1 with one update per batch"
)
_RATIO_MEAN_WORRY = (
    "when the largest reaches tens: the data is old, or a batch gets too many updates"
)
_CORRECTION_MEAN = (
    "weight that `correction` gives to a token, mean and largest over all tokens: 1 where sampler and"
    " learner agree"
)
_CORRECTION_MEAN_WORRY = (
    "when the mean is far from 1: most of the batch is then lost"
)
_TIME_ROLLOUT = (
    "seconds of a step by part, refills included: sampling (rollout), waiting for rewards after "
    "sampling (reward), and learning (learn)"
)
_TIME_ROLLOUT_WORRY = (
    "when a part other than rollout or learn grows"
)

METRICS: tuple[Metric, ...] = (
    Metric("step", "Step", "",
        meaning="number of the step, from 1",
        worry="when it stands still while the run is running: a reward function or a judge model may be waiting for "
        "something"),
    Metric("reward", "Reward", "",
        meaning="mean reward of the step's completions: weighted totals, length penalty included; "
        "process rewards and invalid completions do not count",
        worry="when it rises while held-out accuracy does not: the policy may earn reward without right "
        "answers",
        formula="sum(r_i) / N", section="total", trl="reward"),
    Metric("reward_std", "Reward deviation within a group", "",
        meaning="standard deviation of the rewards within a group, mean over groups",
        worry="when it nears 0: where a group's rewards agree there is no advantage to learn from",
        formula="mean over groups of sqrt(sum((r_i - mean)^2) / G)", section="baseline", trl="reward_std"),
    Metric("rewards/NAME/mean", "Reward by function", "",
        meaning="mean of one reward function, unweighted, over the completions it applies to; of a process "
        "reward, the mean over a completion's steps",
        worry="when the total rises through one easy function alone",
        formula="sum(r_i,m) / N of reward m", section="total", trl="rewards/NAME/mean"),
    Metric("reward_logs/NAME", "Logged by a reward", "", trl="NAME",
        meaning="number that rewards logged with [`log_metric`](rewards.md#your-own), mean over the step's calls",
        worry="when it is not what its reward expects"),
    Metric("rewards/soft_overlong/mean", "Length penalty", "",
        meaning="mean length penalty of `overlong_buffer`: 0 for a completion that ends early enough, down to -1",
        worry="when it keeps falling: completions grow towards max_tokens",
        formula="-clip((length - (1 - b) * L) / (b * L), 0, 1), b = overlong_buffer, L = max_tokens",
        section="overlong"),
    Metric("accuracy", "Accuracy on training problems", "share",
        meaning="share of correct completions among those with a verdict of the task's verifier; absent "
        "without a verifier",
        worry="when it rises here and not on held-out problems",
        formula="correct / judged", section="correct"),
    Metric("worked_share", "Worked step by step", "share", meaning=_WORKED_SHARE, worry=_WORKED_SHARE_WORRY),
    Metric("NAME_share", "Watched property", "share", meaning=_WORKED_SHARE, worry=_WORKED_SHARE_WORRY),
    Metric("frac_reward_zero_std", "Groups without signal", "share",
        meaning="share of groups whose rewards are all equal: groups without signal",
        worry="when most groups are like this: they cost as much to sample as any other",
        formula="groups with max(r) = min(r) / groups", section="baseline", trl="frac_reward_zero_std"),
    Metric("frac_solved", "Solved groups", "share",
        meaning=_FRAC_SOLVED,
        worry=_FRAC_SOLVED_WORRY,
        formula="groups all correct / groups judged", section="filters"),
    Metric("frac_hopeless", "Hopeless groups", "share",
        meaning=_FRAC_SOLVED,
        worry=_FRAC_SOLVED_WORRY,
        formula="groups none correct / groups judged", section="filters"),
    Metric("frac_unverified", "Completions without a verdict", "share",
        meaning="share of completions without a verdict of the verifier; absent when 0, and without a verifier",
        worry="when it is seldom absent: accuracy then covers the other completions alone",
        formula="not judged / N", section="invalid"),
    Metric("frac_invalid", "Invalid rewards", "share",
        meaning="share of completions whose reward could not be computed ([why](rewards.md#when-a-reward-fails))",
        worry="when it is above 0, and at a tenth at the latest, where a run stops by default "
        "(rollout.scoring.max_invalid)",
        formula="invalid / N", section="invalid"),
    Metric("curriculum/seen", "Problems seen", "problems",
        meaning=_CURRICULUM_SEEN,
        worry=_CURRICULUM_SEEN_WORRY,
        section="curriculum"),
    Metric("curriculum/solved", "Problems solved", "problems",
        meaning=_CURRICULUM_SEEN,
        worry=_CURRICULUM_SEEN_WORRY,
        section="curriculum"),
    Metric("curriculum/hopeless", "Hopeless problems", "problems",
        meaning=_CURRICULUM_SEEN,
        worry=_CURRICULUM_SEEN_WORRY,
        section="curriculum"),
    Metric("curriculum/edge", "Problems at the edge", "problems",
        meaning=_CURRICULUM_SEEN,
        worry=_CURRICULUM_SEEN_WORRY,
        section="curriculum"),
    Metric("curriculum/mean_pass_rate", "Mean pass rate of the problems seen", "share",
        meaning="mean estimated pass rate of the problems visited so far",
        worry="when it falls: the policy unlearns solved problems, or new problems are harder",
        formula="mean over problems of the estimated pass rate", section="curriculum"),
    Metric("judge/requests", "Requests to the judge model", "requests",
        meaning=_JUDGE_REQUESTS,
        worry=_JUDGE_REQUESTS_WORRY,
        section="judge"),
    Metric("judge/retries", "Retries of the judge model", "requests",
        meaning=_JUDGE_REQUESTS,
        worry=_JUDGE_REQUESTS_WORRY,
        section="judge"),
    Metric("judge/failures", "Failures of the judge model", "requests",
        meaning=_JUDGE_REQUESTS,
        worry=_JUDGE_REQUESTS_WORRY,
        section="judge"),
    Metric("judge/prompt_tokens", "Tokens the judge model read", "tokens",
        meaning=_JUDGE_REQUESTS,
        worry="when it grows faster than the completions: prompts are getting longer, and so is the bill",
        section="judge"),
    Metric("judge/completion_tokens", "Tokens the judge model wrote", "tokens",
        meaning=_JUDGE_REQUESTS,
        worry="when it grows faster than the completions: replies are getting longer, and so is the bill",
        section="judge"),
    Metric("judge/cost", "Cost of the judge model", "",
        meaning=_JUDGE_REQUESTS,
        worry="when the rest of the run will cost more than you have planned for",
        section="judge"),
    Metric("groups/sampled", "Groups sampled", "groups",
        meaning=_GROUPS_SAMPLED,
        worry=_GROUPS_SAMPLED_WORRY,
        section="filters"),
    Metric("groups/kept", "Groups kept", "groups",
        meaning=_GROUPS_SAMPLED,
        worry=_GROUPS_SAMPLED_WORRY,
        section="filters"),
    Metric("completions/mean_length", "Completion length", "tokens",
        meaning=_COMPLETIONS_MEAN_LENGTH,
        worry="when it grows while accuracy does not: a mean per completion punishes long wrong answers least",
        formula="sum(T_i) / N", section="length", trl="completions/mean_length"),
    Metric("completions/max_length", "Longest completion", "tokens",
        meaning=_COMPLETIONS_MEAN_LENGTH,
        worry="when it stays at max_tokens: completions are being truncated",
        formula="max(T_i)", section="overlong", trl="completions/max_length"),
    Metric("completions/clipped_ratio", "Truncated completions", "share",
        meaning="share of completions truncated at `max_tokens`",
        worry="above a few percent: raise max_tokens before you penalize length",
        formula="truncated / N", section="overlong", trl="completions/clipped_ratio"),
    Metric("completions/repeated", "Repetition", "share",
        meaning="share of a completion's sequences of four tokens that occurred in it before, mean over completions",
        worry="when it grows: the policy writes in loops",
        formula="mean of 1 - distinct 4-grams / 4-grams"),
    *LEDGER,
    Metric("skipped_updates", "Skipped updates", "",
        meaning="updates of the step skipped because loss or gradient was NaN or infinite; absent when 0",
        worry="when it is ever there: the run stops after three such steps in a row"),
    Metric("loss", "Loss", "",
        meaning="loss of the update; includes the loss of a critic that shares the policy's trunk",
        worry="when it is far outside its usual range; its value alone means little, with cispo nothing: watch "
        "the reward",
        formula="sum(w * (surrogate + kl_coef * KL))", section="loss", trl="loss"),
    Metric("kl", "KL to the reference", "nats per token",
        meaning="estimated KL from the policy to the reference, per token",
        worry="when it stays high after a jump or keeps rising; a single spike is common with k3, where one token "
        "can dominate a step",
        formula="k3: exp(d) - d - 1, d = log ref - log policy; mean over tokens", section="kl", trl="kl"),
    Metric("kl_coef", "Weight of the KL", "", section="kl_coef",
        meaning="weight of the KL in this step; changes with `kl_target`",
        worry="when kl_target drives it up or down without end: the target then does not suit the run"),
    Metric("entropy_coef", "Weight of the entropy bonus", "", trl="entropy_coef",
        meaning="weight of the entropy bonus in this step, for `entropy_target`",
        worry="when it grows without end: entropy does not follow, and the bonus will outweigh the rewards"),
    Metric("entropy", "Entropy", "nats per token",
        meaning="entropy of the policy's next-token distribution, per token of the completions with an advantage;"
        " absent in a step without any",
        worry="when it reaches 0 while problems are unsolved: the policy no longer tries anything else; or when"
        " it explodes",
        formula="-sum(p * log p), mean over tokens", section="entropy", trl="entropy"),
    Metric("entropy_threshold", "Entropy threshold", "nats", section="entropy_threshold",
        meaning="smallest entropy of the tokens with advantages, for `entropy_share` below 1",
        worry="when it is near 0: the loss then includes tokens without a real choice"),
    Metric("router_aux_loss", "Balance of experts", "", trl="aux_loss", formula="experts * sum(share * probability)",
        meaning="loss that balances a mixture's experts (`router_aux_coef`)", worry="when it rises: fewer get more"),
    Metric("grad_norm", "Gradient norm", "",
        meaning="norm of the gradient before clipping; 0 when no completion moved the policy",
        worry="when it is always above learner.max_grad_norm, so that every update is scaled down, or when spikes "
        "recur",
        formula="sqrt(sum(g^2))", trl="grad_norm"),
    Metric("learning_rate", "Learning rate", "", trl="learning_rate",
        meaning="learning rate of this update: how far the optimizer moves the weights",
        worry="when a warm-up (learner.warmup_steps) takes up much of the run"),
    Metric("clip_low_fraction", "Clipped tokens", "share",
        meaning=_CLIP_LOW_FRACTION,
        worry=_CLIP_LOW_FRACTION_WORRY,
        formula="tokens with A < 0 and ratio < 1 - clip_low / tokens", section="clip", trl="clip_ratio/low_mean"),
    Metric("clip_high_fraction", "Clipped tokens", "share",
        meaning=_CLIP_LOW_FRACTION,
        worry=_CLIP_LOW_FRACTION_WORRY,
        formula="tokens with A > 0 and ratio > 1 + clip_high / tokens", section="clip", trl="clip_ratio/high_mean"),
    Metric("ratio_mean", "Ratio of policy to behavior policy", "",
        meaning=_RATIO_MEAN,
        worry=_RATIO_MEAN_WORRY,
        formula="mean of exp(log policy - log old)", section="ratio"),
    Metric("ratio_max", "Largest ratio", "",
        meaning=_RATIO_MEAN,
        worry=_RATIO_MEAN_WORRY,
        formula="max of exp(log policy - log old)", section="ratio"),
    Metric("correction_mean", "Mismatch correction", "",
        meaning=_CORRECTION_MEAN,
        worry=_CORRECTION_MEAN_WORRY,
        formula="mean of the correction's weight", section="correction"),
    Metric("correction_max", "Largest mismatch correction", "",
        meaning=_CORRECTION_MEAN,
        worry=_CORRECTION_MEAN_WORRY,
        formula="max of the correction's weight", section="correction"),
    Metric("staleness", "Staleness", "",
        meaning="updates between the weights that sampled the oldest completion of the step and the first update"
        " from it; with `cluster.max_staleness`",
        worry="above the updates of one step: the policy learns from groups of an older one", section="correction"),
    Metric("sampler_learner_gap", "Sampler and learner gap", "nats",
        meaning="largest absolute difference between a token's log-prob at sampling and at learning, in the first"
        " update",
        worry="above 1e-4 in float32: the learner's policy is then not the policy that sampled",
        formula="max |log learner - log sampled|", section="correction",
        trl="sampling/sampling_logp_difference/max"),
    Metric("sampler_learner_gap_mean", "Mean gap of sampler and learner", "nats", section="correction",
        meaning="mean of those differences with their sign, learner minus sampler: rounding has no direction",
        worry="when it is not near 0: the sampler's log-probs are too low (above 0) or too high on the whole",
        formula="mean of log learner - log sampled"),
    Metric("value_loss", "Value loss", "",
        meaning="half the squared error of the critic, per token, clipped as `value_clip` says",
        worry="when it does not fall at first: the critic learns too slowly to be a baseline",
        formula="mean of (V - return)^2 / 2", section="value"),
    Metric("value_clip_fraction", "Clipped values", "share",
        meaning="share of tokens for which the limit `value_clip` made the critic's error larger",
        worry="when it stays high: value_clip, which is in units of reward, holds the critic back",
        formula="tokens with the clipped error larger / tokens", section="value"),
    Metric("value_explained_variance", "Variance that the critic explains", "",
        meaning="1 - Var(return - value) / Var(return) before the first update: 1 is a perfect critic, 0 one that"
        " knows only the mean; `null` when all returns are equal",
        worry="when it stays at 0: such a critic is no better than the mean of the batch; below 0 it does harm",
        formula="1 - Var(return - V) / Var(return)", section="critic"),
    Metric("critic_grad_norm", "Gradient norm of the critic", "",
        meaning="norm of the critic's gradient before clipping",
        worry="when spikes recur: the critic's learning rate is then too high",
        formula="sqrt(sum(g^2))", section="critic"),
    Metric("tokens_per_second", "Speed", "tokens/s",
        meaning="completion tokens per second of the step",
        worry="when it falls while completions keep their length",
        formula="completion_tokens / time/total"),
    Metric("completion_tokens", "Completion tokens", "tokens",
        meaning="completion tokens of the step (integer)",
        worry="when it grows from step to step: time and memory grow with it",
        formula="sum(T_i)"),
    Metric("time/rollout", "Where the time goes", "s",
        meaning=_TIME_ROLLOUT,
        worry=_TIME_ROLLOUT_WORRY),
    Metric("time/reward", "Time of the rewards", "s",
        meaning=_TIME_ROLLOUT,
        worry=_TIME_ROLLOUT_WORRY),
    Metric("time/learn", "Time of learning", "s",
        meaning=_TIME_ROLLOUT,
        worry=_TIME_ROLLOUT_WORRY),
    Metric("time/reference", "Time of reference and critic", "s",
        meaning="seconds of a step for forward passes before the update: reference, critic and, "
        "for `correction` and `entropy_share`, the policy itself",
        worry="when it comes near to the time of learning"),
    Metric("time/total", "Time of a step", "s", trl="step_time",
        meaning="seconds of the whole step; the page shows the time outside the parts as \"other\"",
        worry="when it grows while completions keep their length"),
    Metric("rss_mib", "Memory", "MiB",
        meaning="most resident memory of the process so far, in MiB",
        worry="when it keeps growing after the first steps"),
)

HELD_OUT: tuple[Metric, ...] = (
    Metric("eval/reward", "Held-out reward", "",
        meaning="mean reward over held-out problems, of sampled completions with a valid reward (of the greedy ones "
        "with `evaluation.samples=0`), and its 95% interval [low, high]",
        worry="when it falls while the training reward still rises: the policy then learns its problems alone",
        formula="mean over problems of mean reward"),
    Metric("greedy_accuracy", "Held-out accuracy", "share",
        meaning="share of held-out problems solved at temperature 0, and its 95% interval [low, high]",
        worry="when it falls while the training reward still rises, or when pass@k falls while pass@1 rises: "
        "the policy then repeats answers more often but solves fewer problems",
        formula="correct / judged at temperature 0", section="correct"),
    Metric("pass_at_1", "pass@1", "share",
        meaning="chance that one sampled completion solves a problem, mean over problems",
        worry="when it falls while the training reward still rises",
        formula="mean of c / n", section="correct"),
    Metric("pass_at_8", "pass@8", "share",
        meaning="chance that at least one of eight sampled completions solves a problem, mean over problems "
        "(unbiased estimate, Chen et al. 2021); also recorded for 2, 4, ... up to `evaluation.samples`",
        worry="when it falls while pass@1 rises: the policy then solves fewer problems, but those more often",
        formula="mean of 1 - C(n - c, 8) / C(n, 8)", section="correct"),
)
# fmt: on


def metric_of(name: str) -> Metric | None:
    """Finds the definition of a recorded name, such as rewards/correct_answer/mean; None when there is none."""
    known = {metric.name: metric for metric in (*METRICS, *HELD_OUT)}
    if name in known:
        return known[name]
    patterns = [metric for metric in METRICS if "NAME" in metric.name]
    return next((metric for metric in patterns if re.fullmatch(metric.name.replace("NAME", ".+"), name)), None)
