"""Entry point of `python -m anytpu`: runs the `anytpu` command."""

from __future__ import annotations

import sys

from anytpu.cli import main

if __name__ == "__main__":
    sys.exit(main())
