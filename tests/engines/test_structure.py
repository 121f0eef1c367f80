"""Structured output: the tokens that a regular expression allows, against prefixes of matches in the package regex."""

import math
import pickle
import re
from itertools import product
from pathlib import Path

import pytest
import regex as other_matcher
import torch
from tokenizers import Tokenizer, decoders, models
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from engine_setting import Setting, setting_of
from grouprl import Trainer
from grouprl.config.run import EngineConfig, RolloutConfig, RunConfig, load_config
from grouprl.engines.structure import TokenAutomaton, Vocabulary, structure_of, token_bytes
from grouprl.forward.logprobs import Context, token_logprobs
from grouprl.learner import make_batch
from grouprl.record.read import read_rollouts, read_run
from grouprl.rollout.engine import structured_sampling
from grouprl.tools.proof.replay import replay
from grouprl.types import Completion, Sampling, StopReason, UserError
from learner_setting import learn, learner_of, loaded, sampled
from oracles import own_logits, slow_policy
from small_runs import LETTERS, ROWS, small_config

BYTES = tuple(bytes([byte]) for byte in range(128))
REGEX = r"(John|Mary) has [0-9]{1,2} (apple|pen)s?(, [a-z]+)*\."


def allowed(structure: TokenAutomaton, state: int) -> set[int]:
    return {*(structure.next_XV[state] >= 0).nonzero()[:, 0].tolist()}


# The table


@pytest.mark.parametrize("regex", ["(a|b)*abb", "a{2,3}(b|ca)*", "(ab|a)(c|bd)", "[ab]{2}c?|d", "a.b"])
def test_a_token_is_allowed_where_the_text_stays_the_start_of_a_match(regex: str):
    """All texts of four tokens; single letters are tokens, so that every start of a match can be ended."""
    tokens = (b"", b"a", b"b", b"c", b"d", b"ab", b"bb", b"abc", b"")
    structure = structure_of(regex, Vocabulary(tokens, (8,)))
    for length in range(4):
        for ids in product(range(1, 8), repeat=length):
            text, state = b"".join(tokens[one] for one in ids).decode(), 0
            if not other_matcher.fullmatch(regex, text, partial=True):
                continue
            for one in ids:
                state = int(structure.after(torch.tensor([state]), torch.tensor([one]))[0])
            expected = {
                token
                for token in range(1, 8)
                if other_matcher.fullmatch(regex, text + tokens[token].decode(), partial=True)
            }
            assert allowed(structure, state) == expected | ({8} if re.fullmatch(regex, text) else set())


def test_a_token_after_which_no_end_can_be_reached_is_not_allowed():
    """There is no "c": of "xab" and "xc" only "xab" can be written, and "yx" leads nowhere."""
    structure = structure_of("xab|xc|yxc|y", Vocabulary((b"x", b"ab", b"y", b"yx", b""), (4,)))
    assert allowed(structure, 0) == {0, 2}
    with pytest.raises(UserError, match="expected an expression that this model's tokens can match, got 'xc'"):
        structure_of("xc", Vocabulary((b"x", b"ab", b""), (2,)))


def test_a_table_that_is_too_large_is_refused():
    many = Vocabulary(tuple(b"%d" % number for number in range(200_000)), (0,))
    with pytest.raises(UserError, match="expected a table of at most 1024 MiB, got 3001 states of 200000 tokens"):
        structure_of("[0-9]{3000}", many)


def test_a_character_may_be_cut_by_tokens():
    structure = structure_of("(é|€)+", Vocabulary((b"\xc3", b"\xa9", b"\xe2\x82", b"\xac\xc3", b"\xac", b""), (5,)))
    assert allowed(structure, 0) == {0, 2}
    assert allowed(structure, int(structure.next_XV[0, 0])) == {1}
    assert allowed(structure, int(structure.next_XV[0, 2])) == {3, 4}


def test_another_process_builds_the_same_table():
    structure = structure_of("a|b+", Vocabulary(BYTES, (0,)))
    structure_of.cache_clear()
    again = pickle.loads(pickle.dumps(structure))
    assert again is not structure
    assert torch.equal(again.next_XV, structure.next_XV)
    assert len(pickle.dumps(structure)) < 2_000


def test_completions_of_another_expression_are_refused():
    structure = structure_of("ab*", Vocabulary(BYTES, (0,)))
    ids = torch.tensor([[97, 98, 98, 0], [97, 0, 5, 5], [97, 98, 99, 0]])
    mask = torch.tensor([[True] * 4, [True, True, False, False], [True] * 4])
    assert structure.before(ids[:2], mask[:2]).tolist()[1][2:] == [0, 0]
    with pytest.raises(UserError, match="got token 99 as token 3 of completion 2"):
        structure.before(ids, mask)


# What tokens write


