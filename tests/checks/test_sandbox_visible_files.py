"""The files that a sandbox shows: the interpreter's own, and none that lie beside them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from escapes import HELPER, ROOT, told_by
from grouprl.checks.sandbox import BACKENDS, ReturnValue, run_in_sandbox, visible_files, why_unavailable
from grouprl.checks.sandbox.visible_files import EXECUTABLE, PREFIX

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes need Linux")

_IMPORTS = """
import importlib
def attempts(names):
    failed = []
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            failed.append(name)
    return failed
"""


@pytest.fixture(scope="module")
def relocated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prefix of its own, as conda's or python.org's: libraries of its own, and this package in its site-packages."""
    prefix = tmp_path_factory.mktemp("prefix")
    prefix.chmod(0o755)
    library = prefix / visible_files.STDLIB.relative_to(PREFIX)
    left_out = shutil.ignore_patterns("*-packages", "test", "idlelib", "lib2to3", "tkinter", "ensurepip", "config-*")
    shutil.copytree(visible_files.STDLIB, library, ignore=left_out, symlinks=True, ignore_dangling_symlinks=True)
    (prefix / "bin").mkdir()
    shutil.copy(EXECUTABLE, prefix / "bin")
    for path in (PREFIX / "lib").glob("libpython*.so*"):
        shutil.copy(path, prefix / "lib")
    (prefix / "lib/libsecret.so.1").write_text("a secret")
    (prefix / "lib/other").mkdir()
    (prefix / "lib/other/secret").write_text("a secret")
    shutil.copytree(
        ROOT / "src/grouprl", library / "site-packages/grouprl", ignore=shutil.ignore_patterns("__pycache__")
    )
    return prefix


def test_the_tests_of_a_package_installed_beside_the_standard_library_cannot_be_read(backend: str, relocated: Path):
    library = relocated / visible_files.STDLIB.relative_to(PREFIX)
    packages = library / "site-packages"
    data = "grouprl/checks/data/code.jsonl"
    assert (packages / data).is_file()
    attack = f"""
def attack():
    library = os.path.dirname(os.__file__)
    beside = [library + "/site-packages/{data}", library + "/../libsecret.so.1", library + "/../other/secret",
              {str(packages / data)!r}, {str(relocated / "lib/other/secret")!r}]
    return [tried(open, path) for path in beside] + [tried(os.listdir, library + "/site-packages/grouprl")]
"""
    version = "import sys\ndef attack():\n    return sys.version"
    environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(relocated / "lib")}
    python = str(relocated / "bin" / EXECUTABLE.name)
    told = told_by(python, backend, {"read": HELPER + attack, "version": version}, packages, env=environment)
    assert told["reason"] is None
    assert told["version"] == sys.version
    assert set(told["read"]) == {"blocked"}


@pytest.mark.parametrize("name", BACKENDS)
def test_no_backend_is_refused_for_the_files_that_it_shows(name: str):
    """All other tests skip a backend that does not work; this one does not."""
    assert "not confined" not in str(why_unavailable(name))


def test_the_interpreter_inside_is_the_one_outside(backend: str):
    assert run_in_sandbox("import sys", ["sys.version"], backend=backend).outcomes == (ReturnValue(sys.version),)


def test_every_extension_module_that_works_outside_works_inside(backend: str):
    names = sorted(
        path.name.split(".")[0] for path in visible_files.STDLIB.glob("lib-dynload/*.so") if "test" not in path.name
    )
    names = [name for name in names if name != "_tkinter"]
    command = [str(EXECUTABLE), "-I", "-S", "-c", f"{_IMPORTS}\nimport json\nprint(json.dumps(attempts({names!r})))"]
    outside = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert len(outside) < len(names) / 2
    assert run_in_sandbox(_IMPORTS, [f"attempts({names!r})"], backend=backend).outcomes == (ReturnValue(outside),)


def test_modules_are_found_after_the_lists_of_files_were_thrown_away(backend: str):
    [outcome] = run_in_sandbox(
        _IMPORTS, ["importlib.invalidate_caches() or attempts(['bisect', 'json.tool', 'wave'])"], backend=backend
    ).outcomes
    assert outcome == ReturnValue([])


@pytest.mark.skipif(shutil.which("ldd") is None, reason="needs ldd")
def test_the_libraries_are_those_that_the_loader_takes_and_no_others(monkeypatch: pytest.MonkeyPatch):
    modules = [path for path in visible_files.STDLIB.glob("lib-dynload/*.so") if "_tkinter" not in path.name]
    told = subprocess.run(["ldd", EXECUTABLE, *modules], capture_output=True, text=True, check=False).stdout
    taken = set(re.findall(r"^\s+(lib\S+) => /", told, re.MULTILINE))
    assert len(taken) > 3
    folders = visible_files._folders()
    monkeypatch.setattr(visible_files, "_MULTIARCH", "no folder stands for its files")
    monkeypatch.setattr(visible_files, "_folders", lambda: folders)
    found = {path.name for path in visible_files.libraries.__wrapped__()}
    assert taken <= found
    assert len(found) < 60
    assert not any(name.startswith(("libX11", "libcuda", "libtk")) for name in found)


def test_the_loader_is_the_one_that_the_kernel_starts():
    told = subprocess.run(["ldd", EXECUTABLE], capture_output=True, text=True, check=True).stdout
    assert re.search(rf"^\s+{re.escape(visible_files.loader())} \(", told, re.MULTILINE)
