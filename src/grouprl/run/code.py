"""The code that a run consists of: its digests as it began, and whether a resume has the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grouprl.config.own_algorithm import loaded_algorithm
from grouprl.config.run import RunConfig
from grouprl.files import read_json
from grouprl.leaves import find_leaf
from grouprl.record.files import atomic_write_text, json_text
from grouprl.record.layout import RunDirectory
from grouprl.rewards.functions import FromFile, WeightedReward
from grouprl.types import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from grouprl.ranks import Ranks


def code_of(
    rewards: Sequence[WeightedReward], algorithm: str, tokenizer: PreTrainedTokenizerBase, ranks: Ranks
) -> dict[str, Any]:
    """Returns the digests of a run's code files by path, of its tokenizer and of its chat template.

    `algorithm` is the name of the run's, which may be in a file.

    Raises:
        UserError: they are not the same on every rank.
    """
    functions = [reward.function for reward in rewards]
    sources = [
        loaded_algorithm(algorithm)[1],
        *(function.code for function in functions if isinstance(function, FromFile)),
    ]
    files = {path: sha256(source).hexdigest() for code in sources for path, source in code.items()}
    template = tokenizer.chat_template
    code = {
        "files": files,
        "tokenizer": sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest(),
        "chat_template": None if template is None else sha256(str(template).encode()).hexdigest(),
    }
    ranks.agree(json_text(code, indent=2), "code")
    return code


def refuse_changed_code(directory: Path, code: Mapping[str, Any], trusted: Collection[str]) -> None:
    """Checks that a resume has the code files, the tokenizer and the chat template that the run was started with.

    Raises:
        UserError: one of them changed, and it is no code file that the user trusts by name.
    """
    then = read_json(RunDirectory(directory).code)
    names = {"tokenizer", "chat_template"} & then.keys()
    refuse_changes("resume", *({name.replace("_", " "): digests[name] for name in names} for digests in (then, code)))
    recorded, changeable = then.get("files", {}), {Path(path_text).resolve() for path_text in trusted}
    for path, digest in code["files"].items():
        if recorded.get(path, digest) != digest and Path(path).resolve() not in changeable:
            raise UserError(
                f"resume: expected {path} as it was when {directory} started (SHA-256 {recorded[path]}), got a "
                f"changed file ({digest}): restore it, or add --trust-code {path} to continue with the changed one"
            )


def refuse_changes(where: str, then: Mapping[str, str | None], now: Mapping[str, str | None]) -> None:
    """Checks that what a run started with, as fingerprints by name, is what is here; `where` begins the error.

    Raises:
        UserError: one of them differs, or only one side has it.
    """
    for name in sorted({*then, *now}):
        if then.get(name) != now.get(name):
            also = " with evaluation.split and eval_task, which leave these of the rows" * (name == "train problems")
            raise UserError(
                f"{where}: expected the {name} that the run started with (fingerprint {then.get(name) or 'none'}), got "
                f"another ({now.get(name) or 'none'}): restore the {name}{also}, or start a new run under another name"
            )


def refuse_changed_algorithm(directory: Path, name: str, trusted: Collection[str] = ()) -> None:
    """Checks that an algorithm in a file is as it was when a run began; see `refuse_changed_code`."""
    files = {path: sha256(source).hexdigest() for path, source in loaded_algorithm(name)[1].items()}
    refuse_changed_code(directory, {**read_json(RunDirectory(directory).code), "files": files}, trusted)


def record_code(directory: Path, code: Mapping[str, Any], config: RunConfig) -> None:
    """Writes the digests into the run directory, and remembers the code files and the servers for this user.

    Without `grouprl.received` nothing is remembered, and nothing that a run directory names is trusted.
    """
    atomic_write_text(RunDirectory(directory).code, json_text(code, indent=2) + "\n")
    trust = find_leaf("received.trust")
    if trust is not None:
        trust.remember(code, config)
