"""docs/scale.md: its Slurm script and its Ray job have options that torchrun has and settings that a run has."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import yaml
from torch.distributed.run import get_args_parser

from grouprl.config.run import RunConfig, load_config

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
(SCRIPT,) = re.findall(r"^```bash\n(#!/bin/bash\n.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_script_is_shell_whose_options_torchrun_and_grouprl_know() -> None:
    checked = subprocess.run(["bash", "-n"], input=SCRIPT, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    options = re.findall(r"^#SBATCH (--[a-z-]+(?:=[\w:]+)?)$", SCRIPT, re.MULTILINE)
    assert len(options) == SCRIPT.count("#SBATCH")
    assert "--ntasks-per-node=1" in options  # torchrun starts the ranks of a machine
    (line,) = re.findall(r"^srun (torchrun .*)$", SCRIPT.replace("\\\n", " "), re.MULTILINE)
    values = {"$SLURM_NNODES": "2", "$SLURM_JOB_ID": "7", "$head": "node1", "$resume": "--resume"}
    for name, value in values.items():
        assert name in line
        line = line.replace(name, value)
    given = get_args_parser().parse_args(shlex.split(line)[1:])
    assert (given.nnodes, given.nproc_per_node, given.module, given.training_script) == ("2", "8", True, "grouprl")
    verb, *words = given.training_script_args
    assert (verb, words[words.index("--name") + 1]) == ("train", "qwen-7b")
    config = load_config(RunConfig, [], [word for word in words if "=" in word])
    assert (config.distributed.shard, config.model.dtype, config.runs_dir) == (True, "bfloat16", "/shared/runs")


def test_the_ray_job_is_yaml_with_settings_of_a_run_and_a_gpu_for_each_sampler() -> None:
    (text,) = re.findall(r"^```yaml\n(apiVersion: ray.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    job = yaml.safe_load(text)["spec"]
    program, verb, *words = shlex.split(job["entrypoint"])
    assert (program, verb) == ("grouprl", "train")
    config = load_config(RunConfig, [], [word for word in words if "=" in word])
    (workers,) = job["rayClusterSpec"]["workerGroupSpecs"]
    (sampler,) = workers["template"]["spec"]["containers"]
    assert config.cluster.samplers == workers["replicas"] == workers["maxReplicas"]
    assert config.cluster.gpus == int(sampler["resources"]["limits"]["nvidia.com/gpu"])
    assert config.runs_dir.startswith(sampler["volumeMounts"][0]["mountPath"])
    (pinned,) = re.findall(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert job["rayClusterSpec"]["rayVersion"] == pinned
