"""What a shell script says, by bash itself: the words that the script would give to verl."""

from __future__ import annotations

import subprocess

import pytest

from grouprl.imported.shell import overrides

SCRIPTS = {
    "continued lines and quotes": 'run --config-name=\'x.yaml\' \\\n  a.b=1 \\\n  a.c="x y" a.d=\'["u","v"]\' "$@"\n',
    "variables and defaults": 'N=4; export M=$N\nP=${UNSET_P:-"${N}/x"}\nrun a.b=${M} a.c=${P} a.d=${UNSET:-${N}}-$N\n',
    "positional arguments": "ENGINE=${1:-vllm}\nrun a.b=$ENGINE $@\n",
    "arithmetic": "A=8\nB=$((A * (2 + 1) - 1))\nrun a.b=$((1024 * 8)) a.c=$B a.d=$(( ${A} / 3 % 2 ))\n",
    "arrays": 'ARGS=(\n  a.b=1\n  "a.c=x y"\n)\nMORE=(a.d=2)\nMORE+=(a.e=3 a.f=[1,2])\nrun "${ARGS[@]}" "${MORE[@]}"\n',
    "several in a variable": 'MORE="a.b=1 a.c=2"\nrun $MORE +a.d=3 ++a.e=4\n',
    "branches that agree": "X=1\nif true; then\n  X=1\nfi\nrun a.b=$X\n",
    "comments": "# run a.b=9\nN=2  # a.c=9\nrun a.b=$N\n",
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_script_says_what_bash_says(script: str):
    told = subprocess.run(
        ["bash", "-c", f"run() {{ printf '%s\\0' \"$@\"; }}\n{script}"], capture_output=True, text=True, check=True
    )
    words = [word.lstrip("+") for word in told.stdout.split("\0") if word]
    assert overrides(script) == dict(word.split("=", 1) for word in words if not word.startswith("--"))


@pytest.mark.parametrize(
    "value",
    ["$(nproc)", "`nproc`", "$UNSET", "${UNSET}", "${N^^}", "$((N ** 9))", "$((X * 2))"],
)
def test_a_value_from_elsewhere_keeps_its_dollar(value: str):
    (found,) = overrides(f"N=4\nrun a.b={value}\n").values()
    assert "$" in found or "`" in found


def test_branches_that_differ_say_nothing():
    """Which branch bash takes depends on the machine: neither value is right."""
    found = overrides("if [ -d /data ]; then\n  N=8\nelse\n  N=4\nfi\nrun a.b=$N a.c=1\n")
    assert found == {"a.b": "${N}", "a.c": "1"}
    assert overrides("N=2\nfor i in 1; do N=3; done\nrun a.b=$N\n") == {"a.b": "${N}"}
    assert overrides("if x; then run a.b=1; else run a.b=2; fi\n") == {"a.b": "${a.b}"}
