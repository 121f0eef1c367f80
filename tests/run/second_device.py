"""Whole runs on a device other than the CPU compute what the CPU computes.

`pretend_device` pretends one; on another machine GROUPRL_SECOND_DEVICE names a real one, such as cuda.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from grouprl import Trainer, UserError, WeightedReward
from grouprl.config.run import RunConfig, load_config
from grouprl.forward.devices import DEVICES, DeviceTraits, check_device, resolve_device
from grouprl.learner.batch import padded
from grouprl.models.load import load_model, load_tokenizer
from grouprl.models.reward_model import new_reward_model
from grouprl.models.save import save_model
from grouprl.rewards.learned import learned_reward
from grouprl.run.opened import OpenedRun
from grouprl.tools.planner.machine import total_memory
from grouprl.tools.planner.memory import plan_memory
from grouprl.tools.planner.screen import networks_of, step_of
from grouprl.tools.planner.shapes import SHAPES
from grouprl.tools.proof.replay import learner_before, make_update, recorded_groups
from letter_rewards import words
from pairs import ROWS as PAIRS
from ranked_runs import Place, ended, save_again, start
from small_runs import (
    LETTERS,
    ROWS,
    as_killed,
    assert_almost_same_run,
    assert_same_run,
    assert_same_weights,
    checkpoint_names,
    grouprl,
    metrics,
    rollouts,
    small_config,
    write_rows,
)
from source_tree import SRC
from variants import variant

NAME = os.environ.get("GROUPRL_SECOND_DEVICE", "pretend")
IS_REAL = NAME != "pretend"
if IS_REAL:
    StrayTensorError: Any = ()

    def pretended(*, noted: bool = False) -> Any:
        return nullcontext()

else:
    import pretend_device
    from pretend_device import DEVICE, StrayTensorError, pretended
of_the_pretended = pytest.mark.skipif(IS_REAL, reason="about the pretended device alone")
# Of the numbers of a first and of further steps, and of weights after them: the largest difference that rounding makes.
# AdamW gives weights whose gradient is nearly 0 an update of either sign. A real device adds in another order.
NOISE = (1e-4, 1e-2, 1e-2) if IS_REAL else (2e-6, 1e-5, 1e-4)
OF_A_TOKEN = {"ratio_max", "correction_max", "sampler_learner_gap"}
SMALL: dict[str, Any] = {
    "steps": 2,
    "rollout": {"problems_per_step": 2, "group_size": 4, "max_tokens": 8},
    "evaluation": {"problems": 0},
    "learner": {"learning_rate": 1e-3, "micro_batch_tokens": 48},
}
LORA = {"lora": {"rank": 4}}
# Of each run, the further settings of `small_config`. NF4 is not among them: bitsandbytes 0.50.2 replaces the data of a
# parameter in place, which torch refuses on a device that Python registers. benchmarks/gpu_correctness.py has it.
RUNS: dict[str, dict[str, Any]] = {
    "grpo": {"evaluation": {"problems": 2, "samples": 1}},
    "dapo": {"algorithm": variant("dapo", minibatches=2)},
    "ppo": {"algorithm": {"name": "ppo"}},
    "lora": {"model": LORA},
    "process": {"algorithm": {"name": "grpo_process"}},
    "correction": {"algorithm": variant(minibatches=2, correction="truncate")},
    "recompute": {"learner": {**SMALL["learner"], "recompute": True}},
    "prefix": {"steps": 1},
    "distillation": {"algorithm": variant(distill_coef=0.1, distill_teacher="reference", distill_reads="prompt")},
    "mps": {"steps": 1},
}
SLOW = {"dapo", "recompute", "prefix", "distillation"}
ROWS_OF_RUNS = [
    pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW) + [of_the_pretended] * (name == "mps"))
    for name in RUNS
]
COMMANDS = {
    "sft": ("sft", "pairs.path={pairs}", "epochs=1"),
    "dpo": ("dpo", "preferences.path={preferences}", "epochs=1"),
    "reward-model": ("reward-model", "preferences.path={preferences}", "epochs=1"),
}


@pytest.fixture(autouse=True)
def second_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like a GPU, but that attention is dense and no step is recorded."""
    monkeypatch.setenv("GROUPRL_KERNELS", "off")
    if not IS_REAL:
        monkeypatch.setitem(DEVICES, NAME, DeviceTraits(has_float64=True, compares=False))


