"""TRL's GRPOConfig and GRPOTrainer over GroupRL: a TRL script runs with one changed import.

In: a script's arguments. Out: a run, whose directory is `output_dir`, with TRL's metrics, checkpoints and state beside.
Every key means what the importer's table says; TRL itself is never imported.
"""

from grouprl.trl.config import GRPOConfig as GRPOConfig
from grouprl.trl.trainer import GRPOTrainer as GRPOTrainer


def __getattr__(name: str) -> object:
    if not name.endswith(("Config", "Trainer")):
        raise AttributeError(f"module {__name__} has no attribute {name}")
    raise ImportError(
        f"grouprl.trl: expected GRPOConfig or GRPOTrainer, got {name}: import it from trl, or train with a command of "
        "GroupRL (docs/coming_from.md)"
    )
