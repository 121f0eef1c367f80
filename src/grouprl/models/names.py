"""Names of models: bundled ones, folders and ids of the hub; whether one can be there, before torch is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from grouprl.leaves import leaf
from grouprl.types import UserError, nearest_name

BUNDLED = {name: Path(__file__).parent / "assets" / name for name in ("abacus", "abacus_chains", "abacus_tools")}
"""The models that come with the package, by name."""

PLAIN, QUESTION, TOOLS = "plain", "question", "tools"  # the built-in chat templates
ALL_LINEAR = "all-linear"  # of an adapter's targets: every linear layer

WEIGHT_INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


class ModelSource(Protocol):
    """Where a model and its chat template come from; a configuration's section `model` is one."""

    @property
    def path(self) -> str:
        """A bundled name, a folder or a hub id."""
        ...

    @property
    def revision(self) -> str | None:
        """Of a hub id; None = its main branch."""
        ...

    @property
    def chat_template(self) -> str | None:
        """None = the tokenizer's; `plain`, `question`, `tools` or a file."""
        ...

    @property
    def chat_template_kwargs(self) -> Mapping[str, bool | int | float | str]:
        """Variables of the chat template."""
        ...


_FILES = ("config.json", "adapter_config.json")


def check_name(path: str, what: str = "model") -> None:
    """Checks that a model of this name can be loaded; while the hub is out of reach, its cache alone is asked.

    `what` names the setting in the errors.

    Raises:
        UserError: there is no such folder, no bundled model, and no hub to ask or cached copy.
    """
    folder = Path(path)
    if path in BUNDLED or any((folder / name).is_file() for name in _FILES):
        return
    if is_gguf(path):
        if folder.is_file():
            return
        raise UserError(f"{what} {path!r}: expected a GGUF file, found none: check the path")
    if folder.is_dir():
        files = sorted(str(file) for file in folder.iterdir() if is_gguf(str(file)))
        raise UserError(
            f"{what} {path!r}: expected a folder in Hugging Face layout, or a run, got one without config.json: "
            + (f"name a file in it, such as {files[0]}" if files else "check the path")
        )
    if folder.is_file():
        raise UserError(f"{what} {path!r}: expected a folder in Hugging Face layout, got a file: give its folder")
    # `runs/x` beside a folder `runs` is one of ours; OWNER/NAME is the hub's.
    if path.startswith((".", "/", "~")) or path.count("/") > 1 or ("/" in path and folder.parent.is_dir()):
        near = None
        with suppress(OSError):
            beside = [sibling.name for sibling in folder.expanduser().parent.iterdir() if sibling.is_dir()]
            near = nearest_name(folder.name, beside)
        remedy = f"did you mean {folder.parent / near}?" if near else "check the path"
        raise UserError(f"{what} {path!r}: expected a folder in Hugging Face layout, got no such folder: {remedy}")
    from huggingface_hub.constants import HF_HUB_CACHE

    # Any revision in the hub's cache will do here; loading asks for the one that is wanted.
    is_cached = (Path(HF_HUB_CACHE) / f"models--{path.replace('/', '--')}").is_dir()
    if leaf("received.hub").is_out_of_reach() and not is_cached:
        near = nearest_name(path, BUNDLED)
        folders = sorted(str(beside / path) for beside in Path().iterdir() if (beside / path).is_dir())
        suggestion = repr(near) if near else folders[0] if folders else ""
        raise UserError(
            f"{what} {path!r}: expected a bundled name ({', '.join(BUNDLED)}), a folder in Hugging Face layout or a "
            "hub id, got no such folder, no cached copy and no network: "
            + (f"did you mean {suggestion}?" if suggestion else "check the name")
        )


def is_gguf(path: str) -> bool:
    """Whether a model is named by a GGUF file, which is imported before it is loaded."""
    return path.lower().endswith(".gguf") and not Path(path).is_dir()