def on_both(act: Callable[[str, Path], Path], folder: Path) -> tuple[Path, Path]:
    """What an action leaves that gets the device and a folder, on the CPU and on the device."""
    on_cpu = act("cpu", folder / "cpu")
    try:
        with pretended():
            return on_cpu, act(NAME, folder / "device")
    except StrayTensorError:
        with pretended(noted=True):  # the error names the line that made the tensor
            return on_cpu, act(NAME, folder / "again")


def assert_near(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Numbers of the first step but for rounding, which AdamW makes larger after an update."""
    noise = NOISE[ours["step"] > 1]
    for name, value in ours.items():
        if isinstance(value, float):
            most = 20 * noise if name in OF_A_TOKEN else noise
            assert theirs[name] == pytest.approx(value, rel=most, abs=most, nan_ok=True), name
        else:
            assert theirs[name] == value, name


def assert_near_weights(left: Path, right: Path) -> None:
    ours, theirs = (load_file(next(folder.glob("*.safetensors"))) for folder in (left, right))
    assert ours.keys() == theirs.keys()
    assert max(float((ours[weight].float() - theirs[weight].float()).abs().max()) for weight in ours) < NOISE[2]


def assert_equal_runs(on_cpu: Path, on_device: Path) -> None:
    """Tokens, texts and rewards to the bit; numbers but for rounding."""
    texts = "SELECT step, group_index, completion_index, token_ids, text, reward FROM completions ORDER BY 1, 2, 3"
    assert rollouts(on_cpu, texts) == rollouts(on_device, texts)
    for ours, theirs in zip(metrics(on_cpu), metrics(on_device), strict=True):
        assert_near(ours, theirs)
    assert checkpoint_names(on_cpu) == checkpoint_names(on_device)
    for name in checkpoint_names(on_cpu):
        assert_near_weights(on_cpu / "checkpoints" / name, on_device / "checkpoints" / name)


def rewards_of(name: str) -> list[WeightedReward]:
    if name != "process":
        return [LETTERS]

    def steps(**columns: Any) -> list[list[tuple[int, float]]]:
        return words(**columns)

    steps.in_process = True  # type: ignore[attr-defined]
    return [LETTERS, WeightedReward("steps", steps, per_step=True)]


def train(name: str, start_model: Path, device: str, folder: Path, *, resume: bool = False, **others: Any) -> Path:
    changes = {**SMALL, **RUNS[name], **others}
    changes["model"] = {"device": device, **changes.pop("model", {})}
    rows = ROWS
    if name == "prefix":
        rows = [{**row, "prompt": f"Answer with one word, and with nothing else. {row['prompt']}"} for row in ROWS]
    config = small_config(folder, **changes)
    return Trainer(start_model, rows, rewards_of(name), None, config).train(resume=resume).directory


@pytest.mark.parametrize("name", ROWS_OF_RUNS)
def test_a_run_computes_what_the_cpu_computes(
    name: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "mps":  # the device as Apple's: without float64
        monkeypatch.setitem(DEVICES, NAME, DEVICES["mps"])
        monkeypatch.setattr("pretend_device.refused_dtypes", {torch.float64})
    assert_equal_runs(*on_both(lambda device, folder: train(name, tiny, device, folder), tmp_path))


def test_the_demo_computes_what_the_cpu_computes(tmp_path: Path) -> None:
    small = ("steps=1", "rollout.problems_per_step=2", "rollout.group_size=4", "rollout.max_tokens=8")
    others = ("evaluation.problems=0", "learner.micro_batch_tokens=512", "model.threads=1")

    def demo(device: str, folder: Path) -> Path:
        trained = grouprl("train", "demo", *small, *others, f"model.device={device}", f"runs_dir={folder}")
        assert trained.code == 0, trained.text
        return folder / "demo"

    assert_equal_runs(*on_both(demo, tmp_path))


def test_a_run_goes_on_after_a_kill_and_its_checkpoint_is_that_of_the_cpu(tiny: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"steps": 2, "checkpoint": {"every": 1, "keep": 9}}
    with pretended():
        straight = train("grpo", tiny, NAME, tmp_path / "straight", **changes)
        killed = as_killed(straight, tmp_path / "killed" / "run", after=1)
        assert_same_run(straight, train("grpo", tiny, NAME, killed.parent, resume=True, **changes), 2)
    # Weights and moments go to the CPU and back.
    there, name = tmp_path / "there" / "run", "step-000002"
    save_again(straight, there, "model.device=cpu")
    assert_same_weights(straight / "checkpoints" / name, there / "checkpoints" / name)
    shutil.copy(straight / "config.yaml", there)
    with pretended():
        save_again(there, tmp_path / "back", f"model.device={NAME}")
    assert_same_weights(straight / "checkpoints" / name, tmp_path / "back" / "checkpoints" / name)


@pytest.mark.parametrize("name", COMMANDS)
def test_supervised_training_computes_what_the_cpu_computes(name: str, tiny: Path, tmp_path: Path) -> None:
    pairs = [{"prompt": f"What is {n}?", "completion": f"It is {n}."} for n in range(8)]
    files = {
        "pairs": write_rows(tmp_path / "pairs.jsonl", pairs),
        "preferences": write_rows(tmp_path / "preferences.jsonl", PAIRS),
    }

    def supervised(device: str, folder: Path) -> Path:
        words = [word.format(**files) for word in COMMANDS[name]]
        settings = (f"model.device={device}", "model.threads=1", "batch_pairs=4", f"runs_dir={folder}", "name=run")
        trained = grouprl(*words, f"model.path={tiny}", *settings)
        assert trained.code == 0, trained.text
        return folder / "run"

    on_cpu, on_device = on_both(supervised, tmp_path)
    for ours, theirs in zip(metrics(on_cpu), metrics(on_device), strict=True):
        assert_near(ours, theirs)
    assert_near_weights(on_cpu / "model", on_device / "model")


def test_bfloat16_by_autocast_rounds_as_on_the_cpu(tiny: Path, tmp_path: Path) -> None:
    """The same completions give the same update but for rounding, which would change some completions."""
    run = train("grpo", tiny, "cpu", tmp_path, model={"dtype": "bfloat16"}, steps=1)

    def update(device: str) -> Mapping[str, float]:
        config = load_config(RunConfig, [run / "config.yaml"], [f"model.device={device}"])
        opened = OpenedRun(config)
        learner, *_ = learner_before(run, opened, 1)
        return make_update(learner, recorded_groups(run, 1, opened.sampling)).metrics

    on_cpu = update("cpu")
    with pretended():
        on_device = update(NAME)
        sampled = metrics(train("grpo", tiny, NAME, tmp_path / "device", model={"dtype": "bfloat16"}, steps=1))
    for name in ("grad_norm", "entropy"):
        assert on_device[name] == pytest.approx(on_cpu[name], rel=0.02), name
    for found in (on_cpu, on_device, sampled[0]):
        assert found["sampler_learner_gap"] < 0.2
    with pretended(), torch.autocast(NAME, torch.bfloat16):
        assert torch.ones(1, 2, device=NAME).mm(torch.ones(2, 1, device=NAME)).dtype == torch.bfloat16


def test_a_reward_model_scores_as_on_the_cpu(tiny: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(tiny))
    save_model(
        new_reward_model(str(tiny), tokenizer, seed=0, device=torch.device("cpu")), tokenizer, tmp_path / "judge"
    )
    said = ["It is 1.", "No.", "It may be 2 or 3."]
    ids = [tokenizer(text)["input_ids"] for text in said]

    def scores(device: str) -> Any:
        judge = learned_reward(str(tmp_path / "judge"), policy=str(tiny), device=resolve_device(device))
        return judge(["What is 1?"] * 2 + ["Say 2 or 3."], said, ids)

    on_cpu = scores("cpu")
    with pretended():
        assert scores(NAME) == pytest.approx(on_cpu, abs=NOISE[0])
    assert len({*on_cpu}) == 3


@pytest.mark.slow
def test_episodes_are_those_of_the_cpu(tmp_path: Path) -> None:
    small = ("steps=1", "rollout.problems_per_step=2", "rollout.group_size=2", "rollout.max_tokens=60")
    others = ("evaluation.problems=0", "learner.micro_batch_tokens=512", "model.threads=1")

    def calculator(device: str, folder: Path) -> Path:
        trained = grouprl("train", "calculator", *small, *others, f"model.device={device}", f"runs_dir={folder}")
        assert trained.code == 0, trained.text
        return folder / "calculator"

    assert_equal_runs(*on_both(calculator, tmp_path))


@pytest.mark.slow
@pytest.mark.skipif(IS_REAL and torch.accelerator.device_count() < 2, reason="each rank needs a device of its own")
def test_two_ranks_are_one_process(tiny: Path, tmp_path: Path) -> None:
    """Tensors of a pretended device meet on the CPU, by gloo."""
    place = Place(tiny, tmp_path)
    alone = grouprl(*place.arguments("alone", model={"device": "cpu"}))
    start_of_program = ["-m", "grouprl"] if IS_REAL else [pretend_device.__file__]
    program = [*start_of_program, *place.arguments("ranks", model={"device": NAME})]
    ranks = ended(start(2, program), seconds=280.0)
    assert (alone.code, ranks.code) == (0, 0), ranks.out
    assert_almost_same_run(place.runs / "alone", place.runs / "ranks")


@pytest.mark.slow
def test_commands_answer_on_the_device_what_they_answer_on_the_cpu(tiny: Path, tmp_path: Path) -> None:
    """An evaluation and completions with their rewards; and a recorded step again, to the bit."""
    settings = ("evaluation.problems=1", "evaluation.samples=1", "rollout.max_tokens=8", "model.threads=1")
    answers: dict[str, list[str]] = {}
    with pretended():
        for device in ("cpu", NAME):
            words = ("abacus", *settings, "rollout.group_size=2", f"model.device={device}")
            said = [grouprl("eval", *words, "--json"), grouprl("sample", *words)]
            assert [each.code for each in said] == [0, 0], said
            answers[device] = [re.sub(f'"device": "{device}"', "", each.out) for each in said]
        run = train("grpo", tiny, NAME, tmp_path)
        replayed = grouprl("replay", run, 2)
    assert answers["cpu"] == answers[NAME]
    assert replayed.code == 0, replayed.text


@contextmanager
def counted() -> Iterator[tuple[Mapping[str, int], Mapping[str, int]]]:
    """Reads of the device by the host, and copies to it, by line of the package; torch warns of CUDA's reads alone."""
    if not IS_REAL:
        with pretended() as counts:
            yield counts.reads, counts.copies
        return
    reads: Counter[str] = Counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield reads, {}
        finally:
            torch.cuda.set_sync_debug_mode("default")
            for warning in caught:
                path = Path(warning.filename)
                if "synchronizing" in str(warning.message) and path.is_relative_to(SRC):
                    reads[f"{path.relative_to(SRC)}:{warning.lineno}"] += 1


def test_the_host_waits_seldom_and_ids_move_together(tiny: Path, tmp_path: Path) -> None:
    """Reads: at most one for a decode step of all rows, and 8 for an update with its metrics."""
    with counted() as (reads_by_line, copies_by_line):
        run = train("correction", tiny, NAME, tmp_path)
    calls, updates = 3, 4  # of the engine, one of them before the run; two steps of two minibatches

    def total(counted: Mapping[str, int], *places: str) -> int:
        return sum(count for line, count in counted.items() if line.startswith(places))

    reads = {line: count for line, count in reads_by_line.items() if not line.startswith("rollout/verify")}
    assert total(reads, "rollout/") <= 8 * calls, reads
    assert total(reads, "learner/", "terms/", "algorithms/") <= 8 * updates, reads
    assert total(reads, "rollout/", "learner/") > 4
    # Of all packs at once: for the reference's and the policy's log-probs, each update, and the group of step 1.
    copies = [count for line, count in copies_by_line.items() if line.startswith("learner/packs.py")]
    assert IS_REAL or min(copies) <= 2 + 2 + updates + 1 < max(copies), copies_by_line
    assert len(metrics(run)) == 2


@of_the_pretended
def test_a_device_that_computes_otherwise_is_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEVICES, NAME, DeviceTraits())
    with pretended():
        load_model(str(tiny), device=DEVICE)
        monkeypatch.setitem(pretend_device.factors, torch.ops.aten.mean.dim, 1.01)  # of its norms
        with pytest.raises(UserError, match=r"expected log-probs on pretend:0 within 0.0001 .*set model.device=cpu"):
            load_model(str(tiny), device=DEVICE)


