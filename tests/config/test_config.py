import functools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from grouprl.algorithms.named import NAMED
from grouprl.algorithms.spec import Algorithm
from grouprl.config.checks import check_sections
from grouprl.config.command_line import config_of, reward_settings
from grouprl.config.run import (
    EngineConfig,
    LearnerConfig,
    LoraConfig,
    PolicyConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    ScoringConfig,
    TaskConfig,
    dump_config,
    load_config,
)
from grouprl.supervised.settings import (
    DpoConfig,
    PairsConfig,
    RewardModelConfig,
    SftConfig,
    SftLearnerConfig,
    SupervisedConfig,
)
from grouprl.tools.compare.settings import CompareConfig
from grouprl.types import Sampling, UserError
from variants import variant


def written(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def run(*overrides: str, files: tuple[Path, ...] = ()) -> RunConfig:
    return load_config(RunConfig, files, overrides)


def mistakes(*overrides: str, files: tuple[Path, ...] = (), kind: type[BaseModel] = RunConfig) -> list[str]:
    with pytest.raises(UserError) as caught:
        load_config(kind, files, overrides)
    head, *lines = str(caught.value).split("\n  ")
    assert head == "errors in the configuration:"
    return lines


# Values


def test_sampling_carries_every_field_of_the_rollout():
    rollout = RolloutConfig(
        max_tokens=5, temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, stop=("a", "b"), repetition_penalty=1.2
    )
    assert rollout.sampling == Sampling(
        max_tokens=5, temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, stop=("a", "b"), repetition_penalty=1.2
    )


def test_supervised_runs_have_their_own_learning_rate_whatever_else_is_set():
    assert load_config(SftConfig, [], ["learner.warmup_steps=10"]).learner.learning_rate == 3e-3
    assert run("learner.warmup_steps=10").learner.learning_rate == 1e-6


# Files and overrides


def test_later_files_change_earlier_ones_and_overrides_change_all(tmp_path: Path):
    first = written(tmp_path, "steps: 60\nrollout: {group_size: 4, max_tokens: 50}\n", "a.yaml")
    second = written(tmp_path, "rollout: {group_size: 6, top_p: 0.9}\n", "b.yaml")
    config = run("rollout.top_p=0.8", files=(first, second))
    assert config == RunConfig(steps=60, rollout=RolloutConfig(group_size=6, max_tokens=50, top_p=0.8))


@pytest.mark.parametrize(
    ("file", "override", "counts"),
    [
        ("epochs: 3", "steps=3", {"steps": 3, "epochs": None}),  # ran 3 epochs
        ("steps: 60", "epochs=2", {"steps": 100, "epochs": 2.0}),
        ("steps: 60", "epochs=null", {"steps": 60, "epochs": None}),
        ("{steps: 100, epochs: 3}", "steps=7", {"steps": 7, "epochs": None}),
        ("distributed: {exact: true}", "distributed.shard=true", {"distributed.exact": False}),
        (
            "rollout: {engine: {name: vllm, address: 'http://a:1'}}",
            "rollout.engine.addresses=['http://b:2']",
            {"rollout.engine.address": None, "rollout.engine.addresses": ("http://b:2",)},
        ),
        ("task: {name: jsonl, path: a.jsonl}", "task=b.jsonl", {"task.name": "jsonl", "task.path": "b.jsonl"}),
        ("new_model: {layers: 2}", "model=abacus", {"new_model": None, "model.path": "abacus"}),
        ("model: {path: a/b}", "new_model.layers=2", {"new_model.layers": 2, "model.path": "abacus"}),
        ("pairs: {count: 5, worked_share: 0.5}", "pairs.path=a.jsonl", {"pairs.count": 100_000}),
        (
            "preferences: {run: runs/a, per_group: 3}",
            "preferences.path=a.jsonl",
            {"preferences.run": None, "preferences.path": "a.jsonl", "preferences.per_group": 1},
        ),
        ("preferences: {path: a.jsonl}", "preferences.run=runs/a", {"preferences.path": None}),
    ],
)
def test_of_settings_that_exclude_each_other_the_later_counts(
    tmp_path: Path, file: str, override: str, counts: dict[str, object]
):
    of_sft = any(word in file + override for word in ("pairs", "new_model"))
    kind = DpoConfig if "preferences" in file else SftConfig if of_sft else RunConfig
    config = load_config(kind, [written(tmp_path, f"{file}\n")], [override])
    assert {key: functools.reduce(getattr, key.split("."), config) for key in counts} == counts


@pytest.mark.parametrize(
    ("kind", "file", "text"),
    [
        (RunConfig, "{steps: 3, epochs: 2}", "steps: expected none beside epochs, got 3, which would have no effect"),
        (SftConfig, "pairs: {path: a.jsonl, count: 5}", "pairs.count: expected none beside pairs.path, got 5"),
        (SftConfig, "{new_model: {layers: 2}, model: a/b}", "model.path: expected none beside new_model, got a/b"),
        (DpoConfig, "preferences: {path: a.jsonl, last_step: 5}", "last_step: expected none beside preferences.path"),
        (DpoConfig, "preferences: {path: a.jsonl, run: runs/a}", "expected either preferences.run or preferences.path"),
    ],
)
def test_settings_of_one_file_that_exclude_each_other_are_refused(
    tmp_path: Path, kind: type[BaseModel], file: str, text: str
):
    (line,) = mistakes(files=(written(tmp_path, f"{file}\n"),), kind=kind)
    assert text in line


def test_lists_are_replaced_whole_and_items_changed_by_number(tmp_path: Path):
    path = written(tmp_path, "rewards: [{name: correct}, {name: boxed, weight: 0.5}]\n")
    assert run("rewards.0.weight=2", files=(path,)).rewards == (
        RewardConfig(name="correct", weight=2.0),
        RewardConfig(name="boxed", weight=0.5),
    )
    assert run("rewards=[{name: brief}]", files=(path,)).rewards == (RewardConfig(name="brief"),)


def test_numbers_of_a_rate_and_names_that_other_yaml_readers_take_for_something_else():
    for text, rate in (("1e-6", 1e-6), ("1E+2", 100.0), ("2.", 2.0), (".5", 0.5), ("3", 3.0), ("1_000.5", 1000.5)):
        assert run(f"learner.learning_rate={text}").learner.learning_rate == rate
    for text in ("no", "on", "2024-01-01", "1.5.2", "007", "12e", "0x1f", "7", "1.5"):
        assert run(f"name={text}").name == text
    assert run("name='7'").name == "7"
    assert run("task.path=", "task.difficulty=~") == RunConfig()  # null is the absence of a choice


def test_a_setting_may_stand_without_its_section():
    for short, whole in (("threads=3", "model.threads=3"), ("scoring.workers=2", "rollout.scoring.workers=2")):
        assert run(short) == run(whole)
    rollout, scoring = RolloutConfig(group_size=4), ScoringConfig(workers=2)
    config = RunConfig(threads=2, model=PolicyConfig(path="x"), scoring=scoring, rollout=rollout)
    assert config.model == PolicyConfig(path="x", threads=2)
    assert config.rollout == RolloutConfig(group_size=4, scoring=scoring)


# Sections by name


@pytest.mark.parametrize("overrides", [("algorithm=dapo",), ("algorithm.name=dapo",), ("algorithm={name: dapo}",)])
def test_a_section_by_its_name(overrides: tuple[str, ...]):
    assert run(*overrides).algorithm == NAMED["dapo"]


@pytest.mark.parametrize("name", ["algorithm=dapo", "algorithm.name=dapo"])
def test_changes_to_a_named_section_hold_in_any_order(name: str):
    expected = variant("dapo", kl_coef=0.5)
    assert run(name, "algorithm.kl_coef=0.5").algorithm == expected
    assert run("algorithm.kl_coef=0.5", name).algorithm == expected


def test_naming_a_section_again_starts_it_anew(tmp_path: Path):
    path = written(tmp_path, "algorithm: {name: dapo, clip_low: 0.1}\n")
    assert run("algorithm.passes=2", files=(path,)).algorithm.objective.clip_low == 0.1
    assert run("algorithm=grpo", files=(path,)).algorithm == Algorithm()


@pytest.mark.parametrize(
    "key", ["model.path", "runs_dir", "model.chat_template", "task.path", "rewards.0.path", "task.arguments.test_path"]
)
def test_the_home_folder_is_read_in_every_place(key: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/anna")
    rewards = [] if key != "rewards.0.path" else ["rewards=[{name: f, path: x.py}]"]
    found: Any = load_config(RunConfig, [], [*rewards, f"{key}=~/here/x.py"])
    for part in key.split("."):
        found = (
            found[int(part)] if part.isdecimal() else found[part] if isinstance(found, dict) else getattr(found, part)
        )
    assert found == "/home/anna/here/x.py"


# A value for a whole section


@pytest.mark.parametrize(
    ("short", "long"),
    [("model=abc", "model.path=abc"), ("model=7", "model.path=7"), ("task=countdown", "task.name=countdown")],
)
def test_a_model_and_a_task_by_name_keep_their_other_settings_in_any_order(tmp_path: Path, short: str, long: str):
    others = ("model.dtype=bfloat16", "model.threads=3", "task.difficulty=2", "task.arguments={steps: 2}")
    expected = run(long, *others)
    assert expected != run(*others)
    assert run(short, *others) == run(*others, short) == expected
    assert run(f"{long}x", *others, short) == run(f"{short}x", *others, long) == expected  # the last counts
    file = written(tmp_path, short.replace("=", ": ") + "\n")
    assert run(*others[:2], "task.difficulty=2", "task.arguments.steps=2", files=(file,)) == expected


@pytest.mark.parametrize("kind", [SftConfig, DpoConfig, RewardModelConfig])
def test_a_model_by_name_in_supervised_training(kind: type[SupervisedConfig]):
    given = ["model.dtype=bfloat16", "model=abc", *(["preferences.run=a"] if kind is not SftConfig else [])]
    config = load_config(kind, [], given)
    assert (config.model.path, config.model.dtype) == ("abc", "bfloat16")


@pytest.mark.parametrize(
    ("kind", "scalar", "deeper", "remedy"),
    [
        (RunConfig, "learner=1e-5", "learner.warmup_steps=0", "1e-05; did you mean learner.learning_rate=1e-05?"),
        (RunConfig, "rollout=8", "rollout.top_k=3", "8; did you mean rollout.problems_per_step=8?"),
        (RunConfig, "model.lora=0.5", "model.lora.rank=4", "0.5; write model.lora.rank=..., for example"),
        (RunConfig, "rollout.scoring=3", "rollout.scoring.seconds=2", "3; did you mean rollout.scoring.workers=3?"),
        (RunConfig, "task.arguments=5", "task.arguments.depth=2", "5; write task.arguments.NAME=..., for example"),
        (RunConfig, "task.arguments.a=5", "task.arguments.a.b=2", "5; write task.arguments.a.NAME=..."),
        (RunConfig, "checkpoint=[1]", "checkpoint.keep=2", "[1]; write checkpoint.every=..., for example"),
        (RunConfig, "algorithm=", "algorithm.kl_coef=0", "None; write algorithm.name=..., for example"),
        (RunConfig, "model=", "model.dtype=float32", "None; write model.path=..., for example"),
        (SftConfig, "pairs=a.jsonl", "pairs.count=3", "'a.jsonl'; did you mean pairs.path=a.jsonl?"),
        (SftConfig, "new_model=64", "new_model.layers=2", "64; did you mean new_model.hidden_size=64?"),
        (DpoConfig, "preferences=runs/a", "preferences.per_group=2", "did you mean preferences.run=runs/a?"),
        (CompareConfig, "variants=5", "variants={a: [steps=1], b: [steps=2]}", "5; write variants.NAME=..."),
    ],
)
def test_a_value_in_the_place_of_a_section_is_never_dropped(
    tmp_path: Path, kind: type[BaseModel], scalar: str, deeper: str, remedy: str
):
    for changes in ((scalar, deeper), (deeper, scalar), (scalar,)):
        if len(changes) == 1 and scalar == "task.arguments.a=5":
            continue  # alone, it is an argument of the task
        (line, *_) = mistakes(*changes, kind=kind)
        assert line.startswith(f"override {scalar}: ")
        assert "expected a section with keys of its own, got " in line
        assert remedy in line
    key, _, value = scalar.partition("=")
    if "." not in key:
        file = written(tmp_path, f"{key}: {value}\n")
        (line, *_) = mistakes(deeper, files=(file,), kind=kind)
        assert line.startswith(f"{file}:1: ")
        assert remedy in line


# Mistakes


def test_every_mistake_is_told_at_once_with_its_place(tmp_path: Path):
    path = written(
        tmp_path,
        "rollout: {group_size: 0, group_sise: 8}\n"
        "learner: {betas: [0.9], learning_rate: fast}\n"
        "rewards: [{name: a}, {weight: 2}]\n",
    )
    told = mistakes("model.dtype=fp16", "top_p=0.5", "algorithm.kl=k9", "algorithm.clip_low=2", files=(path,))
    assert sorted(told) == sorted(
        [
            f"{path}:1: rollout.group_size: expected greater than or equal to 1, got 0 (completions of one problem)",
            f"{path}:1: rollout.group_sise: unknown key; did you mean rollout.group_size?",
            f"{path}:2: learner.betas.1: expected a value, got nothing (decay of AdamW's two moments)",
            f"{path}:2: learner.learning_rate: expected a valid number, got 'fast' (learning rate after the warm-up)",
            f"{path}:3: rewards.1.name: expected a value, got nothing (name of the reward in the record)",
            "override model.dtype=fp16: model.dtype: expected 'float32', 'bfloat16' or 'auto', got 'fp16' "
            "(dtype of the computation; auto = bfloat16 if its products are faster)",
            "override top_p=0.5: top_p: unknown key; did you mean rollout.top_p?",
            "override algorithm.kl=k9: algorithm.kl_estimator: expected one of k1, k2, k3, got 'k9'",
            "override algorithm.clip_low=2: algorithm.clip_low: expected less than 1, got 2 "
            "(lower clip range: ratio >= 1 - clip_low)",
        ]
    )


def test_a_mistake_is_laid_to_whoever_wrote_it_last(tmp_path: Path):
    path = written(tmp_path, "steps: 0\nrewards: [{name: a}]\n")
    assert mistakes("steps=-1", "rewards.1.weight=2", files=(path,)) == [
        "override steps=-1: steps: expected greater than or equal to 1, got -1 "
        "(steps of training, each with one batch of completions)",
        "override rewards.1.weight=2: rewards: expected a list (KEY.0=... changes an existing item), "
        "got {'1': {'weight': 2}} (one entry for each reward function)",
    ]


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("algorithm.klcoef=0", "unknown key; did you mean algorithm.kl_coef?"),
        ("rewards=[{name: a, nme: b}]", "unknown key; did you mean rewards.0.name?"),
        ("xyz=1", "unknown key; expected one of name, runs_dir, seed"),
        ("checkpoint.xyz=1", "unknown key; expected one of every, keep"),
        ("steps=yes", "expected a valid integer, got 'yes'"),
        ("steps=true", "expected a valid integer, got True"),
        ("steps=1.5", "expected a valid integer, got 1.5"),
        ("learner.learning_rate=.nan", "expected a finite number, got nan"),
        ("algorithm.kl_coef=.inf", "expected a finite number, got inf"),
        ("algorithm.passes=true", "expected a valid integer, got True"),
        ("algorithm.credit=[step]", "expected one of completion, step, token, got ['step']"),
        (
            "algorithm.surrogate={name: clip}",
            "expected one of clip, cispo, plain, sapo, gmpo, vespo, got {'name': 'clip'}",
        ),
        ("algorithm.kl_target=low", "expected a valid number, got 'low'"),
        ("rollout.temperature=0", "expected greater than 0, got 0"),
        ("rollout.min_p=1", "expected less than 1, got 1"),
        ("rollout.stop=['']", "expected at least 1 character, got ''"),
        ("rollout=8", "expected a section with keys of its own, got 8"),
        ("rewards.0.weight=2", "expected a list (KEY.0=... changes an existing item), got {'0': {'weight': 2}}"),
        ("rewards=[{name: a}, {name: a}]", "expected every name once, got a, a"),
        ("name=../x", "expected another form"),
        ("model.device=gpu", "did you mean 'cuda'?"),
        ("checkpoint.keep=0", "expected greater than or equal to 1, got 0"),
        ("model.lora.rank=0", "expected greater than or equal to 1, got 0"),
        ("model.lora.targets=[]", "expected at least 1 item"),
        ("model.lora.targets=3", "expected a list"),
        ("model.lora.dropout=0.1", "unknown key"),
        ("model.device=metal", "expected auto, cpu, cuda, mps, xpu"),
        ("algorithm=grop", f"expected one of {', '.join(sorted(NAMED))}, got 'grop': did you mean 'grpo'?"),
        ("temperature=0.5", "unknown key; did you mean rollout.temperature?"),
        ("rollout.engine.regex=a", "unknown key; did you mean rollout.regex?"),
        ("rollout.engine.repetition_penalty=1.1", "unknown key; did you mean rollout.repetition_penalty?"),
        ("rollout.engine={top_p: 0.5}", "unknown key; did you mean rollout.top_p?"),
        ("algorithm=GRPO", "did you mean 'grpo'?"),
        ("algorithm=dr-grpo", "did you mean 'dr_grpo'?"),
        ("algorithm.surrogate=CISPO", "did you mean 'cispo'?"),
        ("algorithm.aggregate=token-mean", "did you mean 'token_mean'?"),
        ("algorithm.Clip-High=0.3", "did you mean algorithm.clip_high?"),
        ("model.dtype=bf16", "did you mean 'bfloat16'?"),
        ("model.dtype=Float32", "did you mean 'float32'?"),
        ("trackers=WandB", "did you mean 'wandb'?"),
        ("rollout.curriculum.order=Edge", "did you mean 'edge'?"),
        ("evaluation.split=Test", "did you mean 'test'?"),
        ("rollout.group-size=4", "did you mean rollout.group_size?"),
        ("learning-rate=1e-5", "did you mean learner.learning_rate?"),
        ("task.Format=think", "did you mean task.format?"),
        ("rollout.engine.token_env=A", "rollout.engine.token_env: expected name=vllm with it, got native"),
        ("rollout.engine.name=sglang", "rollout.engine.name: expected 'native' or 'vllm', got 'sglang'"),
        ("rollout.engine=vllm", "did you mean rollout.engine.name=vllm?"),
    ],
)
def test_what_makes_no_sense_is_refused(override: str, text: str):
    told = mistakes(override)
    assert told[0].startswith(f"override {override}: ")
    assert text in told[0]


