"""`python -m grouprl` is the command line."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the current folder: a json.py in it must not replace the standard library's

from grouprl.cli import main

main()
