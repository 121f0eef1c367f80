"""Counts the requests to a judge model and limits their cost."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from threading import Lock

from grouprl.types import UserError


@dataclass(frozen=True)
class Usage:
    """Counts of requests and tokens, which can be added.

    >>> Usage(requests=1, prompt_tokens=5) + Usage(requests=1)
    Usage(requests=2, retries=0, failures=0, prompt_tokens=5, completion_tokens=0)
    """

    requests: int = 0  # sent, repeated ones included
    retries: int = 0  # requests that repeat another
    failures: int = 0  # completions left without a score
    prompt_tokens: int = 0  # counted by the server, in all replies
    completion_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


class Meter:
    """Adds up usage; safe to use from any thread.

    Args:
        input_price, output_price: price of a million prompt and completion tokens, in any currency.
        max_cost: largest cost in that currency; None = no limit.
    """

    def __init__(self, input_price: float, output_price: float, max_cost: float | None) -> None:
        self._input_price, self._output_price, self._max_cost = input_price, output_price, max_cost
        self._lock = Lock()
        self._total = Usage()

    @property
    def total(self) -> Usage:
        """The usage so far."""
        return self._total

    @property
    def priced(self) -> bool:
        """Whether tokens cost anything."""
        return bool(self._input_price or self._output_price)

    @property
    def cost(self) -> float:
        """The cost so far, in the currency of the prices."""
        total = self._total
        return (total.prompt_tokens * self._input_price + total.completion_tokens * self._output_price) / 1e6

    def add(self, usage: Usage) -> None:
        """Adds usage to the total."""
        with self._lock:
            self._total += usage

    def check(self) -> None:
        """Raises UserError when the budget is used up; call it before each request."""
        if self._max_cost is not None and self.cost >= self._max_cost:
            raise UserError(
                f"reward judge_model: expected to spend less than max_cost={self._max_cost:g}, got a cost of "
                f"{self.cost:.6g} after {self._total.requests} requests: raise max_cost, or use a cheaper judge model"
            )

    def metrics(self) -> dict[str, float]:
        """Returns `judge/requests`, `judge/retries`, `judge/failures`, `judge/prompt_tokens`,
        `judge/completion_tokens` and `judge/cost`, as sums since the start."""
        total = self._total
        return {
            "judge/requests": total.requests,
            "judge/retries": total.retries,
            "judge/failures": total.failures,
            "judge/prompt_tokens": total.prompt_tokens,
            "judge/completion_tokens": total.completion_tokens,
            "judge/cost": self.cost,
        }
