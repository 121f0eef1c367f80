"""What the planner measures of this machine, in a moment."""

import pytest

from grouprl.tools.planner import machine


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates of small products and reads, each measured once."""
    monkeypatch.setattr(machine, "_SECONDS", 0.0)
    monkeypatch.setitem(machine._ROWS, "cpu", (64, 64, 64))
    monkeypatch.setitem(machine._BLOCKS, "cpu", (1 << 16, 1 << 20))
