"""What reward functions print is bounded for each call, and a file that hangs while it is loaded is named."""

from pathlib import Path

import pytest

from grouprl.config.run import ScoringConfig
from grouprl.rewards.calls import RewardCall, gather
from grouprl.rewards.workers import processes
from grouprl.rewards.workers.pool import RewardPool
from grouprl.rewards.workers.zygote import MOST
from grouprl.types import UserError

LOUD = """
import os, subprocess, sys

def loud(completions, **columns):
    print("first line of " + completions[0])
    sys.stdout.flush()
    for _ in range(300):
        os.write(1, b"x" * 100_000)  # 30 MB
    subprocess.run(["sh", "-c", "yes | head -c 1000000"], check=True)
    return [1.0]

def quiet(completions, **columns):
    print("a word about " + completions[0])
    return [2.0]
"""
ONE = ScoringConfig(workers=1)


def test_the_first_bytes_of_each_call_are_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "loud.py"
    file.write_text(LOUD)
    with RewardPool({name: (str(file), name, {}) for name in ("loud", "quiet")}, ONE) as rewards:
        for name, value in (("loud", 1.0), ("quiet", 2.0), ("loud", 1.0), ("quiet", 2.0)):
            assert gather(rewards.submit(RewardCall(name, {"completions": [name]}))).values == [value]
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("first line of loud") == err.count("a word about quiet") == 2
    assert 2 * MOST <= len(err) <= 2 * MOST + 300
    assert err.count("printed over 16384 bytes in a call") == 1


@pytest.mark.slow
def test_a_file_that_hangs_while_it_is_loaded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_LOADING_SECONDS", 2.0)
    fine, hangs = tmp_path / "fine.py", tmp_path / "hangs.py"
    fine.write_text("def good(completions, **columns):\n    return [1.0]\n")
    hangs.write_text("while True:\n    pass\n")
    with (
        RewardPool({"good": (str(fine), "good", {}), "bad": (str(hangs), "bad", {})}, ONE) as rewards,
        pytest.raises(UserError, match=rf"reward bad of {hangs}: expected to be loaded within 2 s"),
    ):
        rewards.signatures()
