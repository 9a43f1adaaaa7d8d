"""Workers: every item once, errors that come back, and a BLAS that is as it was before."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from anytpu.chip.machine import workers


def blas_threads() -> list[int]:
    return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_item_is_done_once(count, monkeypatch):
    monkeypatch.setattr(workers, "count", lambda: count)
    done: list[int] = []
    workers.share(range(100), done.append)
    assert sorted(done) == list(range(100))
    workers.share([], done.append)
    assert len(done) == 100


def test_an_error_comes_back(monkeypatch):
    monkeypatch.setattr(workers, "count", lambda: 3)

    def fail(item: int) -> None:
        if item == 7:
            raise ValueError("seven")

    with pytest.raises(ValueError, match=r"^seven$"):
        workers.share(range(20), fail)


def test_a_blas_of_one_thread_until_the_last_has_left():
    np.ones((2, 2), np.float32) @ np.ones((2, 2), np.float32)
    before = blas_threads()
    with workers.one_thread_blas():
        with workers.one_thread_blas():
            assert set(blas_threads()) <= {1}
        assert set(blas_threads()) <= {1}
    assert blas_threads() == before


def test_scratch_belongs_to_a_thread():
    mine = workers.scratch("test", (3, 4))
    mine[...] = 5
    others: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: others.append(workers.scratch("test", (3, 4))))
    thread.start()
    thread.join()
    others[0][...] = 6
    assert (mine == 5).all()
    assert np.shares_memory(mine, workers.scratch("test", (2, 6)))
    assert workers.scratch("test", (50, 4)).shape == (50, 4)
