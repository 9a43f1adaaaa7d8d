"""The same environment for the tests on every machine: variables, home, terminal, time zone, permissions of new files.

Idea: a list of what the tests may see, not of what they may not: the next variable of a terminal, a cloud or a library
changes nothing.
"""

import os
import re
import time
from pathlib import Path

# The only variables of the caller that the tests see: where programs are, and what the tests run on.
KEPT = re.compile(
    r"PATH|PYTHON(PATH|HASHSEED|FAULTHANDLER)|LD_LIBRARY_PATH|TMPDIR|USER|LOGNAME|VIRTUAL_ENV|CI|PYENV_ROOT|"
    r"RECORD_COMPILATIONS|JAX_(PLATFORMS|DISABLE_MOST_OPTIMIZATIONS)|ANYTPU_KERNELS|(CUDA|NVIDIA|COVERAGE|COV|PYTEST|PIP|UV|XLA_PYTHON_CLIENT)_.*"
)
HOME = Path(__file__).parents[1] / ".pytest_cache" / "home"
# A home without settings, a terminal with colours, one language, one time zone. No width, no proxy, no TPU's address.
FIXED = {"HOME": str(HOME), "TERM": "xterm-256color", "LANG": "C.UTF-8", "TZ": "UTC"}
for name in [name for name in os.environ if not KEPT.fullmatch(name)]:
    del os.environ[name]
HOME.mkdir(parents=True, exist_ok=True)
os.environ.update(FIXED)
time.tzset()
os.umask(0o022)
