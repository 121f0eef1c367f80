from pathlib import Path

import pytest

from grouprl.types import Batch, Group
from learner_setting import SAMPLING, batch_of, sampled


@pytest.fixture(scope="session")
def groups(tiny: Path) -> list[Group]:
    """Groups of 3, 3 and 5 completions."""
    return sampled(tiny, SAMPLING)


@pytest.fixture
def batch(groups: list[Group]) -> Batch:
    return batch_of(groups)
