"""A teacher that has read more: its KL and gradient against slow ones, what it reads, and runs that it changes."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from counting import Costs
from grouprl import Trainer, UserError, WeightedReward
from grouprl.algorithms import reverse_kl
from grouprl.algorithms.distillation import Distill
from grouprl.config.command_line import config_of
from grouprl.config.run import RunConfig, load_config
from grouprl.learner import make_batch
from grouprl.models.load import load_tokenizer
from grouprl.run.assemble import loss_terms
from grouprl.terms.distill import Teacher, token_kls
from grouprl.tools.proof.replay import replay
from grouprl.types import Batch, Group, Problem, RewardOutcome, Sampling
from learner_setting import gap, learn, learner_of, loaded, other_reference, sampled, teacher_of
from oracles import own_logits, own_model
from small_runs import ROWS, metrics, small_config
from variants import variant

V, MIB = 37, 1 << 20
WARM = Sampling(max_tokens=12, temperature=0.7)
NOTHING = torch.zeros(11)  # no advantage: the teacher alone moves the policy


# The KL and its gradient


def logits(seed: int, tokens: int = 5, vocabulary: int = V) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(tokens, vocabulary, dtype=torch.float64, generator=generator)


def test_the_gradient_is_a_policy_gradient_summed_over_the_whole_vocabulary() -> None:
    """By enumeration: of every token its probability, its score function, and its log-ratio as the reward."""
    policy, teacher = logits(0).requires_grad_(), logits(1).log_softmax(-1)
    found = reverse_kl(policy, teacher)
    (gradient,) = torch.autograd.grad((found * torch.arange(1.0, 6.0)).sum(), policy)
    probs, expected = policy.detach().softmax(-1), torch.zeros_like(policy)
    for row in range(5):
        kl = sum(float(p) * (math.log(p) - float(q)) for p, q in zip(probs[row], teacher[row], strict=True))
        assert float(found[row].detach()) == pytest.approx(kl, abs=1e-12)
        for token in range(V):
            score = (torch.arange(V) == token).double() - probs[row]  # of log p by the logits
            reward = float(teacher[row, token]) - math.log(probs[row, token])
            for baseline in (0.0, -3.0):  # any baseline gives the same sum
                expected[row] -= 0.5 * (row + 1) * probs[row, token] * (reward - baseline) * score
    torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=1e-10)


def test_the_gradient_by_finite_differences_and_none_for_the_teacher() -> None:
    policy, teacher = logits(2, 3, 6).requires_grad_(), logits(3, 3, 6).log_softmax(-1).requires_grad_()
    assert torch.autograd.gradcheck(lambda one: reverse_kl(one, teacher), policy)
    reverse_kl(policy, teacher).sum().backward()
    assert teacher.grad is None
    assert float(reverse_kl(policy.detach(), policy.log_softmax(-1)).abs().max()) < 1e-14


@pytest.mark.parametrize(("own", "others"), [(V, V), (V, V + 3), (V + 3, V)])  # padding behind an equal vocabulary
@pytest.mark.parametrize("chunk_elements", [1, 24 * V])
def test_chunks_are_the_full_logits(chunk_elements: int, own: int, others: int) -> None:
    generator = torch.Generator().manual_seed(4)
    heads = [nn.Linear(size, rows, bias=False) for size, rows in ((6, own), (9, others))]
    hidden = [torch.randn(11, size, generator=generator).requires_grad_() for size in (6, 9)]
    weights = torch.linspace(-1, 2, 11)
    found = token_kls(heads[0], hidden[0], heads[1], hidden[1], 0.7, chunk_elements=chunk_elements)
    leaves = [hidden[0], heads[0].weight]
    grads = torch.autograd.grad((found * weights).sum(), [*leaves, hidden[1], heads[1].weight], allow_unused=True)
    logits = (h.double() @ w.weight.double()[:V].T for h, w in zip(hidden, heads, strict=True))
    p, q = (torch.log_softmax(one / 0.7, -1) for one in logits)
    whole = (p.exp() * (p - q.detach())).sum(-1)
    expected = torch.autograd.grad((whole * weights).sum(), leaves)
    torch.testing.assert_close(found.double(), whole, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(grads[:2], expected, atol=2e-6, rtol=1e-5)
    assert grads[2:] == (None, None)


def test_the_memory_is_that_of_one_chunk() -> None:
    """512 tokens of a vocabulary of 32,768 are 64 MiB of logits for each of the two; a chunk is 1 MiB."""
    heads = [nn.Linear(8, 1 << 15, bias=False) for _ in range(2)]
    hidden_SH = torch.randn(512, 8).requires_grad_()
    with Costs() as costs:
        kl = token_kls(heads[0], hidden_SH, heads[1], hidden_SH.detach() + 1, 1.0, chunk_elements=1 << 21)
        torch.autograd.grad(kl.sum(), [hidden_SH, heads[0].weight])
    assert costs.largest <= MIB
    assert costs.peak <= 12 * MIB


# One update


def taught(folder: Path) -> Batch:
    """All but rows 0 to 2, the first group, and 7 have a teacher, of two prompts in the second group and one after."""
    tokenizer = load_tokenizer(str(folder))
    texts = {row: f"{'b' if row == 4 else 'a'} answer is {row // 6}. Again:" for row in range(3, 11) if row != 7}
    prompts = {row: tuple(tokenizer(text)["input_ids"]) for row, text in texts.items()}
    first, second, third = sampled(folder, WARM)
    short = tuple(
        replace(one, token_ids=one.token_ids[:5], logprobs=one.logprobs[:5], plain_logprobs=one.plain_logprobs[:5])
        for one in second.completions
    )  # a pack begins with the longer completions: its rows are 6 to 10, then 3 to 5
    groups = [first, replace(second, completions=short), third]
    return make_batch(groups, WARM, teacher_prompts=prompts)


def slow_gradient(folder: Path, batch: Batch, *, reference: bool) -> tuple[float, dict[str, Tensor]]:
    """The mean KL and the gradient, one completion after the other in transformers' own forward pass."""
    own, other = own_model(folder), own_model(folder)
    if reference:
        other = other_reference(other)
    total, kls = torch.zeros(()), []
    for row, length in enumerate(batch.mask_NT.sum(1).tolist()):
        if row in batch.teacher_prompts:
            ids = batch.token_ids_NT[row, :length].tolist()
            p = (own_logits(own, batch.prompts[batch.group_of_N[row]], ids) / 0.7).log_softmax(-1)
            q = (own_logits(other, batch.teacher_prompts[row], ids) / 0.7).log_softmax(-1).detach()
            kls.append((p.exp() * (p - q)).sum(-1))
            total = total + kls[-1].mean() / 11
    total.backward()
    gradient = {name: weight.grad for name, weight in own.named_parameters() if weight.grad is not None}
    return float(torch.cat(kls).mean().detach()), gradient


