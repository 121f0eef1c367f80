"""Preference pairs, each a prompt with a chosen and a rejected completion, from a file or the groups of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from grouprl.models.prompts import authored_completion, prompt_token_ids
from grouprl.record.files import atomic_write_text, json_text
from grouprl.supervised.recorded import NO_LIMIT, recorded_groups
from grouprl.supervised.settings import PreferencesConfig
from grouprl.tasks.base import partition
from grouprl.tasks.files import Row, read_rows, text_or_messages
from grouprl.types import Group, Problem, UserError


@dataclass(frozen=True)
class Preference:
    """A pair as a group of two: the chosen completion, then the rejected one."""

    group: Group
    rewards: tuple[float, float] | None = None  # what ranks the two completions, where known


def load_preferences(config: PreferencesConfig, tokenizer: PreTrainedTokenizerBase) -> tuple[Preference, ...]:
    """Loads the pairs of a file or of a run, in token ids.

    A file has the columns `prompt`, `chosen` and `rejected` (TRL's form), all text or all chat messages, with one
    message in `chosen` and in `rejected`. Its completions get an end token. Each group of a run gives its best and its
    worst completion, then its second best and second worst, up to `per_group` pairs that differ in `rank`. Behind them
    come pairs of `older` runs, evenly spaced, which are `older_share` of all. See `recorded_groups` for token ids.

    Raises:
        UserError: a line of the file is not a pair, a folder is not a run, or a run has no group with signal.
    """
    if config.path is not None:
        return tuple(_of_row(row, tokenizer) for row in read_rows(config.path))
    pairs = _of_run(config.run or "", config, tokenizer)
    all_steps = config.model_copy(update={"first_step": 0, "last_step": 0})
    older = [pair for run in config.older for pair in _of_run(run, all_steps, tokenizer)]
    count = min(len(older), round(len(pairs) * config.older_share / (1 - config.older_share)))
    return (*pairs, *(older[at * len(older) // count] for at in range(count)))


def refuse_longer(groups: Sequence[Group], context: int) -> None:
    """Raises UserError for a pair whose prompt and longer completion have more tokens than the context."""
    for group in groups:
        longest = len(group.prompt_ids) + max(map(len, group.completions))
        if longest > context:
            raise UserError(
                f"{group.problem.id}: expected a prompt and completion of at most {context} tokens (the "
                f"model's context), got {longest}: shorten or remove the pair"
            )


def split_preferences(
    preferences: Sequence[Preference], share: float
) -> tuple[tuple[Preference, ...], tuple[Preference, ...]]:
    """Train pairs and held-out pairs; the held-out ones are `share` of the prompts, chosen by the hash of their text.

    Raises:
        UserError: there are fewer than two different prompts.
    """
    part_of = partition((pair.group.problem.prompt_text for pair in preferences), validation=0.0, test=share)
    split: dict[str, list[Preference]] = {"train": [], "test": []}
    if share and len(part_of) < 2:
        raise UserError(
            f"expected at least 2 different prompts, got {len(part_of)}: add pairs, so that one is held out"
        )
    for pair in preferences:
        split[part_of[pair.group.problem.prompt_text]].append(pair)
    return tuple(split["train"]), tuple(split["test"])


def write_preferences(path: Path, preferences: Sequence[Preference]) -> None:
    """Writes the pairs as JSON lines in TRL's form, with their rewards where they are known."""
    lines = []
    for pair in preferences:
        prompt = pair.group.problem.prompt
        row: dict[str, object] = {"prompt": prompt}
        for name, completion in zip(("chosen", "rejected"), pair.group.completions, strict=True):
            text = completion.text
            row[name] = text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        lines.append(json_text(row if pair.rewards is None else row | {"rewards": pair.rewards}) + "\n")
    atomic_write_text(path, "".join(lines))


# Files


def _of_row(row: Row, tokenizer: PreTrainedTokenizerBase) -> Preference:
    where, _ = row
    prompt, *answers = (text_or_messages(row, name) for name in ("prompt", "chosen", "rejected"))
    if len({isinstance(value, str) for value in (prompt, *answers)}) > 1:
        raise UserError(
            f"{where}: expected 'prompt', 'chosen' and 'rejected' all as text or all as chat messages, got both: "
            "write them in one form"
        )
    problem = Problem(where, prompt)
    prompt_ids = prompt_token_ids(problem, tokenizer, longest=NO_LIMIT)
    texts = []
    for answer in answers:
        if not isinstance(answer, str) and (len(answer) > 1 or answer[0]["role"] != "assistant"):
            raise UserError(
                f"{where}: expected one message of the assistant in 'chosen' and in 'rejected', got "
                f"{', '.join(message['role'] for message in answer)}: move what comes before it to 'prompt'"
            )
        texts.append(answer if isinstance(answer, str) else answer[0]["content"])
    chosen, rejected = (authored_completion(index, text, tokenizer) for index, text in enumerate(texts))
    if chosen.token_ids == rejected.token_ids:
        raise UserError(
            f"{where}: expected a chosen completion other than the rejected one, got {chosen.text[:60]!r} twice: "
            "remove the line"
        )
    return Preference(Group(problem, prompt_ids, (chosen, rejected)))


# Runs


def _of_run(directory: str, config: PreferencesConfig, tokenizer: PreTrainedTokenizerBase) -> list[Preference]:
    groups = recorded_groups(directory, config, tokenizer)
    by_reward = config.rank == "reward"
    pairs: list[Preference] = []
    for recorded in groups:
        judged = [
            (outcome.total if by_reward else float(outcome.correct or 0), completion)
            for outcome, completion in zip(recorded.outcomes, recorded.group.completions, strict=True)
            if (outcome.valid if by_reward else outcome.correct is not None)
        ]
        ranked = sorted(judged, key=lambda pair: -pair[0])  # of equal values the first sampled comes first
        of_group = [
            Preference(Group(recorded.group.problem, recorded.group.prompt_ids, (best, worst)), (high, low))
            for (high, best), (low, worst) in zip(ranked, reversed(ranked), strict=True)
            if high > low and best.token_ids != worst.token_ids
        ]
        pairs += of_group[: config.per_group]
    if not pairs:
        raise UserError(
            f"{directory}: expected groups whose completions have different rewards (preferences.rank={config.rank}), "
            f"found none among {len(groups)} groups: choose other steps with preferences.first_step and "
            "preferences.last_step, or another run"
        )
    return pairs
