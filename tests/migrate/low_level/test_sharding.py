"""What the low-level calls refuse, and in what words."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import ReplicaError, SettingError, StrategyError
from anytpu.migrate.low_level.arguments import in_use
from error_texts import error_text

SUPPORTED = (
    "which is not a supported TPU infeed type. Supported types are: bool, int8 to int64, uint8 to uint64, bfloat16, "
    "float16 to float64, complex64, complex128. Turn its values into numbers first, for example strings with "
    "np.unique(..., return_inverse=True) or keras.layers.StringLookup"
)


def same(*args):
    return args


REFUSED = [
    (
        lambda: tpu.shard(same, np.ones(8)),
        TypeError,
        "tpu.shard()'s inputs must be a list of arrays, or of trees of arrays, or None, not an array of shape (8,): "
        "for one input x type tpu.shard(computation, [x])",
    ),
    (
        lambda: tpu.rewrite(same, 3.0),
        TypeError,
        "tpu.rewrite()'s inputs must be a list of arrays, or of trees of arrays, or None, not 3.0: for one input x "
        "type tpu.rewrite(computation, [x])",
    ),
    (lambda: tpu.shard(same, [{"x": np.array(["a", "b"])}]), TypeError, f"inputs[0]['x'] holds string, {SUPPORTED}"),
    (lambda: tpu.rewrite(same, [1, "b"]), TypeError, f"inputs[1] holds string, {SUPPORTED}"),
    (lambda: tpu.rewrite(same, [np.array([None])]), TypeError, f"inputs[0] holds objects, {SUPPORTED}"),
    (
        lambda: tpu.shard(same, [np.ones(8)], num_shards=0),
        ValueError,
        "num_shards must be a positive integer, or None for all cores, not 0",
    ),
    (
        lambda: tpu.shard(same, [np.ones(8)], num_shards=5),
        ValueError,
        "num_shards is 5, and <TPUStrategy: 4 virtual cores> has 4 cores: leave num_shards out to use them all, or "
        'start with tpu.connect("virtual", cores=5)',
    ),
    (
        lambda: tpu.shard(same, [np.ones(8)], input_shard_axes=[0, 0]),
        ValueError,
        "length of input_shard_axes must be equal to the number of inputs: there are 2 axes for 1 input",
    ),
    (
        lambda: tpu.shard(same, [np.ones(8)], input_shard_axes=0),
        ValueError,
        "input_shard_axes must be a list of axes, such as [0, 1, None], or None, not 0",
    ),
    (
        lambda: tpu.shard(same, [np.ones(8)], output_shard_axes=[0, 1]),
        ValueError,
        "length of output_shard_axes must be equal to the number of outputs: there are 2 axes for 1 output",
    ),
    (
        lambda: tpu.shard(same, [np.ones(8)], outputs_from_all_shards=[True, False]),
        ValueError,
        "outputs_from_all_shards must be True, False, or a list with one of them for each of the 1 outputs, not "
        "[True, False]",
    ),
    (
        lambda: tpu.batch_parallel(same, [np.ones((10, 3))]),
        ValueError,
        "inputs[0] of shape (10, 3) cannot be sharded 4 ways along dimension 0: 10 is not a multiple of 4. Give it 8 "
        "or 12, choose num_shards, or let strategy.distribute_dataset distribute the rows, which works for any "
        "number of them",
    ),
    (
        lambda: tpu.shard(same, [np.ones(8), 3.0]),
        ValueError,
        "inputs[1] has the shape (), which has no axis 0 to split: give every shard the whole array with None in the "
        "list, as in input_shard_axes=[0, None]",
    ),
    (
        lambda: tpu.replicate(same, [1.0, 2.0]),
        TypeError,
        "tpu.replicate() inputs must be a list of lists/tuples, one for each replica, for example "
        "[[x0, y0], [x1, y1]], not [1.0, 2.0]",
    ),
    (
        lambda: tpu.replicate(same, [[1.0], [1.0, 2.0]]),
        ValueError,
        "replicas must have the same number of inputs, and these have 1, 2",
    ),
    (
        lambda: tpu.replicate(same, [[1.0], [np.ones(2, "int32")]]),
        ValueError,
        "replicas must have matching input types, and replica 1 has int32[2] where replica 0 has float32[]",
    ),
    (
        lambda: jax.jit(lambda x: tpu.rewrite(same, [x]))(1.0),
        ValueError,
        "inputs[0] is being traced by JAX, and tpu.rewrite compiles by itself: call it outside of jax.jit, jax.grad "
        "and jax.vmap",
    ),
]


@pytest.mark.parametrize(("call", "kind", "message"), REFUSED)
def test_what_is_refused(call, kind, message, strategy):
    with pytest.raises(SettingError) as caught:
        call()
    assert isinstance(caught.value, kind)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("shard", lambda: tpu.shard(same)),
        ("shard", lambda: tpu.batch_parallel(same)),
        ("replicate", lambda: tpu.replicate(same)),
        ("rewrite", lambda: tpu.rewrite(same)),
    ],
)
def test_computations_are_not_nested(name, call, strategy):
    assert error_text(lambda: tpu.rewrite(call), kind=StrategyError) == (
        f"TPU computations cannot be nested: tpu.{name} was called in a function that already runs on the cores. Call "
        "the inner function directly"
    )


def test_what_is_no_array_is_not_returned(strategy):
    with pytest.raises(ReplicaError) as caught:
        tpu.rewrite(lambda: "text")
    assert str(caught.value).startswith(
        "<lambda> returns 'text', and a function that strategy.run runs must return arrays"
    )


def test_the_cores_are_those_in_scope_or_in_use():
    two, three = (tpu.connect("virtual", cores=cores) for cores in (2, 3))
    count = lambda: int(tpu.shard(lambda: tpu.cross_replica_sum(1), outputs_from_all_shards=False)[0])  # noqa: E731
    assert count() == 3
    with two.scope():
        assert count() == 2
        assert in_use() is two
    assert count() == 3
    tpu.initialize_system(two.cluster_resolver)
    assert count() == 2
    assert in_use() is in_use()
    assert in_use().system is not three.system


def test_without_a_system_one_is_found():
    tpu.shutdown_system()
    assert tpu.rewrite(lambda: jnp.int32(7))[0] == 7
    kept = in_use()
    tpu.shutdown_system()
    assert in_use() is not kept


def test_a_model_made_in_a_scope_runs_on_one_of_its_cores(strategy):
    with strategy.scope():
        layer = keras.layers.Dense(2, kernel_initializer="ones")
        layer.build((None, 3))
    rows = np.ones((4, 3), "float32")
    assert np.asarray(tpu.rewrite(layer, [rows])[0]).tolist() == [[3.0, 3.0]] * 4
    tpu.rewrite(lambda: layer.bias.assign([1.0, 2.0]))
    assert np.asarray(tpu.batch_parallel(layer, [rows])[0]).tolist() == [[4.0, 5.0]] * 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tpu.repeat(-1, same, [1]), "n must be an integer of at least 0, or an integer scalar, not -1"),
        (lambda: tpu.repeat(1.5, same, [1]), "n must be an integer of at least 0, or an integer scalar, not 1.5"),
        (lambda: tpu.repeat(2, same, 1), "inputs must be a list of arrays, or of trees of arrays, or None, not 1"),
        (lambda: tpu.repeat(2, 3, [1]), "tpu.repeat runs a function on the device, and 3 is not a function"),
        (
            lambda: tpu.repeat(2, lambda x: (x, x), [1]),
            "the body of a loop on the device must return as many values as it takes: it takes 1 and returns 2",
        ),
        (
            lambda: tpu.repeat(2, lambda x: x * 0.5, [1]),
            "the body of a loop on the device must return values of the same form as its arguments: inputs[0] is "
            "int32[], and it returns float32[]",
        ),
        (
            lambda: tpu.while_loop(lambda x: x > 0, same, [np.ones(2)]),
            "the condition of tpu.while_loop must return one boolean, not an array of shape (2,): take .any() or "
            ".all() of it",
        ),
    ],
)
def test_what_a_loop_refuses(call, message, strategy):
    assert error_text(call, kind=SettingError) == message
