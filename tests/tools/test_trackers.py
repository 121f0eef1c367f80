"""Trackers: what the real libraries read back is what the run recorded; no tracker can stop or hold up a run."""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from grouprl import Run, Trainer, UserError
from grouprl.config.run import RunConfig, load_config
from grouprl.tools.trackers import following
from grouprl.tools.trackers.following import tracked, tracked_name
from grouprl.tools.trackers.libraries import About, Shown, Table
from small_runs import LETTERS, ROWS, rollouts, small_config


def train(tiny: Path, tmp_path: Path, trackers: Any, *, resume: bool = False, **changes: Any) -> Run:
    config = small_config(tmp_path, **{"steps": 4, "checkpoint": {"every": 2}, "trackers": trackers, **changes})
    return Trainer(tiny, ROWS, [LETTERS], config=config).train(resume=resume)


def train_and_resume(tiny: Path, tmp_path: Path, tracker: str, **tracking: Any) -> Path:
    """Four steps and a fifth, with the completions of step 3."""
    given = {"names": [tracker], "completions_every": 3, **tracking}
    train(tiny, tmp_path, given)
    return train(tiny, tmp_path, given, resume=True, steps=5).directory


def recorded(run: Path, name: str) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row[name]) for row in rows if row.get(name) is not None]


def completions(run: Path, step: int) -> list[str]:
    query = f"SELECT text FROM completions WHERE step = {step} ORDER BY group_index, completion_index"
    return [text for (text,) in rollouts(run, query)]


def test_metrics_have_the_names_of_trl_where_the_meaning_is_the_same() -> None:
    # As in trl/trainer/grpo_trainer.py of 1.16.
    ours = {
        "reward": "reward",
        "rewards/my reward/mean": "rewards/my reward/mean",
        "frac_reward_zero_std": "frac_reward_zero_std",
        "completions/clipped_ratio": "completions/clipped_ratio",
        "clip_low_fraction": "clip_ratio/low_mean",
        "router_aux_loss": "aux_loss",
        "reward_logs/hits": "hits",
        "sampler_learner_gap": "sampling/sampling_logp_difference/max",
        "time/total": "step_time",
        "rss_mib": "rss_mib",
        "of nobody": "of nobody",
    }
    assert {name: tracked_name(name) for name in ours} == ours


def test_a_number_of_a_reward_does_not_hide_a_metric() -> None:
    found = tracked({"loss": 1.0, "reward_logs/loss": 2.0, "reward_logs/hits": 3.0, "kl": float("nan")}, "train/")
    assert found == {"train/loss": 1.0, "train/reward_logs/loss": 2.0, "train/hits": 3.0}


@pytest.mark.parametrize("given", ["[tensorboard]", "tensorboard", "{names: [tensorboard]}"])
def test_a_list_of_names_is_the_section(given: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"trackers: {given}\n")
    assert load_config(RunConfig, [file], []).trackers.names == ("tensorboard",)
    config = load_config(RunConfig, [file], ["trackers=[wandb, mlflow]", "trackers.project=mine"])
    assert (config.trackers.names, config.trackers.project) == (("wandb", "mlflow"), "mine")
    assert RunConfig(trackers=["wandb"]).trackers.completions_every == 10  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"trackers\.names\.0: expected 'tensorboard', 'wandb', 'trackio' or 'mlflow'"):
        load_config(RunConfig, [], ["trackers=[comet]"])


def test_a_missing_library_is_said_before_a_write(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"trackers: wandb: .* pip install 'grouprl\[wandb\]'"):
        train(tiny, tmp_path, ["wandb"])
    assert not (tmp_path / "run").exists()


def test_tensorboard_shows_what_is_recorded_and_a_resume_purges(tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train_and_resume(tiny, tmp_path, "tensorboard")
    found = EventAccumulator(str(run / "trackers" / "tensorboard"), size_guidance={"tensors": 0, "scalars": 0})
    found.Reload()
    for name, shown in (("reward", "train/reward"), ("clip_low_fraction", "train/clip_ratio/low_mean")):
        events = [(event.step, event.value) for event in found.Scalars(shown)]
        assert events == [(step, pytest.approx(value, rel=1e-6)) for step, value in recorded(run, name)]
    (evaluations,) = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()][:1]
    assert found.Scalars("eval/mean_length")[0].value == pytest.approx(evaluations["mean_length"])
    assert '"group_size": 4' in found.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    (table,) = found.Tensors("completions/text_summary")
    assert table.step == 3
    lines = table.tensor_proto.string_val[0].decode().splitlines()
    assert lines[0] == "| step | prompt | completion | letters | reward | advantage |"
    assert len(lines) == 2 + 2 * 4