@pytest.mark.parametrize("teacher", ["policy", "reference", "another"])
@pytest.mark.parametrize("tokens", [45, 10**6])
def test_packed_rows_are_single_rows(tiny: Path, teacher: str, tokens: int) -> None:
    batch, coef = taught(tiny), 2.0
    algorithm = variant(kl_coef=1e-9, distill_coef=coef, distill_teacher=teacher)
    learner = learner_of(loaded(tiny), algorithm, micro_batch_tokens=tokens)
    if teacher == "another":
        another = teacher_of(algorithm.distill, other_reference(loaded(tiny)))
        learner.use_terms(loss_terms(algorithm, learner.policy, learner.reference, None, another))
    found = learn(learner, batch, NOTHING)
    kl, expected = slow_gradient(tiny, batch, reference=teacher != "policy")
    assert found["distill_kl"] == pytest.approx(kl, rel=1e-5)
    lengths = batch.mask_NT.sum(1)
    assert found["distill_share"] == pytest.approx(1 - float((lengths[:3].sum() + lengths[7]) / lengths.sum()))
    assert gap(learner.optimizer.gradient, {name: coef * value for name, value in expected.items()}) < 2e-5


def test_it_adds_to_the_group_objective(tiny: Path) -> None:
    batch, learners = taught(tiny), []
    for given, changes in ((batch, {"distill_coef": 0.5}), (replace(batch, teacher_prompts={}), {})):
        learners.append(learner_of(loaded(tiny), variant(**changes)))
        learn(learners[-1], given)
    both, alone = (learner.optimizer.gradient for learner in learners)
    _, expected = slow_gradient(tiny, batch, reference=False)
    assert gap({name: both[name] - alone[name] for name in both}, {n: 0.5 * g for n, g in expected.items()}) < 1e-4