def test_files_and_overrides_that_cannot_be_read_are_told_together(tmp_path: Path):
    files = (
        tmp_path / "missing.yaml",
        tmp_path,
        written(tmp_path, "", "empty.yaml"),
        written(tmp_path, "# nothing here\n", "comment.yaml"),
        written(tmp_path, "- 1\n", "list.yaml"),
        written(tmp_path, "seed: 1\nmodel:\n  path: a\n  path: b\n", "twice.yaml"),
        written(tmp_path, "steps: [1\n", "broken.yaml"),
        written(tmp_path, "a: &x {b: *x}\n", "alias.yaml"),
        written(tmp_path, "name: !!python/name:os.system\n", "tag.yaml"),
        written(tmp_path, "name: !!timestamp 2024-01-01\n", "date.yaml"),
        written(tmp_path, "? [a]\n: b\n", "key.yaml"),
        tmp_path / "latin.yaml",
    )
    files[-1].write_bytes("name: café".encode("latin-1"))
    texts = (
        "expected a YAML file, got 'No such file or directory'; check the path",
        "expected a file, got a folder, a pipe or a device",
        "expected lines of KEY: VALUE, got an empty file",
        "expected lines of KEY: VALUE, got an empty file",
        "expected lines of KEY: VALUE, got [1]",
        "expected every key once, got 'path' again",
        "expected ',' or ']'",
        "expected the value itself, got an alias",
        "could not determine a constructor for the tag",
        "could not determine a constructor for the tag",
        "expected text as a key, got a list or mapping",
        "",
    )
    told = mistakes("steps", "=1", "a..b=1", "a={", files=files)
    for path, text, line in zip(files, texts, told[: len(files)], strict=True):
        assert line.startswith(f"{path}: ")
        assert text in line
    # Overrides are read by the depth of their keys.
    assert [line.partition(": ")[0] for line in told[len(files) :]] == [
        "override steps",
        "override =1",
        "override a={",
        "override a..b=1",
    ]
    assert "again in line 4" in told[5]


