from __future__ import annotations

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import ReplicaError, SettingError

REFUSED = (
    "a PerReplica holds one value for each of 2 replicas and is not an array. Make one value of it with "
    'strategy.reduce("SUM", value, axis=None) or strategy.gather(value, axis=0), look at the parts with value.values, '
    "or compute inside a function that you pass to strategy.run"
)


def test_it_is_printed_as_the_tpu_guide_shows(strategy):
    a = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "float32")
    b = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "float32")
    z = strategy.run(jnp.matmul, args=(a, b))
    assert repr(z) == (
        "PerReplica:{\n"
        "  0: [[22. 28.]\n"
        " [49. 64.]],\n"
        "  1: [[22. 28.]\n"
        " [49. 64.]]\n"
        "}"
    )  # fmt: skip
    assert str(strategy.run(lambda: jnp.float32(2))) == "PerReplica:{\n  0: 2.0,\n  1: 2.0\n}"


def test_values_are_a_tuple_in_the_order_of_the_replicas(strategy):
    values = strategy.run(lambda x: x * 2, args=(tpu.PerReplica([1, 2]),)).values
    assert values == (2, 4)
    assert strategy.experimental_local_results(tpu.PerReplica([1, 2])) == (1, 2)
    assert strategy.experimental_local_results(3) == (3,)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x + 1,
        lambda x: 1 - x,
        lambda x: x * x,
        lambda x: np.ones(3) / x,
        lambda x: jnp.ones(3) * x,
        lambda x: -x,
        lambda x: x**2,
        lambda x: x // 2,
        lambda x: x @ x,
        lambda x: x < 3,
        lambda x: x[0],
        lambda x: list(x),
        lambda x: len(x),
        lambda x: bool(x),
        lambda x: float(x),
        lambda x: int(x),
        lambda x: np.asarray(x),
        lambda x: jnp.asarray(x),
        lambda x: jnp.sum(x),
        lambda x: jnp.square(x),
        lambda x: keras.ops.mean(x),
        lambda x: x.numpy(),
    ],
)
def test_it_is_not_an_array(use):
    with pytest.raises(ReplicaError) as caught:
        use(tpu.PerReplica([1.0, 2.0]))
    assert str(caught.value) == REFUSED


def test_arithmetic_is_a_type_error_as_in_tensorflow():
    for use in (lambda value: value + 1, lambda value: 2 * value, float, len, np.asarray):
        with pytest.raises(TypeError) as caught:
            use(tpu.PerReplica([1.0, 2.0]))
        assert str(caught.value) == REFUSED


def test_it_is_made_of_a_list():
    for bad in ([], 3, np.ones(2)):
        with pytest.raises(SettingError) as caught:
            tpu.PerReplica(bad)
        assert str(caught.value) == (
            f"a PerReplica is made of a list with one value for each replica, not of {bad!r}: for example "
            "PerReplica(np.split(x, strategy.num_replicas_in_sync))"
        )


@pytest.mark.parametrize(
    ("values", "dtype"), [([1, 2], "int32"), ([1, 2.5], "float32"), ([np.uint8(1), np.uint8(2)], "uint8")]
)
def test_its_spec(values, dtype):
    spec = tpu.PerReplica(values).spec()
    assert (spec.shape, str(spec.dtype)) == ((2,), dtype)


@pytest.mark.parametrize("kind", ["virtual", "twin"])
def test_it_goes_back_in_without_leaving_the_cores(kind, monkeypatch):
    strategy = tpu.connect(kind, cores=2)
    doubled = strategy.run(lambda x: x * 2, args=(tpu.PerReplica([1, 2]),))

    def get(_, tree):
        assert not tree, "something was fetched"
        return tree

    with monkeypatch.context() as patch:
        patch.setattr(type(strategy.backend), "get", get)
        again = strategy.run(lambda x: x * 2, args=(doubled,))
    assert again.values == (4, 8)


def test_it_goes_to_a_strategy_on_another_system(strategy):
    doubled = strategy.run(lambda x: x * 2, args=(tpu.PerReplica([1, 2]),))
    assert tpu.connect("twin", cores=2).run(lambda x: x + 1, args=(doubled,)).values == (3, 5)


def test_one_replica_gives_plain_values():
    strategy = tpu.connect("virtual", cores=1)
    out = strategy.run(lambda x: {"sum": x.sum(), "rows": x}, args=(np.ones((2, 3), "float32"),))
    assert float(out["sum"]) == 6.0
    assert np.asarray(out["rows"]).shape == (2, 3)
