"""Branches of a recorded completion: what the reward would have been with another token at one position.

`grouprl replay RUN STEP --branch` makes them; docs/run_directory.md describes the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grouprl.files import read_json
from grouprl.record.files import atomic_write_text, json_text
from grouprl.record.layout import RunDirectory, refuse_links
from grouprl.types import UserError


@dataclass(frozen=True)
class Branch:
    """A completion with another token at a position, and the rest sampled at the same random numbers."""

    token_id: int
    token: str  # its text
    probability: float  # in [0, 1], of this token at the position
    reward: float | None  # the total; None = invalid
    correct: bool | None  # the verifier's verdict; None = there is none
    length: int  # tokens of the whole completion
    stop_reason: str
    text: str  # from this token on


@dataclass(frozen=True)
class BranchedToken:
    """A token of the completion, with its branches."""

    position: int  # from 0
    token_id: int
    token: str
    probability: float  # in [0, 1]
    entropy: float  # in nats, of the distribution that it was drawn from
    branches: tuple[Branch, ...]  # the likeliest first


@dataclass(frozen=True)
class Effect:
    """How the reward changes where a token is another one: its branches' rewards less the recorded reward."""

    mean: float  # weighted by the probabilities of the branches
    low: float  # of the branch with the smallest reward
    high: float


@dataclass(frozen=True)
class BranchedCompletion:
    """The branches of a completion."""

    step: int
    group: int
    completion: int
    problem_id: str
    token_ids: tuple[int, ...]  # of the completion
    reward: float | None  # as recorded
    tokens: tuple[BranchedToken, ...]  # by position
    tokens_computed: int  # that the model read for all branches
    tokens_without_prefix: int  # that it would have read of each branch from the prompt on

    def effect(self, token: BranchedToken) -> Effect | None:
        """The effect of a token; None where no reward is valid.

        >>> branches = tuple(Branch(0, "", p, r, None, 1, "end", "") for p, r in ((0.3, 0.0), (0.1, 1.0)))
        >>> token = BranchedToken(0, 1, "", 0.6, 0.9, branches)
        >>> BranchedCompletion(1, 0, 0, "p", (1,), 1.0, (token,), 4, 8).effect(token)
        Effect(mean=-0.75, low=-1.0, high=0.0)
        """
        pairs = [(branch.probability, branch.reward) for branch in token.branches if branch.reward is not None]
        if self.reward is None or not pairs:
            return None
        changes = [reward - self.reward for _, reward in pairs]
        total = math.fsum(chance for chance, _ in pairs)
        mean = math.fsum(chance * change for (chance, _), change in zip(pairs, changes, strict=True)) / total
        return Effect(mean, min(changes), max(changes))


def write_branches(run: Path, branched: BranchedCompletion) -> Path:
    """Writes the branches of a completion into its run's directory, in the place of earlier ones; gives the file."""
    refuse_links(run)
    path = RunDirectory(run).branches(branched.step, branched.group, branched.completion)
    path.parent.mkdir(exist_ok=True)
    effects = [branched.effect(token) for token in branched.tokens]
    tokens = [
        {**asdict(token), "effect": None if effect is None else asdict(effect)}
        for token, effect in zip(branched.tokens, effects, strict=True)
    ]
    atomic_write_text(path, json_text({**asdict(branched), "tokens": tokens}, indent=2) + "\n")
    return path


def read_branches(
    run: Path, step: int, group: int, completion: int, token_ids: Sequence[int]
) -> BranchedCompletion | None:
    """Reads the branches of a completion; None without any, or where it is another completion by now, after a resume.

    Raises:
        UserError: the file is damaged.
    """
    path = RunDirectory(run).branches(step, group, completion)
    contents = read_json(path)
    if not contents or contents.get("token_ids") != [*token_ids]:
        return None
    try:
        tokens = tuple(
            _made(BranchedToken, row, branches=tuple(_made(Branch, branch) for branch in row["branches"]))
            for row in contents["tokens"]
        )
        read_completion: BranchedCompletion = _made(
            BranchedCompletion, contents, tokens=tokens, token_ids=tuple(token_ids)
        )
        places, _ = [token.position for token in tokens], [read_completion.effect(token) for token in tokens]
        if not {*places} <= {*range(len(token_ids))} or {*map(type, places)} - {int}:
            raise ValueError(f"positions {places}")
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UserError(
            f"{path}: expected the branches of a completion, got {error!r:.80}: remove the file, or make it again"
        ) from error
    return read_completion


def _made(kind: type[Any], row: Mapping[str, Any], **parts: Any) -> Any:
    return kind(**{name: row[name] for name in kind.__dataclass_fields__} | parts)
