"""From groups of completions to rewards: every reward function is called once a step, on all completions together."""

from __future__ import annotations

import asyncio
import inspect
import math
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from numbers import Real
from typing import Any

from transformers import PreTrainedTokenizerBase

from grouprl.rewards.overlong import SOFT_OVERLONG
from grouprl.rewards.rules import REWARDS, RewardFunction, completion_text
from grouprl.rewards.steps import STEP_REWARDS, StepFunction, last_tokens
from grouprl.tasks.names import unknown_name
from grouprl.types import Completion, Group, Problem, RewardOutcome, StepReward, UserError

_OWN_KEYWORDS = ("prompts", "completions", "completion_ids")


@dataclass(frozen=True)
class WeightedReward:
    """A reward function, the name its values are recorded under, and its factor in the total.

    With `per_step` it is a process reward: it gives steps (`StepFunction`), which do not enter the total.
    """

    name: str
    function: RewardFunction | StepFunction
    weight: float = 1.0
    per_step: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise UserError(
                f"reward {self.name}: expected a finite weight, got {self.weight}: write a number such as 1.0"
            )


def resolve_rewards(
    spec: Mapping[str, float] | Sequence[RewardFunction | WeightedReward | str],
) -> tuple[WeightedReward, ...]:
    """Rewards from names and weights, or from a list of names, functions (weight 1.0) and `WeightedReward`s.

    Raises UserError for an unknown name, two rewards of one name, none at all, or anything else.
    """
    if not isinstance(spec, Mapping | list | tuple) or not spec:
        raise UserError(
            f"rewards: expected a list such as ['correct_answer', my_function], got {spec!r}: name at least one"
        )
    if isinstance(spec, Mapping):
        rewards = tuple(_built_in(name, weight) for name, weight in spec.items())
    else:
        rewards = tuple(map(_weighted, spec))
    if any(reward.name == SOFT_OVERLONG for reward in rewards):
        raise UserError(
            f"rewards: expected names other than {SOFT_OVERLONG!r}, which is the penalty of algorithm.overlong_buffer: "
            "rename the reward"
        )
    name, times = Counter(reward.name for reward in rewards).most_common(1)[0]
    if times > 1:
        raise UserError(
            f"rewards: expected every name once, got {name!r} {times} times: rename one with WeightedReward"
        )
    return rewards


def judge(
    groups: Sequence[Group], rewards: Sequence[WeightedReward], tokenizer: PreTrainedTokenizerBase | None = None
) -> list[tuple[RewardOutcome, ...]]:
    """One outcome for each completion of each group, in their order.

    The total is the weighted sum of the rewards that apply. A completion is invalid (NaN total, with the reason) when
    no reward applies, or when one gives NaN or infinity: a broken verifier must not look like a wrong answer.

    Args:
        groups: the completions.
        rewards: what scores them.
        tokenizer: needed for process rewards, whose steps end at a token.

    Raises UserError when a reward function fails, or does not give one number or None for each completion.
    """
    keywords = call_keywords(groups)
    whole = [reward for reward in rewards if not reward.per_step]
    values = {reward.name: call_reward(reward, keywords) for reward in whole}
    outcomes = [
        _outcome({name: column[n] for name, column in values.items()}, whole)
        for n in range(len(keywords["completions"]))
    ]
    for reward in (reward for reward in rewards if reward.per_step):
        outcomes = _with_steps(outcomes, reward, keywords, tokenizer)
    each = iter(outcomes)
    return [tuple(islice(each, len(group.completions))) for group in groups]


