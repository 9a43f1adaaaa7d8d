"""Kind: a Python number beside bfloat16 makes the result of a step float32, where `jax.jit` returns bfloat16.

The right dtypes are those of `jax.jit` of the same function, called again with its own results.
"""

import anytpu as tpu  # noqa: I001
import jax
import jax.numpy as jnp
import numpy as np
from case import check, check_equal, finish

params = {"w": jnp.ones((3,), "bfloat16"), "b": jnp.ones((), "float16")}


def scaled(params, rate, other=2.0):
    return jax.tree.map(lambda p: p * rate * other, params), rate, rate * 2


def types(tree):
    return jax.tree.map(lambda v: (jnp.result_type(v).name, bool(getattr(v, "weak_type", False))), tree)


ARGUMENTS = {
    "float": 0.5,
    "int": 3,
    "weak array": jnp.asarray(0.5),
    "strong array": jnp.float32(0.5),
    "NumPy scalar": np.float32(0.5),
    "NumPy float64": np.float64(0.5),
}
for cores in (1, 4):
    strategy = tpu.connect("virtual", cores=cores)

    def part(value, strategy=strategy):
        return strategy.experimental_local_results(value)[0]

    for name, value in ARGUMENTS.items():
        right = jax.jit(scaled)(params, value)
        found = strategy.run(scaled, args=(params, value))
        check_equal(
            f"{cores}: {name}",
            types(right[0]),
            types(jax.tree.map(part, found[0], is_leaf=lambda v: isinstance(v, tpu.PerReplica))),
        )
        # The results go back in.
        for index in (1, 2):
            again = strategy.run(lambda p, r: p["w"] * r, args=(params, found[index]))
            expected = jax.jit(lambda p, r: p["w"] * r)(params, right[index])
            check_equal(
                f"{cores}: result {index} of {name} passed on",
                jnp.result_type(expected).name,
                jnp.result_type(part(again)).name,
            )
    found = strategy.run(
        lambda p, tree: p["w"] * tree["a"][0] + tree["b"], args=(params,), kwargs={"tree": {"a": [2.0], "b": 1}}
    )
    check_equal(f"{cores}: in a tree", "bfloat16", jnp.result_type(part(found)).name)
    found = strategy.run(lambda p, r: p["w"] * r, args=(params, tpu.PerReplica([0.5] * cores)))
    check_equal(f"{cores}: PerReplica of numbers", "bfloat16", jnp.result_type(part(found)).name)
    found = strategy.run(lambda p, r: p["w"] * r, args=(params, tpu.PerReplica([np.float32(0.5)] * cores)))
    check_equal(f"{cores}: PerReplica of NumPy scalars", "float32", jnp.result_type(part(found)).name)

    # Steps of a loop: the state and the batches have numbers.
    def step(state, batch, axis="replica"):
        rate, w, total = state
        mean = jax.lax.pmean(batch[0].sum(), axis) if axis else batch[0].sum()
        return (rate, w - rate * mean * batch[1], total + w.sum()), rate * w

    state = (0.3, params["w"], 0.0)
    batches = [(jnp.ones((4,), "bfloat16"), 0.5)] * 5
    distributed = [(tpu.PerReplica([x] * cores), y) for x, y in batches]
    right = state
    for _ in range(5):
        right = jax.jit(lambda s, b: step(s, b, None))(right, batches[0])[0]
    found, last = strategy.run_steps(step, iter(distributed), 5, state=state)
    check_equal(f"{cores}: run_steps", types(right), types(found))
    check_equal(f"{cores}: run_steps, outputs", "bfloat16", jnp.result_type(part(last)).name)
    for index in range(3):
        check(
            f"{cores}: run_steps, value {index}",
            jnp.asarray(right[index], "float32"),
            jnp.asarray(found[index], "float32"),
            0,
        )
    again, _ = strategy.run_steps(step, iter(distributed), 5, state=found)
    check_equal(f"{cores}: run_steps again", types(right), types(again))
    # A batch that does not fill the replicas.
    if cores > 1:
        short = next(iter(strategy.distribute_dataset([np.ones((3, 2), "float32")])))
        found = strategy.run(lambda p, x, r: p["w"] * r * x.astype("bfloat16").sum(), args=(params, short, 0.5))
        check_equal("a batch that does not fill the replicas", "bfloat16", jnp.result_type(part(found)).name)

whole = tpu.connect("virtual", cores=4, layout="data")
found, _ = whole.run_steps(lambda state, batch: step(state, batch, None), iter(batches), 5, state=state)
check_equal("run_steps of a layout", types(right), types(found))
finish()
