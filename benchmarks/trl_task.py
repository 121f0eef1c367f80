"""Training seconds until the bundled model solves 90 % of held-out problems: GroupRL and TRL with one recipe.

    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/trl_task.py [--seeds 0 1 2] [--json PATH]

Recipe: `grouprl train demo` (16 problems x 8 completions of up to 64 tokens, AdamW at 2e-4 after 5 updates of warm-up,
KL 0.04), with TRL's standard deviation (sample, 1e-4) in both; the same problems in the same order, the same rewards.
After every step GroupRL's evaluation looks at the weights of either, 200 problems of the test split, greedy and 8
samples of each; its time is not counted. The completions are drawn by each library's own random numbers. CPU seconds
are of the training process: GroupRL's reward workers, a hundredth of a second a step, are in the wall clock alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trl_peer import Instant, Settings, grpo_config, missing_trl, now, require_trl

GOAL = 0.9
LIBRARIES = ("grouprl", "trl")
MEASURES = {"greedy": "greedy_accuracy", "sampled": "pass_at_1"}
# Of TRL, the fastest on this model, which is smaller than that of `trl_peer.py`.
SETTINGS = Settings(micro_batch=32, checkpointing=False)


@dataclass(frozen=True)
class Held:
    """Everything of GroupRL's that a run of either library is given."""

    config: Any
    task: Any
    scorer: Any
    evaluate: Callable[[Any], dict[str, float]]  # of a model in GroupRL's form


class Course:
    """How accurate the model is after how many seconds of training."""

    def __init__(self, held: Held) -> None:
        self.points: list[dict[str, float]] = []
        self._held = held
        self._spent: Instant = (0.0, 0.0)
        self._began = now()

    def start(self) -> None:
        """The clock runs from here."""
        self._began = now()

    def look(self, model: Any) -> bool:
        """Notes a step that has just ended, with the clock stopped; whether the goal is reached in every measure."""
        taken = [end - begin for end, begin in zip(now(), self._began, strict=True)]
        self._spent = (self._spent[0] + taken[0], self._spent[1] + taken[1])
        found = self._held.evaluate(model)
        figures = {name: found[key] for name, key in MEASURES.items()}
        self.points.append({"wall": self._spent[0], "cpu": self._spent[1], **figures})
        point = self.points[-1]
        print(json.dumps({"step": len(self.points), **point}), file=sys.stderr, flush=True)
        self.start()
        return all(any(point[name] >= GOAL for point in self.points) for name in MEASURES)


def train_grouprl(held: Held, course: Course) -> None:
    """Step after step until the goal."""
    from grouprl.run.assemble import assemble
    from grouprl.step import grpo_step
    from grouprl.tasks.curriculum import PassRates

    parts = assemble(held.config, held.task, held.scorer).step_parts
    course.start()
    for step in range(1, held.config.steps + 1):
        grpo_step(parts, step, PassRates())
        if course.look(parts.learner.policy):
            return


def messages(problem: Any) -> list[dict[str, str]]:
    """A chat prompt in TRL's form."""
    return [dict(message) for message in problem.prompt]


