"""The lab's tokens: numbers worked by hand, the clip against its gradient, and texts in which no byte is lost."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from grouprl.algorithms.losses import TokenGrid
from grouprl.algorithms.spec import Algorithm
from grouprl.lab.report.tokens import clipped_sides, find_tokenizer, one_completion, token_texts
from grouprl.lab.report.write import run_answers
from grouprl.lab.server import create_app
from grouprl.record.branches import Branch, BranchedCompletion, BranchedToken, write_branches
from grouprl.record.write import RunRecord
from grouprl.types import (
    Completion,
    Group,
    Problem,
    RewardOutcome,
    StepRecord,
    StepReward,
    StopReason,
    TokenTrace,
    UserError,
)
from lab_runs import CONFIG, Made, algorithm_config, make_run
from variants import variant

ABACUS = Path(__file__).parents[2] / "src" / "grouprl" / "models" / "assets" / "abacus" / "tokenizer.json"
LN2 = math.log(2)


def make_completion(
    folder: Path, sampler: Sequence[float], advantages: Sequence[float], trace: TokenTrace, config: str = CONFIG
) -> Path:
    """A run of one completion."""
    ids = tuple(range(10, 10 + len(sampler)))
    one = Completion(0, ids, tuple(sampler), tuple(sampler), "text", StopReason.END, 5)
    outcome = RewardOutcome(1.0, {"exact": 1.0}, steps=(StepReward(1, 0.5),), correct=True)
    group = Group(Problem("p", "p"), (1,), (one,))
    with RunRecord.create(folder, config) as record:
        record.step(StepRecord(1, {}, [group], [[outcome]], [[list(advantages)]], [[trace]]))
    return folder


def asked(run: Path) -> dict[str, Any]:
    return one_completion(run, 1, 0, 0, root=run.parent)


def test_numbers_worked_by_hand(tmp_path: Path) -> None:
    """Of three tokens: the sampler gave 1/2 to each, the learner 1/2, 1, 1/4, and after the update 1/4, 1/2, 1/2."""
    trace = TokenTrace(
        logprobs=(-LN2, 0.0, -2 * LN2),
        entropies=(0.5, 0.25, 0.125),
        reference=(-2 * LN2, 0.0, -LN2),
        updated=(-2 * LN2, -LN2, -LN2),
    )
    found = asked(make_completion(tmp_path / "run", [-LN2] * 3, [1.0, 1.0, -1.0], trace))
    assert found["probabilities"] == pytest.approx([0.5, 0.5, 0.5])
    assert found["ratios"] == pytest.approx([1.0, 2.0, 0.5])
    assert found["sequence_ratio"] == pytest.approx(1.0)
    # 2 is above 1.2 with an advantage above 0, 1/2 below 0.8 with one below 0.
    assert found["clipped"] == [None, "high", "low"]
    # r - 1 - ln r with r = 1/2, 1 and 2.
    assert found["kl"] == pytest.approx([-0.5 + LN2, 0.0, 1 - LN2], abs=1e-6)
    assert found["changes"] == pytest.approx([-0.25, -0.5, 0.25])
    assert (found["advantages"], found["entropies"]) == ([1.0, 1.0, -1.0], [0.5, 0.25, 0.125])
    assert found["reference_logprobs"] == pytest.approx(trace.reference)
    assert found["updated_logprobs"] == pytest.approx(trace.updated)
    assert (found["step_rewards"], found["correct"], found["weights_version"]) == ([[1, 0.5]], True, 5)
    assert (found["objective"]["clip_high"], found["objective"]["kl"]) == (0.2, "k3")


def test_the_kl_is_the_runs_estimate_and_a_probability_of_zero_is_strict_json(tmp_path: Path) -> None:
    trace = TokenTrace(logprobs=(-LN2, -math.inf), reference=(-2 * LN2, -LN2))
    make_completion(tmp_path / "run", [-LN2] * 2, [1.0, 1.0], trace, algorithm_config(kl="k2"))
    found = TestClient(create_app(tmp_path)).get("/api/runs/run/completions/1/0/0").json()
    assert found["kl"] == [pytest.approx(LN2**2 / 2), None]
    assert (found["learner_logprobs"][1], found["ratios"]) == (None, [1.0, 0.0])


def test_what_was_not_recorded_is_null(tmp_path: Path) -> None:
    found = asked(make_completion(tmp_path / "run", [-LN2] * 2, [0.5, 0.5], TokenTrace()))
    assert found["advantages"] == [0.5, 0.5]
    of_the_learner = ("learner_logprobs", "entropies", "ratios", "sequence_ratio", "clipped")
    for name in (*of_the_learner, "reference_logprobs", "kl", "updated_logprobs", "changes"):
        assert found[name] is None
    partly = asked(make_completion(tmp_path / "partly", [-LN2], [0.5], TokenTrace(logprobs=(-LN2,))))
    assert (partly["ratios"], partly["kl"], partly["changes"]) == ([1.0], None, None)


def test_a_sequence_has_one_ratio(tmp_path: Path) -> None:
    """Ratios of 4 and 1 have the geometric mean 2: both tokens are clipped, though one is where it was."""
    trace = TokenTrace(logprobs=(-LN2, -LN2))
    config = algorithm_config(ratio="sequence", kl_coef=0.0)
    found = asked(make_completion(tmp_path / "run", [-3 * LN2, -LN2], [1.0, 1.0], trace, config))
    assert found["ratios"] == pytest.approx([4.0, 1.0])
    assert (found["sequence_ratio"], found["clipped"]) == (pytest.approx(2.0), ["high", "high"])


@pytest.mark.parametrize(
    "algorithm",
    [
        Algorithm(),
        variant(clip_low=0.1, clip_high=0.5),
        variant(dual_clip=3.0),
        variant(surrogate="plain"),
        variant(surrogate="cispo", clip_low=0.5),
        variant(surrogate="sapo"),
        variant(surrogate="gmpo"),
    ],
)
def test_clipped_is_where_the_objective_has_no_gradient(algorithm: Algorithm) -> None:
    ratios_T = torch.tensor([0.05, 0.45, 0.85, 0.95, 1.0, 1.1, 1.3, 1.7, 2.9, 3.5, 20.0], dtype=torch.float64)
    for advantage in (2.0, -2.0, 0.0):
        advantages_T = torch.full_like(ratios_T, advantage)
        logprobs_1T = ratios_T.log()[None].requires_grad_()
        old_1T, weights_1T = torch.zeros_like(logprobs_1T), torch.ones_like(logprobs_1T)
        tokens = TokenGrid(logprobs_1T, old_1T, advantages_T[None], weights_1T, weights_1T > 0)
        loss, _ = algorithm.objective.loss(tokens)
        (gradient_1T,) = torch.autograd.grad(loss, logprobs_1T)
        cut = (gradient_1T[0] == 0).tolist() if advantage else [False] * len(ratios_T)
        assert [side is not None for side in clipped_sides(ratios_T, advantages_T, algorithm)] == cut


def test_the_sides_have_names() -> None:
    ratios_T, advantages_T = torch.tensor([2.0, 0.5, 4.0, 2.0, 0.5]), torch.tensor([1.0, -1.0, -1.0, -1.0, 1.0])
    sides = clipped_sides(ratios_T, advantages_T, variant(dual_clip=3.0))
    assert sides == ["high", "low", "dual", None, None]


def texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[tuple[str | None, bool]]:
    found = token_texts(tokenizer, ids)
    assert [token["id"] for token in found] == list(ids)
    return [(token["text"], token["half"]) for token in found]


def test_texts_of_tokens_add_up(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(ABACUS))
    text = "I guess 34.\n  \\boxed{34}"
    ids = tokenizer.encode(text).ids
    found = texts(tokenizer, ids)
    assert len(found) > 5
    assert "".join(str(piece) for piece, _ in found) == text
    assert not any(half for _, half in found)
    assert texts(tokenizer, [1, 9999]) == [("<|end|>", False), (None, False)]


def test_half_a_character_is_shown_as_its_bytes() -> None:
    """U+20AC is e2 82 ac in UTF-8, which the bundled tokenizer writes as three tokens of a byte each."""
    tokenizer = Tokenizer.from_file(str(ABACUS))
    assert texts(tokenizer, tokenizer.encode("€").ids) == [("\\xe2", True), ("\\x82", True), ("\\xac", True)]
    # Whole characters beside a half one, and a character of two bytes in one token.
    alphabet = {piece: number for number, piece in enumerate(["aâĤ", "Ã©", "ï¿½", "é"])}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    expected = [("a\\xe2\\x82", True), ("é", False), ("\ufffd", False), ("\\xe9", True)]
    assert texts(tokenizer, [0, 1, 2, 3]) == expected


def test_every_byte_has_its_sign() -> None:
    """The second bytes of U+0080 to U+00FF are 80 to bf; the library writes each with a sign of its own."""
    library = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    signs = [library.pre_tokenize_str(chr(code))[0][0][1] for code in range(0x80, 0xC0)]
    tokenizer = Tokenizer(models.BPE(vocab={sign: number for number, sign in enumerate(signs)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    assert texts(tokenizer, range(64)) == [(f"\\x{byte:02x}", True) for byte in range(0x80, 0xC0)]


def test_pieces_of_sentencepiece_keep_their_spaces_and_bytes() -> None:
    vocabulary = {piece: number for number, piece in enumerate(["▁the", "▁▁", "x", "<0xE2>", "<0x0A>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    expected = [(" the", False), ("  ", False), ("x", False), ("\\xe2", True), ("\n", False)]
    assert texts(tokenizer, range(5)) == expected


def put_tokenizer(folder: Path, piece: str) -> Path:
    """A tokenizer of one piece."""
    folder.mkdir(parents=True)
    Tokenizer(models.BPE(vocab={piece: 0}, merges=[])).save(str(folder / "tokenizer.json"))
    return folder


def found_in(run: Path, config: Mapping[str, Any], root: Path) -> tuple[str, str] | None:
    found = find_tokenizer(run, config, root)
    return None if found is None else (found[0], found[1].id_to_token(0))


def test_the_newest_checkpoint_has_the_tokenizer(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name, piece in (("step-999999", "old"), ("step-1000000", "new"), ("step-9000000.tmp", "half")):
        put_tokenizer(run / "checkpoints" / name, piece)
    (run / "checkpoints" / "step-2000000").mkdir()
    assert found_in(run, {"model": {"path": "abacus"}}, tmp_path) == ("checkpoints/step-1000000", "new")


def test_without_a_checkpoint_only_models_of_the_lab_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, run = tmp_path / "runs", tmp_path / "runs" / "run"
    outside, inside = put_tokenizer(tmp_path / "model", "outside"), put_tokenizer(root / "models" / "one", "inside")
    monkeypatch.chdir(root)
    for path, expected in (
        ("abacus", ("abacus", "<|pad|>")),
        (str(inside), (str(inside), "inside")),
        ("models/one", ("models/one", "inside")),
        (str(outside), None),
        ("../model", None),
        ("../assets/abacus", None),
        ("", None),
    ):
        assert found_in(run, {"model": {"path": path}}, root) == expected
    assert found_in(run, {}, root) is None
    # A link in a checkpoint does not lead out either.
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "step-000001").symlink_to(outside)
    assert found_in(run, {"model": {"path": str(outside)}}, root) is None
    (run / "checkpoints" / "step-000002").mkdir()
    (run / "checkpoints" / "step-000002" / "tokenizer.json").symlink_to(outside / "tokenizer.json")
    assert found_in(run, {"model": {"path": str(inside)}}, root) == (str(inside), "inside")


def test_without_a_tokenizer_there_are_ids(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [Made((1.0,))])
    found = asked(run)
    assert found["tokenizer"] is None
    assert found["tokens"] == [{"id": 7, "text": None, "half": False}, {"id": 8, "text": None, "half": False}]
    checkpoint = run / "checkpoints" / "step-000001"
    checkpoint.mkdir(parents=True)
    shutil.copy(ABACUS, checkpoint)
    pieces = json.loads(ABACUS.read_text())["model"]["vocab"]
    by_id = {number: piece for piece, number in pieces.items()}
    assert [token["text"] for token in asked(run)["tokens"]] == [by_id[7], by_id[8]]
    assert asked(run)["tokenizer"] == "checkpoints/step-000001"
    with closing(sqlite3.connect(run / "rollouts.sqlite")) as database, database:
        database.execute("UPDATE completions SET token_ids = ?", (b"\xff\xff\xff\xff\x07\x00\x00\x00",))
    assert [(token["id"], token["text"]) for token in asked(run)["tokens"]] == [(-1, None), (7, by_id[7])]
    (checkpoint / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer.json: expected JSON"):
        asked(run)


def make_jump(folder: Path, kls: Sequence[float]) -> Path:
    """A run of these KLs. In its step 9 the reference is 2, 4 and 1 times as sure of three of the four tokens."""
    policy = (-2.0, -3.0)
    with RunRecord.create(folder, CONFIG) as record:
        for step, kl in enumerate(kls, start=1):
            rows = ((0.0, LN2), (math.log(4), 0.0)) if step == 9 else ((0.0, 0.0), (0.0, 0.1))
            completions = tuple(
                Completion(index, (7, 8), policy, policy, "text", StopReason.END, step) for index in range(2)
            )
            traces = [TokenTrace(policy, reference=(policy[0] + first, policy[1] + second)) for first, second in rows]
            outcomes = [RewardOutcome(reward, {"exact": reward}) for reward in (1.0, 0.0)]
            group, advantages = Group(Problem(f"p{step}", "p"), (1,), completions), [[1.0, 1.0], [0.0, 0.0]]
            record.step(StepRecord(step, {"kl": kl}, [group], [outcomes], [advantages], [traces]))
    return folder


# k3 of a reference that is 2 and 4 times as sure: 2 - log 2 - 1 and 4 - log 4 - 1.
K3 = (1 - LN2, 3 - 2 * LN2)
SHARE = K3[1] / sum(K3)


@pytest.mark.parametrize(
    ("kls", "expected"),
    [
        pytest.param([0.02] * 8 + [0.48] + [0.02] * 4, [(9, 0.02)], id="one"),
        pytest.param([0.125] * 8 + [0.5] + [0.125] * 4, [(9, 0.125)], id="exactly 4 times"),
        pytest.param([0.125] * 8 + [0.499] + [0.125] * 4, [], id="less than 4 times"),
        # The ten neighbors are steps 4 to 8 and 10 to 14: their median is that of five 0.1 and five 0.3.
        pytest.param([0.0] * 3 + [0.1] * 5 + [0.8] + [0.3] * 5 + [9.0] * 9, [(9, 0.2)], id="median of neighbors"),
        pytest.param([0.0] * 8 + [1e-9] + [0.0] * 4, [], id="rounding"),
        pytest.param([0.02] * 8 + [0.5], [(9, 0.02)], id="the last step, with eight others"),
        pytest.param([0.01, 0.5, 0.01], [], id="too few steps to say what is usual"),
    ],
)
def test_a_step_whose_kl_jumps(tmp_path: Path, kls: list[float], expected: list[tuple[int, float]]) -> None:
    run = make_jump(tmp_path / "run", kls)
    found = TestClient(create_app(tmp_path)).get("/api/runs/run/jumps").json()["jumps"]
    assert [(one["step"], one["usual"]) for one in found if one["step"] < 15] == [
        (step, pytest.approx(usual)) for step, usual in expected
    ]
    for one in found:
        if one["step"] == 9:
            assert (one["kl"], one["token"]) == (
                kls[8],
                {"group": 0, "completion": 1, "token": 0, "share": pytest.approx(SHARE)},
            )
    assert run_answers(run, "run")["runs/run/jumps"]["jumps"] == found


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_page_colors_effects_and_shows_branches_as_text(shared_lab: Any, browser: Any, page: Any) -> None:
    run, hostile = shared_lab.root / "branched", "<img src=x onerror=alert(1)>"
    make_run(run, [Made((1.0, 0.0))])
    branches = (
        Branch(9, "a", 0.25, 0.5, True, 2, "end", "a \\boxed{7}"),
        Branch(10, "b", 0.25, 0.0, False, 2, "end", hostile),
    )
    tokens = (BranchedToken(1, 8, "c", 0.5, 1.04, branches),)
    write_branches(run, BranchedCompletion(1, 0, 0, "train-1", (7, 8), 1.0, tokens, 5, 12))
    browser.go(f"/runs/{run.name}/groups/1/0")
    page.get_by_role("button", name="Tokens").first.click()
    page.get_by_role("button", name="Effect on the reward").click()
    looks = [box.get_attribute("class").split() for box in page.locator(".token").all()]
    assert ["minus" in look for look in looks] == [False, True]
    page.locator(".token").nth(1).hover()
    said = page.locator(".branches").inner_text()
    for words in ("effect \u22120.75", "\u22120.5 25% a \\boxed{7}", f"\u22121 25% {hostile}"):
        assert words in " ".join(said.split()), said
    page.locator(".token").nth(0).hover()
    assert page.locator(".branches").count() == 0
    page.get_by_role("button", name="Tokens").nth(1).click()
    page.get_by_role("button", name="Effect on the reward").click(force=True)  # it says why it colors nothing
    remedy = f"grouprl replay runs/{run.name} 1 --branch --problem 'train-1' --completion 1"
    page.get_by_text(remedy).wait_for()
