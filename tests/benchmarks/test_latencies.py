"""`benchmarks/conversations.py` runs, and a barrier makes no episode shorter."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


def test_episodes_with_and_without_a_barrier(capsys: pytest.CaptureFixture[str]):
    import conversations

    conversations.main(["--episodes", "8", "--turns", "2", "--seconds", "0.1", "--max-tokens", "4"])
    shown = capsys.readouterr().out
    assert len(re.findall(r"^(?:continuous|barrier) +[\d.]+ s", shown, re.MULTILINE)) == 2
