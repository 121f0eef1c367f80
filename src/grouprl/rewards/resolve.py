"""Resolves names, functions and files to the rewards of a run."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from grouprl.leaves import LeafNames
from grouprl.rewards.functions import FromFile, RewardFunction, WeightedReward
from grouprl.rewards.rules import boxed_format, correct_answer, environment, last_number
from grouprl.tasks.mixture import PartReward
from grouprl.types import UserError, unknown_name

REWARDS = LeafNames(
    "reward",
    {
        "boxed_format": boxed_format,
        "correct_answer": correct_answer,
        "environment": environment,
        "last_number": last_number,
    },
)
"""The built-in reward functions by name: functions in TRL's form, or classes whose fields are settings.

Those of leaves are among them: regex, cosine_length, math_verify, unit_tests, ...
"""

STEP_REWARDS = LeafNames("step_reward", {})
"""Process rewards: a value for each step of a completion."""


def resolve_rewards(
    spec: Mapping[str, float] | Sequence[RewardFunction | WeightedReward | str],
    own: Mapping[str, RewardFunction] | None = None,
) -> tuple[WeightedReward, ...]:
    """Makes rewards from names and weights, or from a list of names, functions (weight 1.0) and `WeightedReward`s.

    Args:
        spec: the user's names, functions or rewards.
        own: functions of the task; their names take precedence over the built-in ones.

    Raises:
        UserError: an unknown name, two rewards with one name, no reward, or an item of another type.
    """
    if not isinstance(spec, Mapping | list | tuple) or not spec:
        raise UserError(
            f"rewards: expected a list such as ['correct_answer', my_function], got {spec!r}: name at least one"
        )
    if isinstance(spec, Mapping):
        rewards = tuple(built_in(name, weight=weight, own=own) for name, weight in spec.items())
    else:
        # Different functions with the same name in the code get numbers: lambda, lambda_2.
        numbered: list[WeightedReward] = []
        for item in spec:
            if isinstance(item, WeightedReward):
                reward = item
            elif isinstance(item, str):
                reward = built_in(item, own=own)
            elif callable(item):
                function: Any = item
                while isinstance(function, partial):
                    function = function.func
                reward = WeightedReward(getattr(function, "__name__", type(function).__name__).strip("<>"), item)
            else:
                expected = "expected a name, a function or a WeightedReward"
                raise UserError(f"rewards: {expected}, got {item!r}: give one of them")
            if not isinstance(item, str | WeightedReward) and all(r.function is not reward.function for r in numbered):
                taken = {other.name for other in numbered}
                names = (reward.name, *(f"{reward.name}_{count}" for count in range(2, len(spec) + 1)))
                reward = replace(reward, name=next(name for name in names if name not in taken))
            numbered.append(reward)
        rewards = tuple(numbered)
    name, times = Counter(reward.name for reward in rewards).most_common(1)[0]
    if times > 1:
        raise UserError(
            f"rewards: expected every name once, got {name!r} {times} times: rename one with WeightedReward"
        )
    return rewards


def built_in(
    function: str,
    *,
    name: str | None = None,
    weight: float = 1.0,
    arguments: Mapping[str, Any] | None = None,
    own: Mapping[str, RewardFunction] | None = None,
) -> WeightedReward:
    """Makes a built-in reward from the name of its function; its values are recorded under `name`.

    Raises:
        UserError: there is no such function, or it does not take the arguments.
    """
    functions = ChainMap(STEP_REWARDS, dict(own or {}), REWARDS)  # type: ignore[arg-type]  # it only reads
    if function not in functions:
        raise unknown_name("rewards", function, functions)
    reward: Any = functions[function]
    if isinstance(reward, type):
        arguments = arguments or {}
        parts = getattr(reward, "parts", {})  # of a class with many settings: the class of each field, which has them
        settings = [setting.name for part in parts.values() or [reward] for setting in fields(part) if setting.init]
        unknown = [key for key in arguments if key not in settings]
        if unknown:
            raise unknown_name(f"reward {function}, arguments", unknown[0], settings)
        try:
            values: dict[str, Any] = {} if parts else dict(arguments)
            for field, part in parts.items():
                names = [setting.name for setting in fields(part)]
                values[field] = part(**{key: value for key, value in arguments.items() if key in names})
            reward = reward(**values)
        except TypeError as error:  # a setting without a default is missing
            raise UserError(f"reward {function}: expected all its arguments, got {dict(arguments)}: {error}") from error
    elif arguments:
        raise UserError(f"reward {function}: expected no arguments, got {', '.join(arguments)}: remove them")
    if isinstance(reward, PartReward):
        reward = reward.bound(lambda part_name: built_in(part_name).function)
    return WeightedReward(name or function, reward, weight, per_step=function in STEP_REWARDS)


def verifier_of(
    name: str | None, rewards: Sequence[WeightedReward], own: Mapping[str, RewardFunction]
) -> WeightedReward | None:
    """Finds the verifier by name among the run's, the task's and the built-in rewards, or as FILE.py:FUNCTION.

    Raises:
        UserError: there is no such reward.
    """
    if name is None:
        return None
    path, colon, function = name.rpartition(":")
    if colon and path.endswith(".py"):
        return WeightedReward(function, FromFile(path, function))
    configured = next((reward for reward in rewards if reward.name == name), None)
    return built_in(name, own=own) if configured is None or name in own else configured
