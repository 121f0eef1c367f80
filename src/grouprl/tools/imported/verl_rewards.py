"""What verl's keys mean that make a reward: the user's compute_score, its manager, and DAPO's penalty of length."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from grouprl.tools.imported.table import Entry, Given, Outcome, changed, idles, only, unsupported

_MANAGERS = ("naive", "dapo")  # dapo is naive with a penalty of length
_KWARGS = ("reward_model.reward_kwargs", "reward.reward_kwargs")


def compute_score(given: Given, value: Any) -> Outcome:
    """The user's compute_score; without one verl picks a scorer by data_source."""
    at = "reward.custom_reward_function" if given["reward.custom_reward_function.path"] else "custom_reward_function"
    path = given[f"{at}.path"]
    if not path:
        return changed("verl's scorer by data_source", {}, "name yours: --reward FILE.py:compute_score")
    name = given[f"{at}.name"] or "compute_score"
    prefix = f"{at}.reward_kwargs."
    arguments = {key.removeprefix(prefix): one for key, one in given.named.items() if key.startswith(prefix)}
    made = {"name": name, "path": str(path).removeprefix("file://"), **({"arguments": arguments} if arguments else {})}
    return Outcome("equal", {"rewards": [made], "task.arguments.verifier": name}, "runs once per completion")


def overlong(at: str, given: Given, value: Any) -> Outcome:
    """DAPO's penalty on the last tokens before the limit, of the manager dapo."""
    if not value:
        return Outcome("equal")
    managers = (given["reward_model.reward_manager"], given["reward.reward_manager.name"])
    if "dapo" not in managers:
        return Outcome("not needed", words="no effect without reward_manager: dapo")
    length, limit = given[f"{at}.overlong_buffer_cfg.len"], given[f"{at}.max_resp_len"]
    if given[f"{at}.overlong_buffer_cfg.penalty_factor"] != 1 or limit != given["data.max_response_length"]:
        return unsupported("expected penalty_factor=1 and max_resp_len equal to data.max_response_length")
    ours = {"algorithm.overlong_buffer": length / limit}
    return Outcome("equal", ours, f"{length} of {limit} tokens")


REWARD: Mapping[str, Entry] = MappingProxyType(
    {
        "custom_reward_function.path": Entry(None, "rewards.0.path", compute_score),
        **idles(
            "see custom_reward_function.path",
            {
                "custom_reward_function.name": None,
                "reward.custom_reward_function.path": None,
                "reward.custom_reward_function.name": "compute_score",
            },
        ),
        "reward_model.enable": only(None, "a trained reward model: rewards.0.path=FOLDER (docs/preferences.md)", False),
        "reward_model.reward_manager": only(None, "a reward returns one value per completion", *_MANAGERS),
        "reward.reward_manager.name": only("naive", "a reward returns one value per completion", *_MANAGERS),
        "reward.reward_model.enable": only(
            False, "a trained reward model: rewards.0.path=FOLDER (docs/preferences.md)"
        ),
        "reward_manager.source": only(None, "a reward returns one value per completion", "register"),
        "reward_manager.name": only(None, "a reward returns one value per completion", *_MANAGERS),
        **{
            f"{at}.overlong_buffer_cfg.enable": Entry(None, "algorithm.overlong_buffer", partial(overlong, at))
            for at in _KWARGS
        },
        **{
            f"{at}.{key}": one
            for at in _KWARGS
            for key, one in idles(
                "see overlong_buffer_cfg.enable",
                {
                    "overlong_buffer_cfg.len": None,
                    "overlong_buffer_cfg.penalty_factor": 1.0,
                    "overlong_buffer_cfg.log": False,
                    "max_resp_len": None,
                },
            ).items()
        },
    }
)
"""Dotted key -> entry, of what gives the rewards."""
