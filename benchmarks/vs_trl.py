"""GroupRL beside TRL: seconds and memory of the same GRPO step, and that both compute the same gradient.

    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/vs_trl.py [--shape small] [--dtype float32] [--json PATH]
    ... --only exactness     the same loss and gradient from the same completions, asserted
    ... --only tune          every setting of TRL that was tried
    ... --only grouprl       one measurement of GroupRL, as JSON

16 problems x 8 completions of up to 96 tokens, one thread (`shapes.py`, `trl_peer.py`); every measurement is a process
of its own. CPU seconds hold where the core is shared with something else; wall clock does not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from floor import optimizer_floor, step_floors
from shapes import Shape, add_options, brief, save, shape_of
from speed_work import CPU, requests
from torch import Tensor
from transformers import LlamaForCausalLM as LlamaForCausalLM  # counted as an import, because it is found here
from transformers import PreTrainedModel
from trl_peer import (
    PARTS,
    VARIANTS,
    Meter,
    even_share,
    grpo_config,
    memory_mib,
    missing_trl,
    require_trl,
    summary,
)

from grouprl.algorithms import kept_groups
from grouprl.algorithms.advantages import GroupAdvantage
from grouprl.algorithms.filters import Filter
from grouprl.algorithms.kl import Kl
from grouprl.algorithms.spec import Algorithm
from grouprl.config.run import LearnerConfig
from grouprl.learner import Learner, Optimizer, assign_credit, make_batch
from grouprl.models.load import frozen_copy, load_model, load_tokenizer
from grouprl.rollout import NativeEngine
from grouprl.types import Group, RewardOutcome, Sampling

HERE = Path(__file__).parent
EXACT = 1e-5
# Name, weight of the KL, whether half of the groups carry no signal.
CASES = (("with KL", 0.04, False), ("without KL", 0.0, False), ("without KL, half of the groups silent", 0.0, True))


def sampled(engine: NativeEngine, shape: Shape, *, step: int, share: bool = True) -> list[Group]:
    """A group for each of the prompts; another step, other completions."""
    return engine.generate(requests(shape, f"step {step}", share=share), Sampling(shape.max_tokens))


def judged(group: Group, *, silent_half: bool) -> list[RewardOutcome]:
    ids = [completion.token_ids for completion in group.completions]
    rewards = even_share(ids, [int(group.problem.id)] * len(ids), silent_half=silent_half)
    return [RewardOutcome(reward, {"even": reward}) for reward in rewards]


def learner_of(
    policy: PreTrainedModel, reference: PreTrainedModel | None, optimizer: Optimizer, arguments: argparse.Namespace
) -> Learner:
    """TRL's advantages (sample std, 1e-4) and the paper's loss; without a KL, groups without signal leave the batch."""
    beta = arguments.beta
    algorithm = Algorithm(
        advantage=GroupAdvantage(std="sample", eps=1e-4),
        kl=Kl(kl_coef=beta) if beta else None,
        filter=None if beta else Filter(drop_equal=True),
    )
    return Learner(
        policy=policy,
        reference=reference,
        optimizer=optimizer,
        algorithm=algorithm,
        device=CPU,
        dtype=arguments.dtype,
        micro_batch_tokens=arguments.micro_batch_tokens,
    )


def learn(
    learner: Learner, groups: Sequence[Group], meter: Meter, *, max_tokens: int, silent_half: bool
) -> dict[str, float]:
    """Rewards, reference, advantages and update; metrics of the update."""
    algorithm = learner.algorithm
    outcomes = [judged(group, silent_half=silent_half) for group in groups]
    kept = kept_groups(
        [[outcome.total for outcome in row] for row in outcomes], drop_equal=algorithm.group_filter.drop_equal
    )
    batch = make_batch(list(compress(groups, kept)), Sampling(max_tokens))
    before = meter.timed("reference", learner.evaluate)(batch)
    flat = [outcome for row in compress(outcomes, kept) for outcome in row]
    credit = assign_credit(flat, {"even": 1.0}, batch, before, algorithm, kl_coef=algorithm.kl_coef)
    return meter.timed("learn", learner.learn)(batch, credit, before, step=2).metrics


class TimedOptimizer(Optimizer):
    """Counts its updates as the part "optimizer"."""

    def __init__(self, model: PreTrainedModel, meter: Meter) -> None:
        super().__init__(model, LearnerConfig(learning_rate=1e-6))
        self._meter = meter

    def step(self) -> float:
        """The gradient's norm."""
        return float(self._meter.timed("optimizer", super().step)())