def test_an_adapter_is_asked_for_by_any_of_its_settings(tmp_path: Path):
    assert run().model.lora is None
    assert run("model.lora={}").model.lora == LoraConfig()
    assert run("model.lora.rank=8").model.lora == LoraConfig(rank=8, alpha=32, targets=("all-linear",))
    assert run("model.lora=null", files=(written(tmp_path, "model: {lora: {rank: 8}}\n"),)).model.lora is None
    listed = run("model.lora.targets=[q_proj, v_proj]").model.lora
    assert listed is not None
    assert listed.targets == ("q_proj", "v_proj")
    assert run("model.lora.targets=q_proj").model.lora == LoraConfig(targets=("q_proj",))


# Round trip

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1) | st.sampled_from(
    ["no", "1e-6", "~", "007", "<<"]
)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]*", fullmatch=True)
rates = st.floats(0, 1e300)
fractions = st.floats(0, 1, exclude_max=True)
seeds = st.integers(0, 2**63 - 1)

loras = st.builds(LoraConfig, rank=st.integers(1, 2**16), targets=texts | st.lists(texts, min_size=1))
tasks = st.builds(TaskConfig, name=texts, path=st.none() | texts, system_prompt=st.none() | texts, seed=seeds)
learners = {"learning_rate": rates, "betas": st.tuples(fractions, fractions), "weight_decay": rates}
runs = st.builds(
    RunConfig,
    name=names,
    seed=seeds,
    model=st.builds(PolicyConfig, path=texts, device=st.sampled_from(["auto", "cuda:12"]), lora=st.none() | loras),
    task=tasks,
    rewards=st.lists(st.builds(RewardConfig, name=texts, weight=st.floats(-1e9, 1e9)), unique_by=lambda r: r.name),
    algorithm=st.builds(variant, name=texts, clip_low=fractions, kl_coef=rates, passes=st.integers(1)),
    rollout=st.builds(RolloutConfig, group_size=st.integers(2, 999), stop=st.lists(texts, max_size=3), min_p=fractions),
    learner=st.builds(LearnerConfig, **learners),
)
sfts = st.builds(
    SftConfig,
    name=names,
    task=tasks,
    pairs=st.builds(PairsConfig, path=texts) | st.builds(PairsConfig, worked_share=st.floats(0, 1)),
    learner=st.builds(SftLearnerConfig, **learners),
    out=st.none() | texts,
)


