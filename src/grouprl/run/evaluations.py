"""The evaluations of a run on its held-out problems: before it, after some of its steps, after it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Literal

from grouprl.config.run import RunConfig
from grouprl.evaluation import ProblemResults, compare_results
from grouprl.evaluation.evaluate import Evaluation, evaluate
from grouprl.record.layout import COURSE_STEPS, RunDirectory
from grouprl.record.read import Example, read_examples, read_json_lines
from grouprl.record.write import RunRecord
from grouprl.run.assemble import RunParts
from grouprl.run.display import Display
from grouprl.run.process import StopRequest
from grouprl.run.watch import Health

_EXAMPLES = 5


@dataclass(frozen=True)
class Evaluations:
    """Evaluates the policy and records what it finds; a resumed run reads what it has recorded."""

    config: RunConfig
    parts: RunParts
    record: RunRecord
    display: Display
    trackers: Sequence[Any]
    health: Health
    stop: StopRequest

    def look(self, step: int) -> None:
        """Records the examples and the evaluation that are due after this step, if they are not recorded."""
        every = self.config.evaluation.every
        if step in COURSE_STEPS:
            # How the policy completes the examples after a few of the first steps: 5 greedy completions.
            prompts, when, files = self.parts.held_out[:_EXAMPLES], f"step {step}", RunDirectory(self.record.directory)
            ranks = self.parts.step_parts.learner.ranks
            is_recorded = ranks.decided(lambda: when in read_examples(files.examples), "recorded examples")
            if not is_recorded and prompts and self.parts.ahead is None:  # else the engine is sampling the next step
                self.record.examples(when, _examples(self._evaluated(step, prompts, 0)))
        if every and self.parts.held_out and step % every == 0 and step < self.config.steps:
            self.evaluate(step)

    def evaluate(self, step: int, when: Literal["before", "after"] | None = None) -> dict[str, Any]:
        """The metrics of the policy after a step, before the run or after it."""
        ranks = self.parts.step_parts.learner.ranks

        def read_recorded() -> dict[str, Any] | None:
            files = RunDirectory(self.record.directory)
            if when is not None and when not in read_examples(files.examples):
                return None
            recorded_step = 0 if when == "before" else step
            rows = [row for row in read_json_lines(files.evaluations) if row["step"] == recorded_step]
            return {name: value for name, value in rows[-1].items() if name != "step"} if rows else None

        recorded: dict[str, Any] | None = ranks.decided(read_recorded, "recorded evaluation")
        if recorded is not None:
            return recorded
        config, prompts = self.config.evaluation, self.parts.held_out
        if not prompts:  # evaluation.problems=0
            return {"problems": 0}
        with self.display.progress(
            f"evaluate {when or f'step {step}'}", len(prompts) * (config.samples + 1)
        ) as advance:

            def on_finished(completions: int) -> None:
                self.stop.check()
                advance(completions)

            evaluation = self._evaluated(step, prompts, config.samples, on_finished=on_finished)
        self.display.invalid(evaluation.invalid, len(prompts) * max(1, config.samples), "held-out completions")
        if evaluation.results.problem_ids:
            self.record.held_out(step, asdict(evaluation.results))
        if when is not None:
            self.record.examples(when, _examples(evaluation))
        self.record.evaluation(step, evaluation.metrics)
        for tracker in self.trackers:
            tracker.evaluation(step, evaluation.metrics)
        if ranks.leads:
            self.health.warn()
        return evaluation.metrics

    def change(self, step: int) -> dict[str, Any]:
        """The differences of the evaluation after a step to the first one, paired by problem."""
        rows = {row["step"]: row for row in read_json_lines(RunDirectory(self.record.directory).held_out)}
        before, after = (ProblemResults.read(rows.get(number, {})) for number in (0, step))
        if before is None or after is None or not set(before.problem_ids) & set(after.problem_ids):
            return {}
        return {name: asdict(change) for name, change in compare_results(after, before).items()}

    def _evaluated(self, step: int, prompts: Sequence[Any], samples: int, **more: Any) -> Evaluation:
        parts = self.parts.step_parts
        parts.scorer.begin_step(step + 1)
        ranks = parts.learner.ranks
        # Ranks that keep a part of the weights each would wait for those of a rank that stops.
        with self.stop.interruptible(ranks) if ranks.mesh is None else nullcontext():
            return evaluate(
                parts.engine,
                parts.task,
                parts.scorer,
                prompts,
                sampling=parts.sampling,
                samples=samples,
                tokenizer=parts.tokenizer,
                judged=self.config.evaluation.judge,
                **more,
            )


def _examples(evaluation: Evaluation) -> list[Example]:
    return [
        Example(
            problem_id=group.problem.id,
            prompt=group.problem.prompt_text,
            answer=str(group.problem.columns.get("answer", "")).rpartition("####")[2].strip(),
            completion=group.completions[0].text,
            correct=outcome.correct,
            reward=outcome.total if outcome.valid else None,
        )
        for group, outcome in zip(evaluation.greedy[:_EXAMPLES], evaluation.outcomes, strict=False)
    ]