def sentence_piece(decoder: decoders.Decoder) -> PreTrainedTokenizerFast:
    pieces = ["</s>", "▁the", "▁▁", "x", "<0xE2>", "<0x82>", "<0xAC>", "<0x0A>", "▁", "é"]
    core = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, [], byte_fallback=True))
    core.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>")


LLAMA_2 = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
GEMMA = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])


@pytest.mark.parametrize(("decoder", "strips"), [(LLAMA_2, True), (GEMMA, False)])
def test_the_bytes_of_sentence_piece_tokens_are_the_decoded_text(decoder: decoders.Decoder, strips: bool):
    tokenizer = sentence_piece(decoder)
    tokenizer.add_tokens(["<think>"])
    tokens, found = token_bytes(tokenizer, 13)
    assert (found, tokens[0], tokens[11:]) == (strips, b"", (b"", b""))
    for ids in ([1, 3, 1], [4, 5, 6, 3], [2, 3, 8, 9], [3, 7, 10, 1], [8, 1]):
        text = b"".join(tokens[one] for one in ids).decode()
        assert tokenizer.decode(ids) == (text.removeprefix(" ") if strips else text)


def test_a_space_that_is_not_part_of_the_text_may_stand_before_it():
    """Llama 2 writes "▁the" for "the" at the start of a text; a second space is part of it."""
    tokenizer = sentence_piece(LLAMA_2)
    tokens, strips = token_bytes(tokenizer, len(tokenizer))
    for regex, expected in (("the x", {1}), (" the", {8}), ("x( the)?", {3, 8})):
        assert allowed(structure_of(regex, Vocabulary(tokens, (0,), strips)), 0) == expected
    assert re.fullmatch("x( the)?", tokenizer.decode([8, 3, 1]))


def test_the_bytes_of_byte_level_tokens_are_the_decoded_text(tiny: Path):
    setting = setting_of(tiny)
    tokens, strips = token_bytes(setting.tokenizer, 400)
    text = "John has 15 €, é and 😀!\n\tHow many?"
    ids = setting.tokenizer(text)["input_ids"]
    assert (b"".join(tokens[one] for one in ids).decode(), strips) == (text, False)
    assert all(tokens[one] == b"" for one in setting.tokenizer.all_special_ids)


def test_other_tokenizers_are_refused():
    core = Tokenizer(models.WordPiece({"</s>": 0, "the": 1}, unk_token="</s>"))
    core.decoder = decoders.WordPiece()
    with pytest.raises(
        UserError, match=r"expected a byte-level or SentencePiece tokenizer, got the decoder .*WordPiece"
    ):
        token_bytes(PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>"), 2)


# Sampler and learner


@pytest.fixture(scope="module")
def setting(tiny: Path) -> Setting:
    made = setting_of(tiny)
    made.model.generation_config.eos_token_id = made.tokenizer.eos_token_id
    return made


def structured(setting: Setting, regex: str = REGEX, **fields: float) -> Sampling:
    rollout = RolloutConfig(regex=regex, **{"max_tokens": 40, **fields})
    return structured_sampling(rollout.sampling, rollout.regex, setting.model, setting.tokenizer)


def drawn(setting: Setting, sampling: Sampling) -> list[Completion]:
    groups = setting.engine(8).generate(setting.requests(), sampling)
    return [completion for group in groups for completion in group.completions]


def test_completions_match(setting: Setting):
    found = drawn(setting, structured(setting))
    ended = [one for one in found if one.stop_reason is StopReason.END]
    assert len(ended) > 5
    assert all(re.fullmatch(REGEX, one.text) for one in ended)
    assert len({one.text for one in ended}) > 5
    cut = [one for one in drawn(setting, structured(setting, max_tokens=5)) if one.stop_reason is StopReason.LENGTH]
    assert cut
    assert all(other_matcher.fullmatch(REGEX, one.text, partial=True) for one in cut)


@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 0.7, "top_p": 0.9}, {"regex": REGEX, "repetition_penalty": 1.4}]
)
@torch.no_grad()
def test_log_probs_are_those_of_the_policy_over_the_allowed_tokens(setting: Setting, fields: dict):
    """A full forward for each completion; tokens are allowed where they keep the text the start of a match."""
    rollout = RolloutConfig(**{"max_tokens": 12, "regex": REGEX, **fields})
    sampling = structured_sampling(rollout.sampling, rollout.regex, setting.model, setting.tokenizer)
    tokens, _ = token_bytes(setting.tokenizer, len(setting.tokenizer))
    end = setting.tokenizer.eos_token_id
    for group in setting.engine(3).generate(setting.requests()[1:3], sampling):
        for completion in group.completions:
            rows = own_logits(setting.own, group.prompt_ids, completion.token_ids).tolist()
            expected, text = [], b""
            for place, (row, token) in enumerate(zip(rows, completion.token_ids, strict=True)):
                kept = {one for one, piece in enumerate(tokens) if piece and starts(text + piece)}
                kept |= {end} if re.fullmatch(REGEX, text.decode()) else set()
                before = (*group.prompt_ids, *completion.token_ids[:place])
                # -1e9 in place of -inf, which plain Python cannot subtract; no penalty reaches it.
                row = [value if one in kept else -1e9 for one, value in enumerate(row)]
                expected.append(math.log(slow_policy(row, sampling, before=before)[token]))
                text += tokens[token]
            assert completion.logprobs == pytest.approx(expected, abs=1e-5)