def log_records(file: bytes) -> Iterator[bytes]:
    """The records of wandb's file: LevelDB's log, https://github.com/google/leveldb/blob/main/doc/log_format.md."""
    at, parts = 7, b""  # after wandb's own header
    while at < len(file):
        if 32768 - at % 32768 < 7:  # the rest of a block that is too short for a header
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", file, at + 4)
        parts += file[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def test_wandb_offline_holds_the_run(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    run = train_and_resume(tiny, tmp_path, "wandb", project="mine")
    ids, history, config = set(), [], dict[str, Any]()
    for file in sorted((run / "trackers" / "wandb").glob("offline-run-*/run-*.wandb")):
        for data in log_records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                ids.add((record.run.project, record.run.display_name, record.run.run_id))
                config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            config |= {item.key: json.loads(item.value_json) for item in record.config.update}
            if record.HasField("history"):
                items = {item.key or "/".join(item.nested_key): item for item in record.history.item}
                history.append({key: json.loads(item.value_json) for key, item in items.items()})
    assert len(ids) == 1, "the resumed run continues the first"
    assert {(project, name) for project, name, _ in ids} == {("mine", "run")}
    assert config["rollout"]["group_size"] == 4
    rewards = [(row["train/global_step"], row["train/reward"]) for row in history if "train/reward" in row]
    assert rewards == recorded(run, "reward")
    ((step, path),) = [(row["train/global_step"], row[at]) for row in history for at in row if at == "completions/path"]
    (file,) = run.glob(f"trackers/wandb/offline-run-*/files/{path}")
    rows = json.loads(file.read_text())
    assert step == 3
    assert [row[rows["columns"].index("completion")] for row in rows["data"]] == completions(run, 3)


def test_mlflow_keeps_metrics_and_tables(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = train_and_resume(tiny, tmp_path, "mlflow")
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    (experiment,) = client.search_experiments(filter_string="name = 'grouprl'")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.params["rollout.group_size"] == "4"
    history = client.get_metric_history(found.info.run_id, "reward")
    assert [(one.step, one.value) for one in history] == recorded(run, "reward")
    path = client.download_artifacts(found.info.run_id, "completions/step-000003.json", str(tmp_path))
    table = json.loads(Path(path).read_text())
    assert [row[table["columns"].index("completion")] for row in table["data"]] == completions(run, 3)


def test_trackio_keeps_metrics_and_tables(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trackio = pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    project = f"grouprl-test-{time.time_ns()}"  # trackio chose its folder when it was imported
    run = train_and_resume(tiny, tmp_path, "trackio", project=project)
    (found,) = trackio.Api().runs(project)
    assert (found.name, found.config["rollout"]["group_size"]) == ("run", 4)
    rows = SQLiteStorage.get_logs(project, "run")
    rewards = [(row["step"], row["train/reward"]) for row in rows if "train/reward" in row]
    assert rewards == recorded(run, "reward")
    (table,) = [row["completions"] for row in rows if "completions" in row]
    assert [row["completion"] for row in table["_value"]] == completions(run, 3)


class Broken:
    """A tracker whose library fails at its third call."""

    def __init__(self) -> None:
        self.calls = 0

    def begin(self, about: About) -> Shown:
        return Shown("1", "a link")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.calls += 1
        if self.calls == 3:
            raise SystemExit("no network\nat all")

    def completions(self, step: int, table: Table) -> None:
        raise AssertionError("the run is too short")

    def end(self, *, failed: bool) -> None:
        raise AssertionError("it has failed before")


class Hanging(Broken):
    """A tracker whose library never comes back."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        time.sleep(3600)


class Silent(Broken):
    """A tracker whose library never begins."""

    def begin(self, about: About) -> Shown:
        time.sleep(3600)
        raise AssertionError


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            Broken,
            [
                "Tracker tensorboard: a link",
                "the tracker tensorboard failed (SystemExit: no network at all); the run continues without it.",
            ],
        ),
        (Hanging, ["is too slow; some records are not sent to it", "did not end within 0 s"]),
        (Silent, ["Warning: the tracker tensorboard has not answered within 0 s"]),
    ],
)
def test_a_tracker_that_does_not_work_is_said_once_and_stops_no_run(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: type[Broken],
    said: list[str],
) -> None:
    monkeypatch.setattr(following, "TRACKERS", {"tensorboard": kind})
    monkeypatch.setattr(following, "import_extra", lambda *given: None)
    for name, value in {"LINK_SECONDS": 0.1, "END_SECONDS": 0.2, "_WAITING": 2 if kind is Hanging else 99}.items():
        monkeypatch.setattr(following, name, value)
    run = train(tiny, tmp_path, ["tensorboard"], evaluation={"problems": 0})
    assert run.finished
    assert len(recorded(run.directory, "reward")) == 4
    out = capsys.readouterr().out
    assert [out.count(text) for text in said] == [1] * len(said)
    if kind is Silent:
        assert out.index(said[0]) < out.index("1/4")  # before the first step
        assert out.count("Warning: the tracker") == 1


def test_a_server_that_is_not_there_does_not_stop_a_run(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert train(tiny, tmp_path, ["mlflow"]).finished
    assert capsys.readouterr().out.count("Warning: the tracker mlflow failed (MlflowException") == 1
