"""Why a completion ended, where two reasons meet at one token; with compiled bookkeeping and with torch's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine_setting import ENDS, Setting, all_of, setting_of
from grouprl.kernels.build import library
from grouprl.rollout import rows
from grouprl.rollout.rows import Rows
from grouprl.types import Completion, Sampling, StopReason


@pytest.fixture(scope="module")
def setting(tiny: Path) -> Setting:
    return setting_of(tiny)


@pytest.fixture(params=["compiled", "torch"], autouse=True)
def bookkeeping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch":
        monkeypatch.setattr(rows, "kernels", lambda: None)
    elif library() is None:
        pytest.skip("no C compiler")


def ended(setting: Setting) -> Completion:
    """A free completion that ended by an end token after others, whose text no earlier token has."""
    free = all_of(setting.engine().generate(setting.requests(), Sampling(max_tokens=24)))
    words = {id(c): setting.tokenizer.decode([c.token_ids[-1]]) for c in free}
    return next(
        c
        for c in free
        if c.stop_reason is StopReason.END and len(c) > 2 and words[id(c)] and c.text.count(words[id(c)]) == 1
    )


def again(setting: Setting, chosen: Completion, sampling: Sampling) -> Completion:
    found = all_of(setting.engine().generate(setting.requests(), sampling))
    return next(c for c in found if c.token_ids[: len(chosen)] == chosen.token_ids)


def test_an_end_token_that_is_a_stop_text_too_is_an_end(setting: Setting) -> None:
    chosen = ended(setting)
    stop = setting.tokenizer.decode([chosen.token_ids[-1]])
    got = again(setting, chosen, Sampling(max_tokens=24, stop=(stop,)))
    assert (got.stop_reason, got.token_ids) == (StopReason.END, chosen.token_ids)


def test_an_end_token_in_the_last_place_is_an_end(setting: Setting) -> None:
    chosen = ended(setting)
    got = again(setting, chosen, Sampling(max_tokens=len(chosen)))
    assert (got.stop_reason, got.token_ids) == (StopReason.END, chosen.token_ids)


def test_a_stop_text_in_the_last_place_is_a_stop(setting: Setting) -> None:
    chosen = ended(setting)
    text = setting.tokenizer.decode([chosen.token_ids[-2]])
    cut = len(chosen) - 1
    found = all_of(setting.engine().generate(setting.requests(), Sampling(max_tokens=cut, stop=(text,))))
    met = [c for c in found if len(c) == cut and text in c.text and c.token_ids[-1] not in ENDS]
    assert met
    assert {c.stop_reason for c in met} == {StopReason.STOP_STRING}


@pytest.mark.parametrize(("token", "expected"), [(1, StopReason.END), (2, StopReason.LENGTH)])
def test_the_last_place_of_a_row(token: int, expected: StopReason) -> None:
    """One row of one token: the draw has probability 1 for `token`, and token 1 is an end token."""
    table = Rows(1, Sampling(max_tokens=1), [1], torch.device("cpu"))
    table.add([(7, 0, 1, 0)])
    logits = torch.full((1, 4), -1e4)
    logits[0, token] = 0.0
    assert table.draw(logits) == {0: expected}
