"""A leaf: files of strangers: downloads, manifests, tokenizers, the code that a run directory names."""
