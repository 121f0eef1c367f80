"""Names of models: bundled ones, folders and ids of the hub; whether one can be there, before torch is loaded."""

from __future__ import annotations

import difflib
from pathlib import Path

from grouprl.types import UserError

BUNDLED = {"abacus": Path(__file__).parent / "assets" / "abacus"}
"""The models that come with the package, by name."""

_FILES = ("config.json", "adapter_config.json")


def check_name(path: str) -> None:
    """Checks that a model of this name can be loaded; while the hub is out of reach, its cache alone is asked.

    Raises:
        UserError: there is no such folder, no bundled model, and no hub to ask or cached copy.
    """
    folder = Path(path)
    if path in BUNDLED or any((folder / name).is_file() for name in _FILES):
        return
    if folder.is_dir():
        raise UserError(
            f"model {path!r}: expected a folder in Hugging Face layout, got one without config.json: check the path; "
            "the model of a run is RUN/checkpoints/step-NNNNNN, or the run itself for eval and sample"
        )
    # `runs/x` beside a folder `runs` is one of ours; OWNER/NAME is the hub's.
    if path.startswith((".", "/", "~")) or path.count("/") > 1 or ("/" in path and folder.parent.is_dir()):
        raise UserError(
            f"model {path!r}: expected a folder in Hugging Face layout, got no such folder: {_near_folder(folder)}"
        )
    from grouprl.models.hub import is_out_of_reach  # brings in huggingface_hub

    if is_out_of_reach() and not _is_cached(path):
        near = difflib.get_close_matches(path, BUNDLED, n=1)
        raise UserError(
            f"model {path!r}: expected a bundled name ({', '.join(BUNDLED)}), a folder in Hugging Face layout or a hub "
            "id, got no such folder, no cached copy and no network: "
            + (f"did you mean {near[0]!r}?" if near else "check the name")
        )


def _near_folder(folder: Path) -> str:
    try:
        beside = [one.name for one in folder.expanduser().parent.iterdir() if one.is_dir()]
    except OSError:
        return "check the path"
    near = difflib.get_close_matches(folder.name, beside, n=1)
    return f"did you mean {folder.parent / near[0]}?" if near else "check the path"


def _is_cached(path: str) -> bool:
    """Whether the hub's cache has some revision of it; loading asks for the one that is wanted."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return (Path(HF_HUB_CACHE) / f"models--{path.replace('/', '--')}").is_dir()
