"""Publishes a checkpoint on the Hugging Face hub, when somebody asks for it and never else."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import CommitInfo, HfApi
from huggingface_hub.errors import HFValidationError, HTTPError  # type: ignore[attr-defined]  # its network library's

from grouprl.leaves import leaf
from grouprl.models.load import load_tokenizer
from grouprl.models.manifest import MANIFEST, check_manifest, has_manifest
from grouprl.record.layout import Checkpoint, run_of_checkpoint
from grouprl.record.read import RecordedRun, measure_of, read_run
from grouprl.types import UserError

CARD = "README.md"


def push(folder: Path, repository: str, *, public: bool = False) -> CommitInfo:
    """Uploads a model folder without the state of its run, and a model card where the folder has none.

    Args:
        folder: a checkpoint of a run, or another model in Hugging Face layout.
        repository: `OWNER/NAME`, or a name in the token's own account; it is made where it is not there, and a new
            commit where it is.
        public: whether a repository that is made is seen by everyone.

    Returns:
        The hub's answer: `commit_url`, and the repository's whole name in `repo_url.repo_id`.

    Raises:
        UserError: there is no complete model in the folder, no right to write, or no network.
    """
    if not (folder / "config.json").is_file() and not (folder / "adapter_config.json").is_file():
        raise UserError(f"{folder}: expected a model in Hugging Face layout, found no config.json: give a checkpoint")
    if repository.count("/") > 1:
        raise UserError(f"{repository}: expected OWNER/NAME of the Hugging Face hub: write my-name/{folder.name}")
    if has_manifest(folder):
        check_manifest(folder)
    load_tokenizer(str(folder))
    leaf("received.hub").end_exchanges()
    run, hub = run_of_checkpoint(folder), HfApi(library_name="grouprl")
    trainer_name = Checkpoint(folder, 0).trainer.name
    try:
        repository = hub.create_repo(repository, private=not public, exist_ok=True).repo_id
        done = hub.upload_folder(
            repo_id=repository,
            folder_path=folder,
            ignore_patterns=[f"{trainer_name}/*", MANIFEST],
            commit_message=f"{folder.name} of a GroupRL run" if run else folder.name,
        )
        if run is not None and not (folder / CARD).exists():
            with TemporaryDirectory() as temporary:
                (Path(temporary) / CARD).write_text(model_card(read_run(run.path), folder.name), encoding="utf-8")
                hub.upload_folder(repo_id=repository, folder_path=temporary, commit_message="Model card")
    except (HTTPError, HFValidationError, OSError) as error:  # refused, not a name, no token, no network, offline
        answered = getattr(error, "response", None) is not None or isinstance(error, HFValidationError)
        remedy = "log in with `hf auth login` or set HF_TOKEN with the right to write, and give OWNER/NAME"
        raise UserError(
            f"{repository}: expected to upload {folder}, got {type(error).__name__}: {str(error).strip()}: "
            + (remedy if answered or "token" in str(error).lower() else "check the network and HF_HUB_OFFLINE")
        ) from error
    return done


def model_card(run: RecordedRun, checkpoint: str) -> str:
    """What the model is, in Markdown with the hub's header: algorithm, task and held-out results of the run."""
    summary = run.summary
    head = ["---", "library_name: transformers", "tags: [reinforcement-learning, grouprl]", "---"]
    facts = [f"- {name}: {summary[name]}" for name in ("algorithm", "task", "steps", "seed") if name in summary]
    by_reward = measure_of(summary, run.evaluations) == "reward"
    measure, form = ("reward", ".3f") if by_reward else ("greedy_accuracy", ".1%")
    results = {when: run.results(when) for when in ("before", "after")}
    rows = [
        f"| {when} | {row[measure]:{form}} | {row['problems']} |" for when, row in results.items() if measure in row
    ]
    name = "mean reward" if by_reward else "greedy accuracy"
    table = [f"| training | {name} | held-out problems |", "|---|---|---|", *rows] if rows else []
    title = f"# {run.directory.name}, {checkpoint}"
    parts = [head, [title], ["Trained by reinforcement learning with GroupRL."], facts, table]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"
