"""The configuration of a run: small frozen sections, composed; read from YAML files and dotted changes.

In: files and `key=value` texts. Out: a `RunConfig`. Never loads a model or touches a run directory.
This file imports nothing, because `config.run` imports torch with the algorithms, which reward workers do without.
"""