@settings(max_examples=40)
@given(config=runs | sfts)
def test_what_is_written_reads_back_equal(tmp_path_factory: pytest.TempPathFactory, config: RunConfig | SftConfig):
    path = written(tmp_path_factory.getbasetemp(), dump_config(config), "dumped.yaml")
    assert load_config(type(config), [path], []) == config


# The engine


VLLM = ("rollout.engine.name=vllm", "rollout.engine.address=http://127.0.0.1:8000")


def test_an_engine_is_native_or_a_server():
    assert run().rollout.engine == EngineConfig()
    chosen = run(*VLLM, "rollout.engine.token_env=VLLM_API_KEY").rollout.engine
    assert chosen == EngineConfig(name="vllm", address="http://127.0.0.1:8000", token_env="VLLM_API_KEY")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((VLLM[0], "rollout.engine.address=127.0.0.1:8000"), "rollout.engine.address: expected another form"),
        ((VLLM[0], "rollout.engine.address=http://me:word@b"), "such as http://127.0.0.1:8000"),
        ((VLLM[0], "rollout.engine.address=http://b/v1"), "such as http://127.0.0.1:8000"),
        ((*VLLM, "rollout.engine.token_env=hf-s3cret"), "rollout.engine.token_env: expected the NAME of an"),
        (VLLM[1:], "rollout.engine.address: expected name=vllm with it, got native"),
        ((*VLLM, "rollout.engine.seconds=0"), "rollout.engine.seconds: expected greater than 0"),
    ],
)
def test_an_engine_that_cannot_be_is_refused_and_no_secret_is_shown(changes: tuple[str, ...], expected: str):
    (line,) = mistakes(*changes)
    assert expected in line
    assert "s3cret" not in line.partition(": ")[2]  # before it stands the override, as the user wrote it


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (VLLM[:1], r"rollout.engine.address: expected the address of the server .* got none"),
        ((*VLLM, "cluster.backend=ray"), r"rollout.engine.name: expected native with cluster.backend=ray, got vllm"),
        ((*VLLM, "rollout.min_p=0.1", "rollout.top_p=0.9"), r"rollout.min_p: expected 0 with top_p below 1 and engine"),
        ((*VLLM, "rollout.min_p=0.1", "rollout.top_k=5"), ""),  # in one order both engines sample alike
        (("rollout.min_p=0.1", "rollout.top_p=0.9"), ""),
    ],
)
def test_what_does_not_go_with_a_server_is_refused(changes: tuple[str, ...], message: str):
    with pytest.raises(UserError, match=message) if message else nullcontext():
        check_sections(run(*changes))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("out=1/my.py:size", ("out=1/my.py", "size", 1.0)),
        ("lr=1e-5/a=b/my.py:size=0.5", ("lr=1e-5/a=b/my.py", "size", 0.5)),
        ("correct_answer=0.5", (None, "correct_answer", 0.5)),
        ("lr=1e-5/my.py", "add the name of the function"),
        ("good.py::f", "write good.py:f$"),
        ("my.py:size=x", "expected a number after '=', such as 0.5, got 'x'"),
    ],
)
def test_a_folder_of_a_reward_may_have_an_equals_sign(text: str, expected: tuple[str, str, float] | str) -> None:
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            reward_settings([text])
    else:
        [reward] = reward_settings([text]) or []
        assert (reward["path"], reward["name"], reward["weight"]) == expected


def test_a_file_may_stand_in_a_folder_with_an_equals_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=1e-5").mkdir()
    (tmp_path / "lr=1e-5" / "run.yaml").write_text("steps: 7\n")
    (tmp_path / "lr=1e-5" / "rows.jsonl").write_text("")
    config = config_of(RunConfig, ["lr=1e-5/run.yaml", "task.path=date=2026/x.jsonl"], {"model.path": "lr=1e-5/model"})
    assert (config.steps, config.task.path, config.model.path) == (7, "date=2026/x.jsonl", "lr=1e-5/model")
    assert config_of(RunConfig, [], {"task.name": "lr=1e-5/rows.jsonl"}).task.path == "lr=1e-5/rows.jsonl"


def test_nothing_given_is_the_default_run():
    assert run() == RunConfig()
    assert run().algorithm == Algorithm()


def test_a_configuration_does_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        RunConfig().steps = 3


def test_python_users_are_checked_too():
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        RolloutConfig(group_size=0)
    with pytest.raises(UserError, match="every name once"):
        RunConfig(rewards=(RewardConfig(name="a"), RewardConfig(name="a")))