def call_keywords(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """What reward functions are called with, in TRL's form: plain lists with one item for each completion.

    Problems' columns are repeated for each of their completions, None where a problem lacks one.
    Raises UserError when a column has the name of one of TRL's own keywords.
    """
    pairs = [(group.problem, completion) for group in groups for completion in group.completions]
    columns = dict.fromkeys(key for group in groups for key in group.problem.columns)
    for name in columns.keys() & set(_OWN_KEYWORDS):
        raise UserError(f"expected columns other than {', '.join(_OWN_KEYWORDS)}, got a column {name!r}: rename it")
    return {
        "prompts": [_prompt(problem) for problem, _ in pairs],
        "completions": [_completion(problem, completion) for problem, completion in pairs],
        "completion_ids": [list(completion.token_ids) for _, completion in pairs],
        **{name: [problem.columns.get(name) for problem, _ in pairs] for name in columns},
    }


def _prompt(problem: Problem) -> str | list[dict[str, str]]:
    return problem.prompt if isinstance(problem.prompt, str) else [dict(message) for message in problem.prompt]


def _completion(problem: Problem, completion: Completion) -> str | list[dict[str, str]]:
    text = completion.text
    return text if isinstance(problem.prompt, str) else [{"role": "assistant", "content": text}]


def call_reward(reward: WeightedReward, keywords: Mapping[str, list[Any]]) -> list[float | None]:
    """One reward function's values, checked. Raises UserError as `judge` does, chained to the function's own error."""
    return [_number(reward.name, n, value) for n, value in enumerate(_called(reward, keywords))]


def _called(reward: WeightedReward, keywords: Mapping[str, list[Any]]) -> Sequence[Any]:
    try:
        values = reward.function(**keywords)
        values = _run(values) if inspect.iscoroutine(values) else values
    except Exception as error:  # a stranger's code: whatever it raises is told, never counted as a reward
        raise UserError(
            f"reward {reward.name}: expected one number per completion, got {type(error).__name__}: {error} "
            f"({_place(error)}): mend the function; it is called with {', '.join(keywords)}"
        ) from error
    count = len(keywords["completions"])
    if not isinstance(values, list | tuple) or len(values) != count:
        got = f"{len(values)}" if isinstance(values, list | tuple) else type(values).__name__
        raise UserError(f"reward {reward.name}: expected a list of {count} values, got {got}: give one per completion")
    return values


def _with_steps(
    outcomes: Sequence[RewardOutcome],
    reward: WeightedReward,
    keywords: Mapping[str, list[Any]],
    tokenizer: PreTrainedTokenizerBase | None,
) -> list[RewardOutcome]:
    if tokenizer is None:
        raise ValueError(f"reward {reward.name} gives steps: judge needs the tokenizer to find their last tokens")
    added = []
    for n, (outcome, steps) in enumerate(zip(outcomes, _called(reward, keywords), strict=True)):
        length = len(completion_text(keywords["completions"][n]))
        pairs = _pairs(reward.name, n, steps, length)
        places = last_tokens(keywords["completion_ids"][n], [end for end, _ in pairs], tokenizer)
        broken = [f"{reward.name} gave {value}" for _, value in pairs if not math.isfinite(value)]
        mean = math.fsum(value for _, value in pairs) / len(pairs) if pairs and not broken else None
        added.append(
            replace(
                outcome,
                total=math.nan if broken else outcome.total,
                components={**outcome.components, reward.name: mean},
                reason="; ".join([*filter(None, [outcome.reason]), *broken]),
                steps=outcome.steps
                + tuple(
                    StepReward(place, reward.weight * value) for place, (_, value) in zip(places, pairs, strict=True)
                ),
            )
        )
    return added


def _pairs(name: str, index: int, steps: object, length: int) -> list[tuple[int, float]]:
    pairs = [] if steps is None else steps
    ok = isinstance(pairs, list | tuple) and all(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and isinstance(pair[0], int)
        and isinstance(pair[1], Real)
        and 1 <= pair[0] <= length
        for pair in pairs
    )
    if not ok:
        raise UserError(
            f"reward {name}: expected steps (end, value) with an end of 1 to {length} characters for completion "
            f"{index}, got {steps!r}: give a list of pairs, or None"
        )
    return [(end, float(value)) for end, value in pairs]  # type: ignore[attr-defined]


def _run(coroutine: Any) -> Any:
    # In a thread of its own, because a notebook's thread already runs an event loop.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


def _place(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"


def _number(name: str, index: int, value: object) -> float | None:
    if value is None or isinstance(value, Real):
        return None if value is None else float(value)
    raise UserError(
        f"reward {name}: expected a number or None for completion {index}, got {value!r} ({type(value).__name__}): "
        "convert it with float()"
    )


def _outcome(values: Mapping[str, float | None], rewards: Sequence[WeightedReward]) -> RewardOutcome:
    broken = [
        f"{name} gave {value}" for name, value in values.items() if value is not None and not math.isfinite(value)
    ]
    components = {name: value if value is not None and math.isfinite(value) else None for name, value in values.items()}
    terms = [reward.weight * value for reward in rewards if (value := components[reward.name]) is not None]
    reason = "; ".join(broken) or ("" if terms else "no reward applies")
    return RewardOutcome(math.nan if reason else math.fsum(terms), components, reason)


def _built_in(name: str, weight: float) -> WeightedReward:
    if name in STEP_REWARDS:
        return WeightedReward(name, STEP_REWARDS[name], weight, per_step=True)
    if name not in REWARDS:
        raise unknown_name("rewards", name, {**REWARDS, **STEP_REWARDS})
    return WeightedReward(name, REWARDS[name], weight)


def _weighted(item: RewardFunction | WeightedReward | str) -> WeightedReward:
    if isinstance(item, WeightedReward):
        return item
    if isinstance(item, str):
        return _built_in(item, 1.0)
    if not callable(item):
        raise UserError(f"rewards: expected a name, a function or a WeightedReward, got {item!r}: give one of them")
    return WeightedReward(getattr(item, "__name__", type(item).__name__), item)
