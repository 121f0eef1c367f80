"""The comparisons of a folder of runs, as the lab answers them."""

from __future__ import annotations

from pathlib import Path

from starlette.testclient import TestClient

from comparisons import comparison, ones, record
from grouprl.compare.read import read_comparison
from grouprl.compare.report import comparison_answer
from grouprl.lab.app import create_app


def mixed(root: Path) -> Path:
    """A comparison of GRPO with PPO on two seeds."""
    folder = comparison(root / "mine", ["grpo", "ppo"], [0, 1])
    for name, solved, critic in (("grpo", 2, "none"), ("ppo", 3, "copy")):
        for seed in (0, 1):
            record(folder / f"{name}-seed{seed}", [ones(1), ones(2), ones(solved)], memory=500.0 + seed)
            (folder / f"{name}-seed{seed}" / "config.yaml").write_text(
                f"algorithm: {{name: {name}, critic: {critic}}}\n"
            )
    return folder


def test_comparisons_with_and_without_a_critic_are_listed(tmp_path: Path) -> None:
    mixed(tmp_path)
    (mine,) = TestClient(create_app(tmp_path)).get("/api/comparisons").json()["comparisons"]
    assert (mine["name"], mine["seeds"]) == ("mine", [0, 1])
    grpo, ppo = mine["variants"]
    assert (grpo["figures"]["greedy_accuracy"]["mean"], ppo["figures"]["greedy_accuracy"]["mean"]) == (0.5, 0.75)
    assert ppo["figures"]["peak_rss_mib"]["by_seed"] == {"0": 500, "1": 501}
    assert "sampled_steps_to_90" not in ppo["figures"]


def test_one_without_a_critic_is_not_listed_and_has_its_page(tmp_path: Path) -> None:
    folder = comparison(tmp_path / "clips", ["a", "b"], [0])
    for name in ("a", "b"):
        record(folder / f"{name}-seed0", [ones(1), ones(2), ones(3)])
    client = TestClient(create_app(tmp_path))
    assert client.get("/api/comparisons").json() == {"comparisons": []}
    answer = client.get("/api/comparisons/clips").json()
    assert answer["verdict"] == comparison_answer(read_comparison(folder))["verdict"]
    assert [one["name"] for one in answer["variants"]] == ["a", "b"]


def test_a_comparison_that_is_not_there_or_leads_elsewhere_is_told(tmp_path: Path) -> None:
    for name in ("outside", "root"):
        (tmp_path / name).mkdir()
    mixed(tmp_path / "outside")
    (tmp_path / "root" / "linked").symlink_to(tmp_path / "outside" / "mine")
    client = TestClient(create_app(tmp_path / "root"))
    for name in ("linked", "none", ".."):
        assert client.get(f"/api/comparisons/{name}").status_code == 404
