from __future__ import annotations

from collections.abc import Iterator

import pytest

from anytpu.system import shutdown_tpu_system
from worker.worker_process import WorkerProcess


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    started = WorkerProcess(tmp_path_factory.mktemp("worker"), "--tpu", "v2-8", "--memory-limit", "2")
    try:
        yield started
    finally:
        shutdown_tpu_system()
        started.stop()