def measure_grouprl(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds and memory of GroupRL's steps. learn includes its optimizer: clipping, AdamW, clearing the gradient."""
    imports_mib = memory_mib("VmRSS")
    torch.set_num_threads(arguments.threads)
    shape = shape_of(arguments)
    with tempfile.TemporaryDirectory() as folder:
        save(shape, Path(folder))
        policy, tokenizer = load_model(folder, device=CPU), load_tokenizer(folder)
    engine = NativeEngine(policy, tokenizer, seed=0, max_rows=256, dtype=arguments.dtype)
    meter = Meter()
    reference = frozen_copy(policy) if arguments.beta else None
    learner = learner_of(policy, reference, TimedOptimizer(policy, meter), arguments)
    share = not arguments.unshared
    with nullcontext() if share else patch("grouprl.learner.runner.shared_tokens", lambda prompts: 0):
        for step in range(1 + arguments.steps):
            of_step = brief(shape) if arguments.brief_warm_up and step == 0 else shape
            groups = meter.timed("generation", sampled)(engine, of_step, step=step, share=share)
            meter.count(sum(len(completion) for group in groups for completion in group.completions))
            learn(learner, groups, meter, max_tokens=of_step.max_tokens, silent_half=arguments.silent_half)
            engine.load_weights(step + 1)
            meter.stop()
    lengths = [len(completion) for group in groups for completion in group.completions]
    floors = step_floors(
        shape, lengths, arguments.dtype, reference=bool(arguments.beta), learned=0.5 if arguments.silent_half else 1.0
    )
    floors_of = {"floor": sum(floors.values()), "floors": floors | {"optimizer": optimizer_floor(shape)}}
    return summary(meter, imports_mib) | floors_of


class KeptGradient(Optimizer):
    """Keeps the gradient in the place of using it."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model, LearnerConfig())
        self._model = model

    def step(self) -> float:
        """The gradient's norm."""
        self.gradient = flat_gradient(self._model)
        return float(self.gradient.norm())


def exactness(arguments: argparse.Namespace) -> dict[str, float]:
    """The same completions through both: how far apart loss and gradient are.

    TRL is given token ids and the sampler's log-probs; rewards, advantages, padding, reference and loss are its own.
    Policy and reference are moved away from the sampler, so that the KL has something to do; with one update on a batch
    both libraries take the policy itself for the old one.
    """
    from datasets import Dataset
    from trl import GRPOTrainer

    shape = shape_of(arguments)
    with tempfile.TemporaryDirectory() as folder:
        save(shape, Path(folder))
        sampler, tokenizer = load_model(folder, device=CPU), load_tokenizer(folder)
        groups = sampled(NativeEngine(sampler, tokenizer, seed=0, max_rows=256), shape, step=0)
        rows = [(group, completion) for group in groups for completion in group.completions]
        data = [{"prompt": group.problem.prompt, "number": int(group.problem.id)} for group, _ in rows]
        settings = VARIANTS["float32"]["tuned"]
        if arguments.smoke:
            settings = replace(settings, micro_batch=len(rows))
        trainer = GRPOTrainer(
            model=folder,
            reward_funcs=lambda completion_ids, number, **_: even_share(completion_ids, number, silent_half=False),
            args=grpo_config(
                settings,
                completions=len(rows),
                beta=0.04,
                num_generations=shape.group_size,
                max_completion_length=shape.max_tokens,
            ),
            train_dataset=Dataset.from_list(data),
            rollout_func=lambda asked, _: {
                "prompt_ids": [list(group.prompt_ids) for group, _ in rows],
                "completion_ids": [list(completion.token_ids) for _, completion in rows],
                "logprobs": [list(completion.logprobs) for _, completion in rows],
            },
        )
    policy, reference = shaken(sampler, seed=1).requires_grad_(True), shaken(sampler, seed=2)
    trainer.model.load_state_dict(policy.state_dict())
    trainer.ref_model.load_state_dict(reference.state_dict())
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    made = trainer._generate_and_score_completions(data)
    theirs_loss = 0.0
    for first in range(0, len(rows), settings.micro_batch):
        rows_of = slice(first, first + settings.micro_batch)
        loss = trainer._compute_loss(trainer.model, {k: v[rows_of] if v.dim() else v for k, v in made.items()})
        loss.backward()
        theirs_loss += float(loss.detach())
    kept, theirs = KeptGradient(policy), flat_gradient(trainer.model)
    learner = learner_of(policy, reference, kept, arguments)
    figures = learn(learner, groups, Meter(), max_tokens=shape.max_tokens, silent_half=False)
    norm = float(theirs.norm())
    return {
        "loss": figures["loss"],
        "loss_of_trl": theirs_loss,
        "loss_gap": abs(figures["loss"] - theirs_loss) / norm,
        "gradient_norm": norm,
        "gradient_gap": float((kept.gradient - theirs).norm()) / norm,
        "clipped": figures["clip_low_fraction"] + figures["clip_high_fraction"],
        "kl": figures["kl"],
    }


def flat_gradient(model: PreTrainedModel) -> Tensor:
    return torch.cat([w.grad.double().flatten() for _, w in sorted(model.named_parameters())])


@torch.no_grad()
def shaken(model: PreTrainedModel, *, seed: int, share: float = 0.1) -> PreTrainedModel:
    """A frozen copy, its weights moved by this share of their spread."""
    copy, generator = frozen_copy(model), torch.Generator().manual_seed(seed)
    for weight in copy.parameters():
        weight += share * weight.std() * torch.randn(weight.shape, generator=generator)
    return copy


def child(script: str, *words: str) -> dict[str, Any]:
    """The JSON that ends what a process of its own prints."""
    run = subprocess.run([sys.executable, str(HERE / script), *words], capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{script} {' '.join(words)}\n{run.stdout[-2000:]}\n{run.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(run.stdout.strip().splitlines()[-1])
    return found


def row(name: str, found: dict[str, Any], against: dict[str, Any] | None = None) -> str:
    parts = "".join(f"{found['parts'][part][1]:>11.2f}" for part in PARTS)
    ratio = f"{found['cpu'] / against['cpu']:>8.2f}x" if against else " " * 9
    return (
        f"  {name:<22}{found['wall']:>8.2f}{found['cpu']:>8.2f}{ratio}{parts}{found['tokens']:>9.0f}"
        f"{found['above_imports_mib']:>9.0f}"
    )


HEADING = (
    f"  {'':<22}{'wall s':>8}{'CPU s':>8}{'':>9}"
    + "".join(f"{part:>11}" for part in PARTS)
    + f"{'tokens':>9}{'MiB':>9}"
)


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every case, each measured in turn; ratios are of CPU seconds, GroupRL = 1."""
    common = ["--shape", arguments.shape, "--dtype", arguments.dtype, "--steps", str(arguments.steps)]
    packs = ["--micro-batch-tokens", str(arguments.micro_batch_tokens)]
    names = [name for name in ("default", "tuned", "weights") if name in VARIANTS[arguments.dtype]]
    found: dict[str, Any] = {}
    for case, beta, silent_half in CASES:
        words = [*common, "--beta", str(beta), *(["--silent-half"] if silent_half else [])]
        print(f"{case}\n{HEADING}", flush=True)
        ours = child("vs_trl.py", "--only", "grouprl", *packs, *words)
        found[case] = {"GroupRL": ours}
        print(row("GroupRL", ours, ours), flush=True)
        print(f"  {'floor':<22}{'':>8}{ours['floor']:>8.2f}   reached to {ours['floor'] / ours['cpu']:.0%}", flush=True)
        for name in names:
            found[case][name] = child("trl_peer.py", "--variant", name, *words)
            print(row(f"TRL {name}", found[case][name], ours), flush=True)
    return found


def tune(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every setting of TRL."""
    print(HEADING)
    found = {}
    for name in VARIANTS[arguments.dtype]:
        words = ("--shape", arguments.shape, "--dtype", arguments.dtype, "--steps", str(arguments.steps))
        found[name] = child("trl_peer.py", "--variant", name, *words)
        print(row(name, found[name]), flush=True)
    return found


def checked(arguments: argparse.Namespace) -> dict[str, float]:
    found = exactness(arguments)
    print("".join(f"{name} {value:.6g}\n" for name, value in found.items()), end="")
    assert found["loss_gap"] < EXACT, found
    assert found["gradient_gap"] < EXACT, found
    return found


def smoke(arguments: argparse.Namespace) -> None:
    """One step of GroupRL in each case, and where TRL is installed the same gradient in both."""
    arguments.steps = 1
    for case, arguments.beta, arguments.silent_half in CASES:
        print(f"{case}\n{HEADING}\n{row('GroupRL', measure_grouprl(arguments))}")
    if missing := missing_trl():
        print(f"skipped, TRL's steps and its gradient: {missing}")
        return
    arguments.beta = 0.04
    checked(arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", choices=tuple(VARIANTS), default="float32")
    parser.add_argument("--steps", type=int, default=3, help="after one to warm up")
    parser.add_argument("--only", choices=("speed", "exactness", "tune", "grouprl"))
    parser.add_argument("--json", type=Path, help="where to write what was found")
    parser.add_argument("--beta", type=float, default=0.04, help="of --only grouprl")
    parser.add_argument("--silent-half", action="store_true", help="of --only grouprl")
    parser.add_argument("--threads", type=int, default=1, help="of --only grouprl")
    parser.add_argument("--micro-batch-tokens", type=int, default=LearnerConfig().micro_batch_tokens)
    parser.add_argument("--unshared", action="store_true", help="of --only grouprl: read shared tokens for each group")
    add_options(parser)
    arguments = parser.parse_args()
    if arguments.only == "grouprl":
        print(json.dumps(measure_grouprl(arguments)))
        return
    if arguments.smoke:
        smoke(arguments)
        return
    require_trl()
    found: dict[str, Any] = {}
    if arguments.only in (None, "speed"):
        found["speed"] = compare(arguments)
    if arguments.only == "tune":
        found["tune"] = tune(arguments)
    if arguments.only in (None, "exactness"):
        arguments.beta, arguments.dtype = 0.04, "float32"
        found["exactness"] = checked(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