def train_trl(held: Held, course: Course) -> None:
    """The same with TRL's trainer; its weights are copied into a model of GroupRL's form to be looked at."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOTrainer

    from grouprl.models.load import load_model, load_tokenizer
    from grouprl.models.names import BUNDLED
    from grouprl.rewards.configured import configured_rewards
    from grouprl.tasks.curriculum import UniformOrder

    config, rollout, learner = held.config, held.config.rollout, held.config.learner
    rewards = configured_rewards(config, held.task)
    order = UniformOrder(rollout.problems_per_step, config.seed)
    visits = list(order.possible(held.task.problems("train"), steps=range(1, config.steps + 1), refills=0))
    trainer = GRPOTrainer(
        model=str(BUNDLED["abacus"]),
        processing_class=load_tokenizer("abacus"),
        reward_funcs=[reward.function for reward in rewards],
        args=grpo_config(
            SETTINGS,
            completions=rollout.problems_per_step * rollout.group_size,
            num_generations=rollout.group_size,
            max_completion_length=rollout.max_tokens,
            max_steps=config.steps,
            reward_weights=[reward.weight for reward in rewards],
            beta=config.algorithm.kl_coef,
            learning_rate=learner.learning_rate,
            adam_beta1=learner.betas[0],
            adam_beta2=learner.betas[1],
            weight_decay=learner.weight_decay,
            max_grad_norm=learner.max_grad_norm,
            seed=config.seed,
        ),
        train_dataset=Dataset.from_list([{"prompt": messages(problem), **problem.columns} for problem in visits]),
    )
    trainer.create_optimizer()
    # TRL's own warm-up begins with an update of 0.
    trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
        trainer.optimizer, lambda update: min(1.0, (update + 1) / learner.warmup_steps)
    )
    looked_at = load_model("abacus", device=torch.device("cpu"))

    class Looks(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            course.start()

        def on_step_end(self, _: Any, __: Any, control: Any, **___: Any) -> None:
            looked_at.load_state_dict(trainer.model.state_dict())
            control.should_training_stop = course.look(looked_at)

    trainer.add_callback(Looks())
    trainer.train()


def run(library: str, seed: int, steps: int, problems: int = 200) -> list[dict[str, float]]:
    """One run; a point for each step, from so many held-out problems."""
    import torch

    from grouprl.algorithms.advantages import GroupAdvantage
    from grouprl.algorithms.spec import Algorithm
    from grouprl.config.run import EvaluationConfig, LearnerConfig, RolloutConfig, RunConfig
    from grouprl.evaluation.evaluate import evaluate
    from grouprl.models.load import load_tokenizer
    from grouprl.models.prompts import prompt_token_ids
    from grouprl.rewards.configured import configured_rewards, configured_scorer
    from grouprl.rollout import NativeEngine, Request
    from grouprl.tasks.named import load_task
    from grouprl.types import Sampling

    torch.set_num_threads(1)
    config = RunConfig(
        seed=seed,
        steps=steps,
        algorithm=Algorithm(advantage=GroupAdvantage(std="sample", eps=1e-4)),
        rollout=RolloutConfig(problems_per_step=16, group_size=8, max_tokens=64),
        learner=LearnerConfig(learning_rate=2e-4, warmup_steps=5),
        evaluation=EvaluationConfig(problems=problems, samples=8),
    )
    task, tokenizer = load_task(config.task.name), load_tokenizer("abacus")
    prompts = [
        Request(problem, prompt_token_ids(problem, tokenizer, longest=448), 1)
        for problem in task.problems("test")[: config.evaluation.problems]
    ]

    with configured_scorer(config, task, configured_rewards(config, task)) as scorer:

        def looked(model: Any) -> dict[str, float]:
            engine = NativeEngine(model, tokenizer, seed=seed, max_rows=config.rollout.max_rows)
            found: dict[str, Any] = evaluate(
                engine, task, scorer, prompts, sampling=Sampling(64), samples=config.evaluation.samples
            ).metrics
            return {name: float(found[name]) for name in MEASURES.values()}

        held = Held(config, task, scorer, looked)
        course = Course(held)
        {"grouprl": train_grouprl, "trl": train_trl}[library](held, course)
    return course.points


def reached(points: Sequence[dict[str, float]], measure: str) -> tuple[int, dict[str, float]] | None:
    """The first step at the goal, counted from 1, and its point."""
    return next(((step, point) for step, point in enumerate(points, 1) if point[measure] >= GOAL), None)


def middle_seconds(runs: Iterable[Sequence[dict[str, float]]], measure: str) -> tuple[float, float]:
    """Wall clock and CPU seconds to the goal, the median of runs that all reached it."""
    marks = [mark[1] for points in runs if (mark := reached(points, measure))]
    return statistics.median(mark["wall"] for mark in marks), statistics.median(mark["cpu"] for mark in marks)


def table(found: dict[str, dict[int, list[dict[str, float]]]]) -> str:
    lines = [f"{'':<10}{'measure':<9}{'seed':>5}{'steps':>7}{'wall s':>9}{'CPU s':>9}"]
    for measure in MEASURES:
        for library, runs in found.items():
            marks = {seed: reached(points, measure) for seed, points in runs.items()}
            for seed, mark in marks.items():
                figures = f"{mark[0]:>7}{mark[1]['wall']:>9.2f}{mark[1]['cpu']:>9.2f}" if mark else "  never"
                lines.append(f"{library:<10}{measure:<9}{seed:>5}{figures}")
            if all(marks.values()):
                middle = middle_seconds(runs.values(), measure)
                lines.append(f"{library:<10}{measure:<9}{'':>5}{'median':>7}{middle[0]:>9.2f}{middle[1]:>9.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60, help="at most")
    parser.add_argument("--json", type=Path, help="where to write the points of all runs")
    parser.add_argument("--run", choices=LIBRARIES, help="one run, with the first seed, as JSON")
    parser.add_argument("--smoke", action="store_true", help="one step of GroupRL, a few problems: whether it runs")
    arguments = parser.parse_args()
    if arguments.smoke:
        print(table({"grouprl": {0: run("grouprl", 0, 1, problems=2)}}))
        print(f"skipped, the same by TRL: {missing_trl() or 'it takes minutes'}")
        return
    if arguments.run:
        print(json.dumps(run(arguments.run, arguments.seeds[0], arguments.steps)))
        return
    require_trl()
    found: dict[str, dict[int, list[dict[str, float]]]] = {library: {} for library in LIBRARIES}
    for seed in arguments.seeds:
        for library in LIBRARIES:
            words = ["--run", library, "--seeds", str(seed), "--steps", str(arguments.steps)]
            ended = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True)
            found[library][seed] = json.loads(ended.stdout.strip().splitlines()[-1])
    print(table(found))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
