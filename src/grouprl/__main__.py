"""`python -m grouprl` is the command line."""

import sys

from grouprl.leaves import leaf
from grouprl.types import UserError

try:
    main = leaf("cli")
except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
main()
