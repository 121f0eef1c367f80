from collections.abc import Callable, Iterator

import pytest

from processes import nothing_left


@pytest.fixture(autouse=True)
def processes() -> Iterator[Callable[[], dict[int, str]]]:
    """The living processes that this test started; none may be left soon after it."""
    with nothing_left() as own:
        yield own
