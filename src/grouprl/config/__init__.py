"""What a run is: small frozen sections, composed; read from YAML files and dotted changes, with nearest-key errors.

In: files and `key=value` texts. Out: a `RunConfig`. Never loads a model or touches a run directory.
Nothing is imported here: reward workers need `config.names` alone, and `config.run` brings torch with the algorithms.
"""
