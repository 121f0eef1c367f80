"""What a run is: small frozen sections, composed; read from YAML files and dotted changes, with nearest-key errors.

In: files and `key=value` texts. Out: a `RunConfig`. Never loads a model or touches a run directory.
"""

from grouprl.config.files import dump_config, load_config
from grouprl.config.run import RunConfig

__all__ = ["RunConfig", "dump_config", "load_config"]
