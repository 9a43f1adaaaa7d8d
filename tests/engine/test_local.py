"""The local backend: what it refuses. What it computes is in the battery of the backends."""

from __future__ import annotations

import pytest

from anytpu.engine.local import check_hosts
from anytpu.errors import BackendError


def test_one_host_only():
    check_hosts(1)
    with pytest.raises(BackendError) as caught:
        check_hosts(4)
    assert str(caught.value) == (
        "JAX runs on 4 hosts, and this release of anytpu uses the TPU cores or GPUs of one host only. Start the "
        "program on one host, without jax.distributed.initialize()"
    )
