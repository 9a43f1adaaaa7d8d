"""`RowAxes`: the axis of the rows through the operations of a traced step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytpu.engine.row_axes import RowAxes
from anytpu.program.passes import inlined


def axis_after(function, *shapes, axis=0):
    """Return the axis of the rows of the result, for rows along an axis of the first argument."""
    jaxpr = inlined(jax.make_jaxpr(function)(*[np.ones(shape, "float32") for shape in shapes]).jaxpr)
    axes = RowAxes(4)
    axes.add(jaxpr.invars[0], axis)
    for equation in jaxpr.eqns:
        axes.add_results(equation)
    return axes.of(jaxpr.outvars[0])


@pytest.mark.parametrize(
    ("function", "shapes", "axis"),
    [
        pytest.param(lambda x: x.T * 2, [(8, 3)], 1, id="transpose"),
        pytest.param(lambda x: x.reshape(8, -1), [(8, 3, 5)], 0, id="flatten"),
        pytest.param(lambda x: x.reshape(-1, 5), [(8, 3, 5)], 0, id="merge with the next axis"),
        pytest.param(lambda x: x.reshape(8, 3, 5), [(24, 5)], 0, id="split again"),
        pytest.param(lambda x: x.max(1), [(8, 3)], 0, id="maximum over another axis"),
        pytest.param(lambda x: x.max(0), [(8, 3)], None, id="maximum over the rows"),
        pytest.param(lambda x: jnp.broadcast_to(x, (5, 8, 3)), [(8, 3)], 1, id="broadcast"),
        pytest.param(lambda x: x[:, 0], [(8, 1)], 0, id="squeeze"),
        pytest.param(lambda x, w: x @ w, [(8, 3), (3, 5)], 0, id="product"),
        pytest.param(lambda x, w: w @ x.T, [(8, 3), (5, 3)], 1, id="product on the right"),
        pytest.param(lambda x, y: jnp.einsum("nij,njk->nik", x, y), [(8, 3, 4), (8, 4, 5)], 0, id="batched product"),
        pytest.param(lambda x, y: x.T @ y, [(8, 3), (8, 5)], None, id="product over the rows"),
        pytest.param(lambda x: jax.nn.relu(x) + 1, [(6, 3)], None, id="rows that four pieces do not divide"),
    ],
)
def test_the_axis_moves_with_the_operation(function, shapes, axis):
    assert axis_after(function, *shapes) == axis
