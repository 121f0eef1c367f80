"""The groups of a recorded run as training data, and the right completions among them (rejection sampling)."""

from __future__ import annotations

from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from grouprl.config.yaml_text import read_yaml
from grouprl.models.load import load_tokenizer
from grouprl.models.prompts import authored_completion, prompt_token_ids
from grouprl.record.layout import RunDirectory
from grouprl.record.read import RecordedGroup, read_rollouts, read_run
from grouprl.supervised.settings import PairsConfig, RecordedConfig
from grouprl.types import Group, UserError

NO_LIMIT = 1 << 30  # prompts are checked together with their completions, by `refuse_longer`


def recorded_groups(
    directory: str, config: RecordedConfig, tokenizer: PreTrainedTokenizerBase
) -> tuple[RecordedGroup, ...]:
    """Reads the groups of a run's steps `first_step` to `last_step`, in order.

    Recorded token ids stay as they are unless the run's tokenizer has another vocabulary than `tokenizer`.

    Raises:
        UserError: the folder is not a run, or a file of it is damaged.
    """
    run = read_run(directory)
    recorded_steps = [row["step"] for row in run.metrics]
    steps = [step for step in recorded_steps if config.first_step <= step <= (config.last_step or step)]
    groups = tuple(group for step in steps for group in read_rollouts(run.directory, step))
    saved = RunDirectory(run.directory).saved_models()
    path = str(saved[-1].path) if saved else read_yaml(run.config)["model"]["path"]
    if load_tokenizer(path).get_vocab() == tokenizer.get_vocab():
        return groups
    encoded = []
    for recorded in groups:
        problem = recorded.group.problem
        prompt_ids = prompt_token_ids(problem, tokenizer, longest=NO_LIMIT)
        completions = [
            authored_completion(index, completion.text, tokenizer, completion.stop_reason)
            for index, completion in enumerate(recorded.group.completions)
        ]
        encoded.append(replace(recorded, group=Group(problem, prompt_ids, tuple(completions))))
    return tuple(encoded)


def right_completions(config: PairsConfig, tokenizer: PreTrainedTokenizerBase) -> list[Group]:
    """Each different completion of a problem that the verifier called right, as a group of one, in recorded order.

    Raises:
        UserError: there is none; or see `recorded_groups`.
    """
    groups = recorded_groups(config.run or "", config, tokenizer)
    rights = {
        (recorded.group.problem.id, completion.token_ids): replace(recorded.group, completions=(completion,))
        for recorded in groups
        for outcome, completion in zip(recorded.outcomes, recorded.group.completions, strict=True)
        if outcome.correct
    }
    if not rights:
        raise UserError(
            f"{config.run}: expected completions that the task's verifier called right, found none in {len(groups)} "
            "groups: choose other steps with pairs.first_step and pairs.last_step, or another run"
        )
    return list(rights.values())