# What the teacher reads

READ = "A worked solution of the problem below:\n{}\n\n{}"


def read(tiny: Path, outcomes: list[list[RewardOutcome]], **options: Any) -> dict[int, str]:
    tokenizer = load_tokenizer(str(tiny))
    problems = [
        Problem("a", "Say 1."),
        Problem("b", ({"role": "system", "content": "S"}, {"role": "user", "content": "Say 2."})),
    ]
    groups = [Group(one, (1,), (None,) * 2) for one in problems]  # type: ignore[arg-type]
    part = Distill(**options)
    teacher = Teacher(part, lambda problem: {"a": "one", "b": "two"}[problem.id], tokenizer, 60)
    return {row: tokenizer.decode(ids) for row, ids in teacher.prompts(groups, outcomes).items()}


def outcome(reward: float, correct: bool | None = False, **extra: object) -> RewardOutcome:
    return RewardOutcome(reward, {"r": reward}, correct=correct, extra=extra)


def test_groups_without_signal_that_are_not_solved_have_a_teacher(tiny: Path) -> None:
    failed, solved = [outcome(0.0)] * 2, [outcome(1.0, True)] * 2
    assert read(tiny, [failed, [outcome(0.0), outcome(1.0, True)]]) == dict.fromkeys(
        (0, 1), READ.format("one", "Say 1.")
    )
    assert read(tiny, [solved, failed]).keys() == {2, 3}
    assert READ.format("two", "Say 2.") in read(tiny, [solved, failed])[2]
    assert read(tiny, [solved, [outcome(math.nan, None), outcome(2.0, None)]]).keys() == {2, 3}  # one valid reward
    assert read(tiny, [solved, failed], distill_where="all").keys() == {0, 1, 2, 3}


# Runs


def nothing(completions: Any, **_: Any) -> list[float]:
    return [0.0] * len(completions)


def run(
    tiny: Path, folder: Path, name: str, task: Any = "word_problems", *, resume: bool = False, **changes: Any
) -> Path:
    config = small_config(folder, name, **{"steps": 2, "checkpoint": {"every": 1}, **changes})
    return Trainer(tiny, task, [WeightedReward("none", nothing)], config=config).train(resume=resume).directory


def test_a_run_learns_where_every_completion_fails(tiny: Path, tmp_path: Path) -> None:
    alone = run(tiny, tmp_path, "alone")
    both = run(tiny, tmp_path, "both", algorithm={"distill_coef": 0.1})
    assert [row["grad_norm"] for row in metrics(alone)] == [0, 0]
    for row in metrics(both):
        assert row["grad_norm"] > 0 < row["distill_kl"]
        assert row["distill_share"] == 1.0
        assert row["tokens/used"] == row["completion_tokens"]
        assert row["correct_without_work_share"] == 0.0
    assert "correct_without_work_share" not in metrics(alone)[0]
    assert replay(both, 2, load_config(RunConfig, [both / "config.yaml"], [])).is_identical


