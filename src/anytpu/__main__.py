"""`python -m anytpu` is the command `anytpu`."""

from __future__ import annotations

import sys

from anytpu.cli import main

if __name__ == "__main__":
    sys.exit(main())
