"""What a shell script passes to verl: whatever is decided is what bash itself passes to a stub of python3."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from grouprl import UserError
from grouprl.tools.imported.read import read_foreign
from grouprl.tools.imported.recipe import import_foreign
from grouprl.tools.imported.shell import OVERRIDE, overrides
from grouprl.tools.imported.table import Unknown

DECIDED = {
    "continued lines and quotes": 'run --config-name=\'x.yaml\' \\\n  a.b=1 \\\n a.c="x y" a.d=\'["u","v"]\' "$@"',
    "variables and defaults": 'N=4; export M=$N\nP=${U:-"${N}/x"}\nrun a.b=${M} a.c=${P} a.d=${U:-${N}}-$N',
    "positional arguments": "ENGINE=${1:-vllm}\nrun a.b=$ENGINE $@",
    "sums": "A=8\nB=$((A * (2 + 1) - 1))\nrun a.b=$((1024 * 8)) a.c=$B a.d=$(( ${A} / 3 % 2 ))",
    "lists": 'A=(\n  a.b=1 # one\n  "a.c=x y"\n)\nB=(a.d=2)\nB+=(a.e=3 a.f=[1,2])\nrun "${A[@]}" "${B[@]}"',
    "lists in lists": 'A=(a.b=1)\nA=("${A[@]}" a.c=2)\nrun ${A[@]}',
    "several in a variable": "MORE='a.b=1 a.c=2'\nrun $MORE +a.d=3 ++a.e=4",
    "a variable that is quoted is one word": 'X="a  b"\nrun a.b="$X"; : a.c=$X',
    "branches that agree": "X=1\nif true; then\n  X=1\nfi\nrun a.b=$X",
    "an assignment after the branch": "if true; then X=1; fi\nX=2\nrun a.b=$X",
    "comments": "# run a.b=9\nN=2  # a.c=9\nrun a.b=$N a.d=x#y",
    "an empty variable has the default": "LR=${LR:-}\nrun a.b=${LR:-5e-6} a.c=${LR-7}",
    "assigned twice in a line": "N=5 M=$N\nrun a.b=$M",
    "a prefix is for its command": "N=5\nN=6 true\nX=1\nX= run a.b=$N a.c=$X",
    "export expands before it sets": "N=5\nexport N=6 M=$N\nrun a.b=$N a.m=$M",
    "a default that is kept": ': "${X:=5}"\nrun a.b=$X a.c=${X:-3}',
    "text that is added": "X=a; X+=b; X=$X$X\nrun a.b=$X",
    "dollars that are text": "run a.b=\\$HOME a.c='${data.x}' a.d=\"\\$x\" a.e=a\\ b",
    "the home folder": 'X=~/models\nrun a.b=$X a.c=~/x a.d=$HOME/y a.e="${H:-$HOME}"',
    "quotes in words": 'X=\'a\'"b"c\nrun a.b=$X "a.c=$X" \'a.d=$X\' a."e"=4 a.f="it\'s" a.g=\'say "hi"\'',
    "braces in quotes": "run a.b='{a:1,b:2}' a.c={a:1}",
    "options of the shell": "X=1\nset -euo pipefail\nset -x\nrun a.c=$X",
    "pipes and files": "run a.b=1 2>&1 > /dev/null a.c=2 | tee /dev/null",
    "in the background": "run a.b=1 2> /dev/null &\nwait",
    "unset": "X=1\nunset X\nrun a.b=${X:-4}",
    "a here-document": "cat <<'E' > /dev/null\nX=2\nrun a.b=7\nE\nX=1\nrun a.b=$X",
    "arithmetic that only asks": "X=6\nif (( X % 4 != 0 )); then echo no; fi\nrun a.b=$X",
    "words that look reserved": "IF=1\necho if done fi\nrun a.if=$IF a.done=done",
    "lines in quotes": 'X="one\ntwo"\nrun a.b="$X" a.c="x\\\ny"',
    "after &&": "X=5 && run a.b=$X",
    "the last of two values": "run a.b=1 a.b=2",
    "other commands beside it": "echo a.b=7\nls /dev/null\nrun a.b=1\necho done",
    "nested defaults": "X=${A:-${B:-${C:-3}}}\nrun a.b=$X",
    "quotes in defaults": 'X=${Y:-\'a b\'}\nrun a.b="$X" a.c="${Y:-\'e\'}" a.d="${Y:-"f"}"',
    "a list becomes text": 'A=(x y)\nB="${A[@]}"\nrun a.b="$B"',
    "a program before the module": "time env Y=1 python3 -m verl.trainer.main_ppo a.b=3",
}
# A script -> the keys that depend on something else.
OPEN = {
    'USE=0; E=()\nif [ $USE = 1 ]; then E+=(a.lora=32); fi\nrun a.b=1 "${E[@]}"': "a.lora",
    "case $D in gpu) T=${T:-1.0} ;; npu) T=${T:-0.6} ;; esac\nrun a.t=$T a.b=1": "a.t",
    "case $D in (gpu) T=${T:-1.0} ;;\n *) T=${T:-0.6} ;; esac\nrun a.t=$T": "a.t",
    "run a.name=run_$(date +%F) a.b=2": "a.name",
    'run a.name="run_$(echo "a b")" a.c=`echo 3` a.b=2': "a.name a.c",
    "if [ -d /data ]; then N=8; else N=4; fi\nrun a.b=$N a.c=1": "a.b",
    'X=1; [ -z "$Y" ] && X=2\nrun a.b=$X': "a.b",
    "X=1; false || X=2\nrun a.b=$X": "a.b",
    "X=1; X=2 | cat\nrun a.b=$X": "a.b",
    "X=1\n(X=2)\nrun a.b=$X": "a.b",
    "X=1\n{ X=2; }\nrun a.b=$X": "a.b",
    "X=3\nfor i in 1 2; do X=$i; done\nrun a.b=$X a.i=$i a.c=1": "a.b a.i",
    "X=1\nwhile true; do run a.b=$X a.c=1; X=2; break; done": "a.b",
    'X=1\nwhile [ $# -gt 0 ]; do case $1 in --x) X=$2; shift 2;; esac; done\nrun a.b=$X a.c=1 "$@"': "a.b",
    "X=3\nf() { X=5; }\nX=3\nf\nrun a.b=$X": "a.b",
    "X=3\nfunction f { X=5; }\nX=3\nf\nrun a.b=$X": "a.b",
    "X=1\nf() { run a.b=$X a.c=1; }\nX=2\nf": "a.b",
    "X=1\neval X=2\nrun a.b=$X": "a.b",
    "X=1\nsource /dev/null\nrun a.b=${X:-2}": "a.b",
    "X=1\nread X <<< 7\nrun a.b=$X": "a.b",
    "printf -v X '%s' 5\nrun a.b=$X": "a.b",
    "declare -i X=2+3\nrun a.b=$X": "a.b",
    "X=5\nrun a.b=$((X++)) a.c=$X a.d=1": "a.b a.c",
    "X=5; ((X++))\nrun a.b=$X": "a.b",
    "X=2+3\nrun a.b=$((X * 2)) a.c=$(((2-5) / 2)) a.d=$((010)) a.e=$((Y)) a.f=$((2 ** 3))": "a.b a.c a.d a.e a.f",
    "X=ab\nrun a.b=${X^^} a.c=${#X} a.d=${X/b/c} a.e=${X:1} a.f=${X%b} a.g=${X:+y}": "a.b a.c a.d a.e a.f a.g",
    "run a.b={x,y} a.c=1": "a.b",
    "run a.b=${PWD:-x} a.c=$RANDOM a.d=$1 a.e=$U a.f=1": "a.b a.c a.d a.e",
    "if [ -d /data ]; then run a.b=1 a.c=5; else run a.b=2 a.c=5; fi": "a.b",
    "X=1; if true; then export X=4; fi\nrun a.b=$X": "a.b",
    "if true; then : ${X:=4}; fi\nrun a.b=${X:-1}": "a.b",
    "A=(x y)\nrun a.b=$A a.c=${A[0]} a.d=1": "a.b a.c",
}
BASE = "python3 -m verl.trainer.main_ppo"


def passed_by_bash(script: str, folder: Path) -> dict[str, str]:
    stub = folder / "python3"
    stub.write_text(f"#!/bin/bash\nprintf '%s\\0' \"$@\" >> {folder}/words\n")
    stub.chmod(0o755)
    place = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(Path.home())}
    subprocess.run(["bash", "-c", script], cwd=folder, env=place, capture_output=True, check=False, timeout=10)
    words = (folder / "words").read_text().split("\0")
    return {found[1]: found[2] for word in words if (found := OVERRIDE.fullmatch(word))}


@pytest.mark.parametrize("script", DECIDED.values(), ids=DECIDED.keys())
def test_a_script_says_what_bash_says(tmp_path: Path, script: str):
    script = script.replace("run ", f"{BASE} ")
    assert overrides(script) == passed_by_bash(script, tmp_path)


@pytest.mark.parametrize(("script", "keys"), OPEN.items(), ids=OPEN.keys())
def test_what_depends_on_something_else_is_open_and_the_rest_is_bashs(tmp_path: Path, script: str, keys: str):
    script = script.replace("run ", f"{BASE} ")
    found = overrides(script)
    assert {key for key, value in found.items() if isinstance(value, Unknown)} == set(keys.split())
    decided = {key: value for key, value in found.items() if isinstance(value, str)}
    assert decided.items() <= passed_by_bash(script, tmp_path).items()


def test_an_open_value_is_named_with_line_and_remedy_and_can_be_passed(tmp_path: Path):
    file = tmp_path / "run.sh"
    model = "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8 data.train_batch_size=256"
    file.write_text(f"#!/bin/bash\n\nLR=$(cat lr)\n{BASE} {model} actor_rollout_ref.actor.optim.lr=$LR $EXTRA\n")
    with pytest.raises(UserError) as refused:
        import_foreign(read_foreign(file))
    assert "optim.lr=$LR: cannot be decided: a program sets it" in str(refused.value)
    assert "(line 3); write the value into the file, or pass actor_rollout_ref.actor.optim.lr=VALUE" in str(
        refused.value
    )
    assert "$EXTRA=$EXTRA: cannot be decided" in str(refused.value)
    made = import_foreign(read_foreign(file, ["actor_rollout_ref.actor.optim.lr=3e-6"]), allow=["$EXTRA"])
    assert made.changes["learner.learning_rate"] == 3e-6


def test_a_rule_that_needs_an_open_value_is_open_too(tmp_path: Path):
    """Whether the deviation divides decides the scale of adv_estimator, whose own value is clear."""
    file = tmp_path / "run.sh"
    key = "algorithm.norm_adv_by_std_in_grpo"
    file.write_text(f"{BASE} algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8 {key}=$(cat std)\n")
    with pytest.raises(UserError, match=f"adv_estimator=grpo: depends on {key}, which cannot be decided"):
        import_foreign(read_foreign(file))


@pytest.mark.parametrize(
    "script",
    [
        "run a.b=" + "$((" * 40_000,
        "run a.b=" + '"${A:-' * 40_000,
        "X=a\n" + "X=$X$X\n" * 39 + "run a.b=$X",
        "X=(a)\n" + 'X=("${X[@]}" "${X[@]}")\n' * 39 + 'run "${X[@]}"',
        "if x; then\n" * 20_000,
        "run a.b='" + '"' * 100_000,
        "shopt -s nullglob\nrun a.b=[1,2]",
        "IFS=,\nrun a.b=1",
    ],
)
def test_a_script_that_explodes_or_cannot_be_read_is_refused_at_once(script: str):
    start = time.monotonic()
    with pytest.raises(ValueError, match=r"in line \d+"):
        overrides(script)
    assert time.monotonic() - start < 10


def test_16_kib_of_shell_take_no_time(tmp_path: Path):
    """It took 18 seconds."""
    file = tmp_path / "run.sh"
    file.write_text(f'X=1\n{BASE} data.train_batch_size=64 a.b="{"${X:-1}$X" * 1_800}"\n')
    start = time.monotonic()
    assert read_foreign(file).values["data.train_batch_size"] == 64
    assert time.monotonic() - start < 5
