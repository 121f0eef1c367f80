"""`python -m grouprl` is the command line."""

from grouprl.cli import main

main()
