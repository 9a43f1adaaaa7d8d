"""The command `anytpu` in a process of its own, with a home and an environment that the test knows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHOSEN = ("TPU_NAME", "COLAB_TPU_ADDR", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "KERAS_BACKEND", "XLA_FLAGS", "PJRT_NPROC")
"""What a developer may have set and a test must not see."""


def anytpu(*words: str, folder: Path | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the command line; it finds no colours, no terminal, and the CPU only."""
    environment = {name: value for name, value in os.environ.items() if name not in CHOSEN}
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONIOENCODING": "utf-8"} | settings
    command = [sys.executable, "-m", "anytpu", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, encoding="utf-8")