@of_the_pretended
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpu", "expected auto, cpu, cuda, mps, xpu, pretend, or one of several such as cuda:1; did you mean 'cuda'"),
        ("meta", "expected auto, cpu"),
        ("mps:x", "expected auto, cpu"),
        ("", "expected auto, cpu"),
    ],
)
def test_a_device_that_torch_does_not_know_is_refused(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        check_device(name)


@pytest.mark.parametrize("name", ["auto", "cpu", "cuda:3", "mps", "xpu:1", NAME])
def test_a_configuration_may_name_the_device_of_another_machine(name: str) -> None:
    assert RunConfig(model={"device": name}).model.device == name


@of_the_pretended
def test_a_device_that_is_not_here_or_lacks_the_dtype_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended():
        assert resolve_device(NAME, "bfloat16") == torch.device(NAME)
        with pytest.raises(UserError, match=r"model\.device: expected a GPU 'pretend:1', found 1"):
            resolve_device(f"{NAME}:1")
        monkeypatch.setattr("pretend_device.refused_dtypes", {torch.bfloat16})
        with pytest.raises(UserError, match=r"model.dtype: expected a dtype that pretend multiplies, got bfloat16"):
            resolve_device(NAME, "bfloat16")
    with pytest.raises(UserError, match=r"model\.device: expected a GPU 'pretend', found 0"):
        resolve_device(NAME)


def test_one_table_names_the_devices() -> None:
    """No other file of the package has a case for CUDA by its name."""
    files = [path for path in SRC.rglob("*.py") if re.search(r"[\"']cuda\b", path.read_text())]
    assert files == [SRC / "forward" / "devices.py"]


def test_a_gpu_that_shares_the_memory_plans_with_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig(model={"device": "mps", "reference": "cpu"})
    step = step_of(config, 40)
    assert (step.device, step.recompute, step.dtype) == ("mps", True, "float32")
    assert total_memory("mps") == total_memory("cpu")
    shape = SHAPES["abacus"]
    plan = plan_memory(shape, networks_of(config), step)
    assert plan.networks.reference == plan.networks.policy  # which moving to the CPU would not free
    assert plan.rollout.copies == 0
    assert plan.sampling > plan.held + plan.rollout.drawing


@of_the_pretended
def test_a_tensor_of_the_cpu_is_named_by_the_line_that_made_it() -> None:
    with pretended(noted=True):
        mask = torch.ones(1, 2, dtype=torch.bool)
        stray = padded([[1.0, 2.0]], mask, torch.float32)
        with pytest.raises(StrayTensorError, match=r"one of \[1, 2\] on the CPU, made at learner/batch.py:\d+"):
            torch.ones(1, 2, device=NAME) + stray
