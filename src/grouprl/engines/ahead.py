"""Samples the next steps on a cluster while the learner updates, so that neither waits for the other.

The groups of a step are then sampled from the weights that the policy had some steps before, always as many, so that
the run is the same however fast its machines are. A checkpoint holds the groups that were begun: a resumed run learns
from the same.
"""

from __future__ import annotations

import json
from pathlib import Path

from grouprl.files import parse, read_text
from grouprl.rollout import Request, make_requests
from grouprl.rollout.engine import EarlyEngine
from grouprl.rollout.spread import completion_rows, completions_of
from grouprl.step import StepParts
from grouprl.tasks.curriculum import PassRates
from grouprl.types import Group, UserError


class Ahead:
    """Begins the groups of steps before they are asked for."""

    def __init__(self, parts: StepParts, engine: EarlyEngine, last: int, lead: int) -> None:
        """`last` is the run's last step, `lead` how many steps the samplers are ahead of the learner."""
        self._parts, self._engine, self._last, self._lead = parts, engine, last, lead

    def begin(self, step: int) -> None:
        """Begins this step and the next ones from the weights of now; what was begun already stays as it is."""
        for number in range(step, min(step + self._lead, self._last) + 1):
            self._engine.begin(self._requests(number), self._parts.sampling)

    def save(self, step: int, path: Path) -> None:
        """Waits for the groups that were begun from this step on, and writes them; nothing after the last step."""
        rows = []
        for number in range(step, min(step + self._lead, self._last + 1)):
            requests = self._requests(number)
            groups = self._engine.generate(requests, self._parts.sampling)
            self._engine.restore(requests, self._parts.sampling, groups)
            rows += [json.dumps(completion_rows(group.completions)) + "\n" for group in groups]
        if rows:
            path.write_text("".join(rows), encoding="utf-8")

    def load(self, step: int, path: Path) -> None:
        """Takes the groups that `save` wrote, if it did.

        Raises:
            UserError: the file does not have the groups of this step and the next ones.
        """
        lines = (read_text(path) or "").splitlines()
        for number in range(step, step + self._lead):
            if not lines:  # the run ended at an earlier step then
                break
            requests = self._requests(number)
            rows, lines = lines[: len(requests)], lines[len(requests) :]
            try:
                groups = [
                    Group(request.problem, request.prompt_ids, completions_of(parse(line, path)))
                    for request, line in zip(requests, rows, strict=True)
                ]
            except (TypeError, ValueError) as error:
                message = f"{path}: expected the groups of step {number}, got {error}: restore the file"
                raise UserError(message) from error
            self._engine.restore(requests, self._parts.sampling, groups)

    def _requests(self, step: int) -> list[Request]:
        parts = self._parts
        visits = parts.order.visits(parts.task.problems("train"), step=step, rates=PassRates())
        return make_requests(visits, parts.tokenizer, completions=parts.group_size, longest_prompt=parts.longest_prompt)
