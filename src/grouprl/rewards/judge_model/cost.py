"""What the requests to a judge model come to, and the budget they stay within."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from threading import Lock

from grouprl.types import UserError


@dataclass(frozen=True)
class Usage:
    """Counts of requests. They add up.

    >>> Usage(requests=1, prompt_tokens=5) + Usage(requests=1)
    Usage(requests=2, retries=0, failures=0, prompt_tokens=5, completion_tokens=0)
    """

    requests: int = 0  # sent, repeated ones included
    retries: int = 0  # of them, those that repeat another
    failures: int = 0  # completions left without a score
    prompt_tokens: int = 0  # as the server counts them, in every reply that came
    completion_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


class Meter:
    """Adds up usage, from any thread.

    Args:
        input_price, output_price: of a million prompt and completion tokens, in any currency.
        max_cost: what may be spent in that currency; None = anything.
    """

    def __init__(self, input_price: float, output_price: float, max_cost: float | None) -> None:
        self._input_price, self._output_price, self._max_cost = input_price, output_price, max_cost
        self._lock = Lock()
        self._total = Usage()

    @property
    def total(self) -> Usage:
        """Everything so far."""
        return self._total

    @property
    def priced(self) -> bool:
        """Whether tokens cost anything."""
        return bool(self._input_price or self._output_price)

    @property
    def cost(self) -> float:
        """Of everything so far, in the currency of the prices."""
        total = self._total
        return (total.prompt_tokens * self._input_price + total.completion_tokens * self._output_price) / 1e6

    def add(self, usage: Usage) -> None:
        """Counts it too."""
        with self._lock:
            self._total += usage

    def check(self) -> None:
        """Raises UserError when the budget is used up: to be called before each request."""
        if self._max_cost is not None and self.cost >= self._max_cost:
            raise UserError(
                f"reward judge_model: expected to spend less than max_cost={self._max_cost:g}, got a cost of "
                f"{self.cost:.6g} after {self._total.requests} requests: raise max_cost, or use a cheaper judge"
            )

    def measures(self) -> dict[str, float]:
        """`judge/requests`, `judge/retries`, `judge/failures`, `judge/prompt_tokens`, `judge/completion_tokens` and
        `judge/cost`, all of them sums since the start."""
        total = self._total
        return {
            "judge/requests": total.requests,
            "judge/retries": total.retries,
            "judge/failures": total.failures,
            "judge/prompt_tokens": total.prompt_tokens,
            "judge/completion_tokens": total.completion_tokens,
            "judge/cost": self.cost,
        }
