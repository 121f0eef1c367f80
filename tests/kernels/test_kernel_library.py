"""The cached library of kernels is loaded only as it was compiled."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grouprl.kernels.build import is_intact, why_no_library

LOAD = "from grouprl.kernels.build import library; print(library().width())"


@pytest.mark.parametrize("damaged", [b"", b"the libra", b"the librarx"])
def test_only_a_file_with_its_digest_is_loaded(tmp_path: Path, damaged: bytes) -> None:
    file = tmp_path / "kernels-1.so"
    assert not is_intact(file)
    file.write_bytes(b"the library")
    assert not is_intact(file)  # older versions wrote no digest
    summed = subprocess.run(["sha256sum", file], capture_output=True, text=True, check=True).stdout
    (tmp_path / "kernels-1.sha256").write_text(summed.split()[0])
    assert is_intact(file)
    file.write_bytes(damaged)
    assert not is_intact(file)


@pytest.mark.slow
@pytest.mark.skipif(why_no_library() is not None, reason="no compiler")
def test_a_truncated_library_is_compiled_again(tmp_path: Path) -> None:
    # -O0: a compilation of a second.
    surroundings = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "CFLAGS": "-O0", "GROUPRL_KERNELS": "on"}

    def width() -> str:
        ended = subprocess.run([sys.executable, "-c", LOAD], env=surroundings, capture_output=True, text=True)
        assert ended.returncode == 0, (ended.returncode, ended.stderr)
        return ended.stdout

    first = width()
    (file,) = tmp_path.rglob("*.so")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])  # ended the process with SIGBUS
    assert width() == first
    assert len(file.read_bytes()) == len(whole)
    made = file.stat().st_mtime_ns
    assert width() == first
    assert file.stat().st_mtime_ns == made  # an intact one is not compiled again
