from pathlib import Path

import cloudpickle
import pytest
from hypothesis import settings

from grouprl.sandbox import BACKENDS, why_unavailable
from tiny import tiny_model_folder

# The same examples every time, and no limit on one example's time: a busy machine is not a failing test.
settings.register_profile("suite", derandomize=True, deadline=None)
settings.load_profile("suite")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny Qwen2 checkpoint with a chat template; load it, never write to it."""
    return tiny_model_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    reason = why_unavailable(request.param)
    if reason:
        pytest.skip(f"{request.param}: {reason}")
    return str(request.param)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("a secret")
    path.chmod(0o666)
    return path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # A file's tests go to one of the workers: what its fixtures made is made once.
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        # A reward worker that is sent a function of a test module by its name imports all that the module does: 3 s.
        cloudpickle.register_pickle_by_value(module)
