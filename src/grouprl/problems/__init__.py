"""A leaf: the built-in tasks and rule rewards, one short file each."""
