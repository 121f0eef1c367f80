"""The kernels compiled for other processors compute what those compiled for this one compute.

test_kernels.py compares those with torch. A target is skipped on a processor without its instructions, and without the
emulator.
"""

from __future__ import annotations

import os
import platform
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from grouprl.kernels.build import library

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "src/grouprl/kernels"
DRIVER = ROOT / "tests/support/kernel_driver.c"
FLAGS = ("-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-Wno-psabi")
# Flags of /proc/cpuinfo without which a target's programs do not run.
NEEDED = {"x86-64-v2": {"sse4_2", "ssse3"}, "x86-64-v3": {"avx2", "fma", "bmi2"}, "x86-64-v4": {"avx512f", "avx512vl"}}
EMULATED = ("aarch64-linux-gnu-gcc", "qemu-aarch64-static")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(library() is None or platform.machine() != "x86_64", reason="needs x86-64 and a C compiler"),
]


def processor_flags() -> set[str]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return set(next((line for line in lines if line.startswith("flags")), "").split())


def results(
    compiler: str, flags: tuple[str, ...], runner: tuple[str, ...], folder: Path
) -> list[tuple[str, np.ndarray]]:
    program = folder / f"driver{len(list(folder.iterdir()))}"
    sources = [*map(str, sorted(KERNELS.glob("*.c"))), str(DRIVER)]
    subprocess.run([compiler, *FLAGS, *flags, "-I", str(KERNELS), *sources, "-o", str(program), "-lm"], check=True)
    written = subprocess.run([*runner, str(program)], check=True, capture_output=True).stdout
    found, at = [], 0
    while at < len(written):
        (count,) = struct.unpack_from("<q", written, at + 32)
        name = written[at : at + 32].rstrip(b"\0").decode()
        found.append((name, np.frombuffer(written, np.float32, count, at + 40)))
        at += 40 + 4 * count
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, np.ndarray]]:
    return results("cc", ("-march=native",), (), tmp_path_factory.mktemp("native"))


@pytest.mark.parametrize("target", [*NEEDED, "aarch64"])
def test_another_target_computes_the_same(target: str, expected: list[tuple[str, np.ndarray]], tmp_path: Path):
    compiler, flags, runner = "cc", (f"-march={target}",), ()
    if target == "aarch64":
        if not all(map(shutil.which, EMULATED)):
            pytest.skip(f"needs {' and '.join(EMULATED)}")
        compiler, flags, runner = EMULATED[0], ("-static",), (EMULATED[1],)
    elif not NEEDED[target] <= processor_flags():
        pytest.skip(f"this processor is not {target}")
    got = results(compiler, flags, runner, tmp_path)
    assert [name for name, _ in got] == [name for name, _ in expected]
    assert len(got) > 100
    for (name, one), (_, other) in zip(got, expected, strict=True):
        assert np.isfinite(other).all(), name
        # Of the largest: two steps of bfloat16 are 1/64. Products of pairs round probabilities to it, too.
        within = 1 / 64 if name.startswith("bfloat16") or name.endswith("of halves") else 1e-5
        np.testing.assert_allclose(one, other, rtol=0, atol=within * float(np.abs(other).max()), err_msg=name)


@pytest.mark.parametrize(
    ("target", "defined"), [("x86-64-v2", ""), ("x86-64-v3", ""), ("x86-64-v3", " -DMULTIPLIES_PAIRS=1")]
)
def test_the_tests_of_the_kernels_pass_on_another_target(target: str, defined: str):
    if not NEEDED[target] <= processor_flags():
        pytest.skip(f"this processor is not {target}")
    if target == "x86-64-v3" and not defined and not NEEDED["x86-64-v4"] <= processor_flags():
        pytest.skip("the fast tests of the kernels ran on this target")
    tests = [str(ROOT / "tests" / name) for name in ("kernels/test_kernels.py", "rollout/test_rollout.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow", *tests]
    done = subprocess.run(
        command,
        env=os.environ | {"CFLAGS": f"-march={target}{defined}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
