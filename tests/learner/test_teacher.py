"""Which rows a teacher teaches, where it reads the solution, and the share of the tokens that it reaches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from grouprl.algorithms.advantages import Credit
from grouprl.algorithms.distillation import Distill
from grouprl.learner import make_batch
from grouprl.learner.batch import PolicyEvaluation, UpdateInputs
from grouprl.models.load import load_tokenizer
from grouprl.terms.distill import DistillTerm, Teacher, is_unsolved, make_teacher
from grouprl.types import Group, Problem, RewardOutcome, Sampling, StopReason
from learner_setting import learn, learner_of, loaded, sampled
from small_runs import small_config
from tiny import tiny_model_folder
from variants import variant

WARM = Sampling(max_tokens=12, temperature=0.7)


def outcome(reward: float, correct: bool | None = False) -> RewardOutcome:
    return RewardOutcome(reward, {"r": reward}, correct=correct)


def read(tiny: Path, groups: list[Group], outcomes: list[list[RewardOutcome]]) -> dict[int, str]:
    tokenizer = load_tokenizer(str(tiny))
    teacher = Teacher(Distill(), lambda problem: f"{problem.id}1", tokenizer, 400)
    return {row: tokenizer.decode(ids) for row, ids in teacher.prompts(groups, outcomes).items()}


def test_rows_are_counted_over_groups_of_any_size(tiny: Path) -> None:
    """Groups of 1, 3 and 2 completions: the rows of the second are 1 to 3, of the third 4 and 5."""
    groups = [Group(Problem(str(n), "Say it."), (1,), (None,) * size) for n, size in ((2, 1), (3, 3), (4, 2))]  # type: ignore[arg-type]
    solved, failed = outcome(1.0, True), outcome(0.0)
    taught = read(tiny, groups, [[solved], [failed] * 3, [failed] * 2])
    assert list(taught) == [1, 2, 3, 4, 5]
    assert ["31" in taught[row] for row in taught] == [True, True, True, False, False]
    assert ["41" in taught[row] for row in taught] == [False, False, False, True, True]
    assert list(read(tiny, groups, [[failed], [solved] * 3, [failed] * 2])) == [0, 4, 5]


def test_the_solution_stands_in_the_last_message_of_the_user(tiny: Path) -> None:
    said = [("user", "Say 2."), ("assistant", "Say 3."), ("user", "Say 4."), ("assistant", "Say 5.")]
    chat = tuple({"role": role, "content": text} for role, text in said)
    (text,) = read(tiny, [Group(Problem("9", chat), (1,), (None,))], [[outcome(0.0)]]).values()  # type: ignore[arg-type]
    assert text.index("Say 3.") < text.index("91") < text.index("Say 5.")


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([outcome(1.0, True), outcome(1.0, True)], False),
        ([outcome(1.0, True), outcome(1.0, False)], True),  # equal rewards, and one is wrong
        ([outcome(1.0, True), outcome(1.0, None)], True),  # or not known to be right
        ([outcome(0.0), outcome(1.0, True)], False),
    ],
)
def test_a_group_is_solved_if_every_completion_is_correct(outcomes: list[RewardOutcome], expected: bool) -> None:
    assert is_unsolved(outcomes) is expected


def test_the_share_of_a_teacher_is_of_trained_tokens(tiny: Path) -> None:
    """Truncated completions are not trained: their tokens are in neither side of the share."""
    groups = sampled(tiny, WARM)
    completions = [one for group in groups for one in group.completions]
    trained = [0 if one.stop_reason is StopReason.LENGTH else len(one) for one in completions]
    taught = [row for row in range(len(completions)) if row % 3 != 1]
    assert any(trained[row] == 0 for row in taught)
    ids = tuple(load_tokenizer(str(tiny))("Say it.")["input_ids"])
    batch = make_batch(groups, WARM, mask_overlong=True, teacher_prompts=dict.fromkeys(taught, ids))
    learner = learner_of(loaded(tiny), variant(kl_coef=0.0, distill_coef=1.0, distill_where="all"))
    share = learn(learner, batch, torch.zeros(len(completions)))["distill_share"]
    assert share == pytest.approx(sum(trained[row] for row in taught) / sum(trained))


def test_a_prompt_leaves_room_for_a_completion_in_both_models(tiny: Path, tmp_path: Path) -> None:
    """Contexts of 256 and 128 tokens, completions of 24."""
    small = tiny_model_folder(tmp_path, context=128)
    for policy, teacher, longest in ((tiny, None, 232), (tiny, small, 104), (small, tiny, 104)):
        algorithm = {"distill_coef": 1.0} | ({} if teacher is None else {"distill_teacher": str(teacher)})
        changes = {"algorithm": algorithm, "model": {"path": str(policy)}, "rollout": {"max_tokens": 24}}
        config = small_config(tmp_path, **changes)
        assert make_teacher(config, None, load_tokenizer(str(policy)), loaded(policy)).longest == longest


def test_the_rows_with_a_teacher_and_a_weight_are_moved(tiny: Path) -> None:
    batch = make_batch(sampled(tiny, WARM), WARM, teacher_prompts={1: (5,), 2: (5,)})
    algorithm = variant(kl_coef=0.0, distill_coef=1.0, distill_where="all")
    (term,) = [term for term in learner_of(loaded(tiny), algorithm).terms if isinstance(term, DistillTerm)]
    zeros_NT = torch.zeros(batch.mask_NT.shape)
    inputs, _ = UpdateInputs.of(batch, Credit(zeros_NT), PolicyEvaluation(), algorithm)
    weights_NT = batch.mask_NT.float()
    weights_NT[2] = 0
    assert term.moves(inputs, range(len(weights_NT)), weights_NT).nonzero().tolist() == [[1]]