def starts(text: bytes) -> bool:
    try:
        return other_matcher.fullmatch(REGEX, text.decode(), partial=True) is not None
    except UnicodeDecodeError:
        return False  # every match is ASCII


def test_the_learner_finds_the_log_probs_of_the_sampler(tiny: Path, setting: Setting):
    sampling = structured(setting, temperature=0.8, max_tokens=12)
    batch = make_batch(sampled(tiny, sampling), sampling)
    assert batch.old_logprobs_NT[batch.mask_NT].min() < -0.5
    for budget in (1, 10**6):
        figures = learn(learner_of(loaded(tiny), micro_batch_tokens=budget), batch)
        assert figures["sampler_learner_gap"] < 1e-5
        assert figures["ratio_max"] == pytest.approx(1, abs=2e-5)


def test_the_gradient_by_finite_differences():
    """Of log-probs and entropies over the allowed tokens, in three chunks."""
    structure = structure_of("(ab|ba)+c?", Vocabulary((b"a", b"b", b"c", b"ab", b""), (4,)))
    states_S = torch.tensor([0, *structure.next_XV[0, [0, 1, 3]].tolist(), 0, 0])
    targets_S = torch.tensor([0, 1, 0, 4, 3, 1])
    head = nn.Linear(3, 5, bias=False).double()
    generator = torch.Generator().manual_seed(5)
    head.weight.data = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    hidden_SH = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    context = Context(torch.zeros(1, 2, dtype=torch.long), torch.zeros(6, dtype=torch.long), torch.ones(6), states_S)
    weights = torch.linspace(-1, 2, 6, dtype=torch.float64)

    def total(hidden: Tensor) -> float:
        value = 0.0
        for place, row in enumerate((hidden @ head.weight.T).tolist()):
            kept = sorted(allowed(structure, int(states_S[place])))
            norm = sum(math.exp(row[token]) for token in kept)
            shares = [math.exp(row[token]) / norm for token in kept]
            entropy = -sum(share * math.log(share) for share in shares)
            value += float(weights[place]) * (row[int(targets_S[place])] - math.log(norm)) + 0.3 * entropy
        return value

    leaf = hidden_SH.clone().requires_grad_()
    logprobs, entropies = token_logprobs(
        head,
        leaf,
        targets_S,
        Sampling(structure=structure),
        entropy_gradient=True,
        context=context,
        chunk_elements=16 * 5,
    )
    objective = (logprobs * weights).sum() + 0.3 * entropies.sum()
    assert float(objective.detach()) == pytest.approx(total(hidden_SH), abs=1e-5)
    gradient = torch.autograd.grad(objective, leaf)[0]
    step = torch.zeros_like(hidden_SH)
    for place in range(6):
        for column in range(3):
            step.zero_()[place, column] = 1e-5
            slope = (total(hidden_SH + step) - total(hidden_SH - step)) / 2e-5
            assert float(gradient[place, column]) == pytest.approx(slope, abs=1e-4)


# Runs


def test_a_run_learns_and_replays_under_an_expression(tiny: Path, tmp_path: Path):
    regex = "[a-z]{0,2}[0-9]{1,3}( [0-9])?"  # of at most 7 tokens and an end
    rollout = RolloutConfig(problems_per_step=2, group_size=4, max_tokens=8, regex=regex)
    config = small_config(tmp_path, steps=3, rollout=rollout)
    run = Trainer(tiny, ROWS, [LETTERS], config=config).train().directory
    recorded = [one for step in (1, 2, 3) for one in read_rollouts(run, step)]
    completions = [completion for one in recorded for completion in one.group.completions]
    assert len(completions) == 24
    assert all(re.fullmatch(regex, one.text) and one.stop_reason is StopReason.END for one in completions)
    shown = [one.completion for rows in read_run(run).examples.values() for one in rows]
    assert shown
    assert all(re.fullmatch(regex, text) for text in shown)
    assert max(read_run(run).column("sampler_learner_gap")[1]) < 1e-5
    assert replay(run, 3, load_config(RunConfig, [run / "config.yaml"], ())).is_identical


def test_vllm_has_no_expression():
    with pytest.raises(UserError, match=r"rollout.regex: expected rollout.engine.name=native with it, got vllm"):
        RolloutConfig(regex="a", engine=EngineConfig(name="vllm"))
