import os
import signal
import sys
import tempfile
from functools import cache
from pathlib import Path

import cloudpickle
import pytest
from hypothesis import settings

from grouprl.checks.sandbox import BACKENDS, why_unavailable
from thread_ray import thread_ray as thread_ray
from tiny import tiny_model_folder

# What a test computes does not depend on which forms were the faster here; some tests set other values.
os.environ.setdefault("GROUPRL_KERNELS", "on")

# What tests run is remembered for nobody.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="grouprl-state-")

# The same examples every time, and no limit on one example's time: a busy machine is not a failing test.
settings.register_profile("suite", derandomize=True, deadline=None)
settings.load_profile("suite")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell leaves it for what runs in its background: runs could not be stopped by Ctrl-C, nor their tests pass.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny Qwen2 checkpoint with a chat template; load it, never write to it."""
    return tiny_model_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def with_page() -> None:
    """For tests whose runs write their pages."""


@pytest.fixture(autouse=True)
def no_page(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other runs end without their page, a third of the time of a small run; those of a module's fixtures have one."""
    terminal = sys.modules.get("grouprl.trainer.terminal")
    if terminal is not None and "with_page" not in request.fixturenames:
        monkeypatch.setattr(terminal, "report_of", lambda directory: directory / "report.html")


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


HERE = Path(__file__).parent
# pytest-xdist begins with these files: a long file that it begins last leaves the other worker without work.
LONG = (
    *("run/test_train", "learner/test_family", "lab/test_lab_browser", "lab/test_lab_layout"),
    *("models/test_lora", "run/test_trainer", "rewards/test_hostile"),
    *("checks/test_sandbox", "lab/", "rewards/test_reward_pool", "benchmarks/", "tools/test_compar", "ranks/"),
)


@cache
def rank(path: Path) -> int:
    place = path.relative_to(HERE).as_posix()
    return next((at for at, start in enumerate(LONG) if place.startswith(start)), len(LONG))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.path))
    # A worker that is sent a function of a test's module by its name imports all that the module does: 3 s.
    for module in [*sys.modules.values()]:
        if HERE in Path(getattr(module, "__file__", None) or "/").parents:
            cloudpickle.register_pickle_by_value(module)
