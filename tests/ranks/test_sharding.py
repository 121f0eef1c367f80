"""Weights that are sharded over ranks: saved on some, loaded on others; on several machines; against one process."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ranked_runs import Place, ended, save_again, start, torchrun, torchrun_all
from small_runs import assert_almost_same_run, grouprl, tree

SHARD = {"distributed": {"shard": True}}
PPO = {"algorithm": {"name": "ppo"}}


def tensors(folder: Path) -> dict[str, bytes | None]:
    """The files of the only checkpoint with tensors."""
    (checkpoint,) = (folder / "checkpoints").iterdir()
    return {name: data for name, data in tree(checkpoint).items() if name.endswith(".safetensors")}


@pytest.mark.slow
def test_a_checkpoint_of_two_ranks_is_the_same_on_four_and_on_one(tiny: Path, tmp_path: Path) -> None:
    place = Place(tiny, tmp_path)
    trained = torchrun(2, place.arguments("two", **SHARD, **PPO))
    assert trained.code == 0, trained.text
    run = place.runs / "two"
    again = [
        ["save_again", str(run), str(tmp_path / "four"), "distributed.shard=true"],
        ["save_again", str(run), str(tmp_path / "whole"), "distributed.shard=false"],
    ]
    many = torchrun_all(4, again)
    assert many.code == 0, many.text
    save_again(run, tmp_path / "one", "distributed.shard=false")
    expected = tensors(run)
    assert {name.rpartition("/")[2] for name in expected} == {
        *("model.safetensors", "optimizer.safetensors", "critic.safetensors", "critic_optimizer.safetensors")
    }
    for name in ("four", "whole", "one"):
        assert tensors(tmp_path / name) == expected, name
    resumed = grouprl(*place.arguments("two", "--resume", **{**SHARD, "steps": 4}, **PPO))
    assert resumed.code == 0, resumed.text


@pytest.mark.slow
def test_two_machines_with_two_ranks_each(tiny: Path, tmp_path: Path) -> None:
    """Both are this machine: the ranks of each shard the weights, and the machines replicate them."""
    place = Place(tiny, tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    machines = [
        start(
            2,
            ["-m", "grouprl", *place.arguments("four", **SHARD)],
            options=["--nnodes=2", f"--node-rank={rank}", "--master-addr=127.0.0.1", f"--master-port={port}"],
            standalone=False,
        )
        for rank in (0, 1)
    ]
    ends = [ended(machine) for machine in machines]
    assert [end.code for end in ends] == [0, 0], ends[0].text + ends[1].text
    assert [end.out.count("Report:") for end in ends] == [1, 0]
    one = grouprl(*place.arguments("one"))
    assert one.code == 0, one.text
    assert_almost_same_run(place.runs / "one", place.runs / "four")


@pytest.mark.slow
def test_an_adapter_and_a_computation_in_bfloat16_are_sharded(tiny: Path, tmp_path: Path) -> None:
    place = Place(tiny, tmp_path)
    changes = {dtype: {"model": {"lora": {"rank": 4}, "dtype": dtype}} for dtype in ("float32", "bfloat16")}
    runs = [place.arguments(dtype, **SHARD, **changes[dtype]) for dtype in changes]
    many = torchrun_all(2, runs)
    assert many.code == 0, many.text
    assert many.out.count("Report:") == 2
    one = grouprl(*place.arguments("one", **changes["float32"]))
    assert one.code == 0, one.text
    assert_almost_same_run(place.runs / "one", place.runs / "float32")
