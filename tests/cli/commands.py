"""The command `anytpu` in a process of its own, with a home and an environment that the test knows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from forked import python

CHOSEN = ("TPU_NAME", "COLAB_TPU_ADDR", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "KERAS_BACKEND", "XLA_FLAGS", "PJRT_NPROC")
"""What a developer may have set and a test must not see."""
LOADING = ("checkpoints", "compare", "demo", "devices", "doctor", "env", "plan")
"""The commands that import JAX or Keras."""
READ_LATE = {"COLUMNS", "TPU_NAME", "XDG_DATA_HOME"}
"""The settings that are not read at an import."""


def anytpu(*words: str, folder: Path | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the command line; it finds no colours, no terminal, and the CPU only."""
    environment = {name: value for name, value in os.environ.items() if name not in CHOSEN}
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONIOENCODING": "utf-8"} | settings
    is_forked = words[:1] and words[0] in LOADING and settings.keys() <= READ_LATE
    command = [*(python() if is_forked else [sys.executable]), "-m", "anytpu", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, encoding="utf-8")