def changed_model(tiny: Path, folder: Path) -> Path:
    """The tiny model with a slightly larger head, beside its tokenizer."""
    shutil.copytree(tiny, folder)
    other_reference(own_model(tiny)).save_pretrained(folder)
    return folder


def test_the_recipe_for_a_teacher_alone_goes_after_another_and_needs_one() -> None:
    with pytest.raises(UserError, match="set distill_teacher to another one"):
        config_of(RunConfig, ["ladder", "distill"])
    config = config_of(RunConfig, ["ladder", "distill", "algorithm.distill_teacher=abacus"])
    assert (config.task.name, config.rollout.group_size, config.rollout.problems_per_step) == ("chains", 1, 128)
    assert config.algorithm.distill == Distill(1.0, "abacus", "prompt", "all")


def test_another_model_teaches_alone_where_nothing_is_compared(tiny: Path, tmp_path: Path) -> None:
    teacher = changed_model(tiny, tmp_path / "teacher")
    algorithm = {"distill_coef": 1.0, "distill_teacher": str(teacher), "kl_coef": 0}
    rollout = {"problems_per_step": 8, "group_size": 1, "max_tokens": 8}
    changes = {"algorithm": algorithm, "rollout": rollout, "learner": {"learning_rate": 3e-4, "warmup_steps": 0}}
    taught = run(tiny, tmp_path, "taught", ROWS, **changes | {"steps": 8})
    kls = [row["distill_kl"] for row in metrics(taught)]
    assert max(kls[-3:]) < 0.9 * kls[0]
    config = load_config(RunConfig, [taught / "config.yaml"], [])
    assert replay(taught, 5, config).is_identical
    shutil.rmtree(teacher)
    shutil.copytree(tiny, teacher)
    with pytest.raises(UserError, match=r"expected the teacher that the run started with .* restore the teacher"):
        run(tiny, tmp_path, "taught", ROWS, resume=True, **changes | {"steps": 9})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "distill_reads: expected a task with solutions, got none for problem"),
        ({"algorithm": {"distill_teacher": "abacus"}}, "model with the policy's tokenizer, got abacus"),
        ({"rollout": {"top_p": 0.9}}, "rollout.top_p: expected 1.0 with"),
        ({"distributed": {"shard": True}}, "distributed.shard: expected false"),
        ({"algorithm": {"distill_teacher": "reference"}, "model": {"reference": "cpu"}}, "reference: expected device"),
        (
            {"task": "guess_number", "model": {"chat_template": "tools"}},
            "distill: expected a task with one turn, got gues",
        ),
    ],
)
def test_what_a_teacher_cannot_do_is_refused(tiny: Path, tmp_path: Path, changes: Any, said: str) -> None:
    algorithm = {"distill_coef": 0.1, **changes.get("algorithm", {})}
    with pytest.raises(UserError, match=said):
        run(tiny, tmp_path, "refused", **{"task": ROWS, **changes, "algorithm": algorithm})


@pytest.mark.parametrize(
    ("base", "options", "said"),
    [
        ("ppo", {}, "distill_coef: expected another value with algorithm.baseline='critic'"),
        ("dr_grpo", {"distill_teacher": "reference"}, "distill_teacher: expected .* 'reference', which is not loaded"),
        ("dapo", {}, "distill_where: expected .*drop_equal=True, got 'no_signal'"),
        ("grpo_process", {}, "distill_where: expected .*credit='step', got 'no_signal'"),
        (
            "grpo",
            {"distill_reads": "prompt"},
            "distill_reads: expected another value with algorithm.distill_teacher='p",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(base: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        variant(base, distill_coef=0.1, **options)


def test_a_task_with_tools_is_refused(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="distill: expected a task with one turn, got guess_number"):
        run(tiny, tmp_path, "game", "guess_number", algorithm={"distill_coef": 0.1}, model={"chat_template": "tools"})
