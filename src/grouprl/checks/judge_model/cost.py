"""Counts the requests to a judge model and limits their cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock

from grouprl.rewards.rules import check_arguments, is_finite
from grouprl.types import UserError

COUNTS = ("requests", "retries", "failures", "prompt_tokens", "completion_tokens")
"""Requests with the repeated ones; those that repeat another; completions without a score; tokens of all replies as
the server counts them."""


@dataclass(frozen=True)
class Meter:
    """Adds up usage and limits its cost; safe to use from any thread.

    Args:
        input_price, output_price: price of a million prompt and completion tokens, in any currency.
        max_cost: largest cost in that currency since the start of the process, beyond which the run stops; None = no
            limit. Requests in progress at that time still cost.
    """

    input_price: float = 0.0
    output_price: float = 0.0
    max_cost: float | None = None
    _lock: Lock = field(init=False, repr=False, compare=False, default_factory=Lock)
    _counts: Counter[str] = field(init=False, repr=False, compare=False, default_factory=Counter)

    def __post_init__(self) -> None:
        prices, cost = {name: getattr(self, name) for name in ("input_price", "output_price")}, self.max_cost
        check_arguments(
            "judge_model",
            self,
            *((name, is_finite(p) and p >= 0, "the price of a million tokens") for name, p in prices.items()),
            ("max_cost", cost is None or (is_finite(cost) and cost > 0), "more than 0, or null"),
            ("max_cost", cost is None or self.priced, "null as long as there are no prices"),
        )

    @property
    def priced(self) -> bool:
        """Whether tokens cost anything."""
        return bool(self.input_price or self.output_price)

    @property
    def cost(self) -> float:
        """The cost so far, in the currency of the prices."""
        prompt, completion = self._counts["prompt_tokens"], self._counts["completion_tokens"]
        return (prompt * self.input_price + completion * self.output_price) / 1e6

    def add(self, counts: Mapping[str, int]) -> None:
        """Adds to some of COUNTS."""
        with self._lock:
            self._counts.update(counts)

    def check(self) -> None:
        """Raises UserError when the budget is used up; call it before each request."""
        if self.max_cost is not None and self.cost >= self.max_cost:
            raise UserError(
                f"reward judge_model: expected to spend less than max_cost={self.max_cost:g}, got a cost of "
                f"{self.cost:.6g} after {self._counts['requests']} requests: raise max_cost, or use a cheaper judge "
                "model"
            )

    def metrics(self) -> dict[str, float]:
        """Returns COUNTS and the cost as sums since the start: `judge/requests`, ..., `judge/cost`."""
        return {f"judge/{name}": self._counts[name] for name in COUNTS} | {"judge/cost": self.cost}
