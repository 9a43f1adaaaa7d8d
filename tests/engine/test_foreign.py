"""oneDNN's kernels in the engine: where they are used, and where never."""

import os
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from anytpu import _env
from anytpu.engine.foreign import foreign_kernels, why_not
from anytpu.engine.kernels import fast_kernels
from anytpu.engine.virtual import VirtualBackend
from anytpu.errors import SettingError
from anytpu.program import lower, of
from anytpu.system.topologies import row_of_cores
from engine.kernel_switch import compiled
from forked import python

pytestmark = pytest.mark.optimized

CALL = "anytpu_convolution"

needs_kernels = pytest.mark.skipif(why_not() is not None, reason=f"XLA computes everything here: {why_not()}")


def train(x, w):
    def convolve(x, w):
        return lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    y, pull = jax.vjp(convolve, x, w)
    return y, *pull(jnp.sin(y))


def operands(*batch):
    random = np.random.default_rng(0)
    shapes = (*batch, 4, 9, 10, 8), (3, 3, 8, 16)
    return [jnp.asarray(random.normal(size=shape), "float32") for shape in shapes]


def in_new_process(program, **settings):
    words = [*python(), "-c", f"import warnings\nwarnings.simplefilter('error')\n{program}"]
    return subprocess.run(words, capture_output=True, text=True, env=os.environ | settings, timeout=100)


@needs_kernels
def test_a_layer_and_its_gradients_are_three_calls():
    def text():
        return jax.jit(lambda x, w: train(x, w)).lower(*operands()).as_text()

    with fast_kernels():
        assert text().count(f"custom_call @{CALL}") == 3
    assert CALL not in text()


@needs_kernels
def test_float64_stays_with_xla():
    with jax.enable_x64(True), fast_kernels():
        x, w = (jnp.asarray(operand, "float64") for operand in operands())
        assert CALL not in jax.jit(lambda x, w: train(x, w)).lower(x, w).as_text()


@needs_kernels
def test_replicas_that_share_weights_are_one_batch():
    with fast_kernels():
        x, w = operands(8)
        text = jax.jit(lambda x, w: jax.vmap(lambda x: train(x, w)[0])(x)).lower(x, w).as_text()
    assert text.count(f"custom_call @{CALL}") == 1
    assert "tensor<32x9x10x8xf32>" in text


@pytest.mark.parametrize("each_its_own", [False, True])
def test_replicas_in_a_loop_keep_their_numbers(each_its_own):
    x, w = operands(8)

    def steps(x, w):
        def body(_, state):
            x, w = state
            _, dx, dw = jax.vmap(train, in_axes=(0, 0 if each_its_own else None))(x, w)
            return x - 0.01 * dx, w - 0.001 * (dw if each_its_own else dw.sum(0))

        return lax.fori_loop(0, 3, body, (x, w))

    w = jnp.stack([w] * 8) if each_its_own else w
    for ours, own in zip(compiled(steps, x, w, fast=True), compiled(steps, x, w, fast=False), strict=True):
        np.testing.assert_allclose(ours, own, rtol=1e-4, atol=2e-5 * np.abs(own).max())


@needs_kernels
def test_the_same_numbers_each_time():
    first, second = (compiled(train, *operands(), fast=True) for _ in range(2))
    assert all(np.array_equal(*pair) for pair in zip(first, second, strict=True))


@needs_kernels
def test_what_travels_has_no_foreign_call():
    """A Program that ran here and then is lowered for a file, or for a plan, has XLA's own convolutions."""
    x, w = operands()

    def step(state, batch):
        return {"w": state["w"] - 0.1 * train(batch["x"], state["w"])[2]}, {}

    program = of(step, ({"w": w}, {"x": x}))
    VirtualBackend(row_of_cores(1).cores).compile(program)
    assert CALL not in lower(program, "cpu").mlir_module()
    assert "stablehlo.convolution" in lower(program, "cpu").mlir_module()


PROGRAM = """
import sys
import numpy as np
import jax, jax.numpy as jnp
from anytpu.engine.kernels import fast_kernels

def value():
    x, w = jnp.ones((16, 32, 32, 16)), jnp.ones((3, 3, 16, 16))
    with fast_kernels():
        lowered = jax.jit(lambda x, w: jax.lax.conv(x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1), (1, 1), "SAME"))
        lowered = lowered.lower(x, w)
    assert "anytpu_convolution" in lowered.as_text()
    return float(lowered.compile()(x, w).sum())
"""

FORKED = """
import ctypes, os
from anytpu_kernels import library

# JAX itself does not outlive a fork; the library does, with helpers of its own in the child.
work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
loaded = library.load()
begin, end = loaded.GOMP_parallel_start, loaded.GOMP_parallel_end
begin.argtypes = work, ctypes.c_void_p, ctypes.c_uint
seen = []
mark = work(lambda _: seen.append(loaded.omp_get_thread_num()))

def team():
    seen.clear()
    begin(mark, None, 3)
    mark(None)
    end()
    return sorted(seen)

assert team() == [0, 1, 2]
child = os.fork()
if child == 0:
    os._exit(0 if team() == [0, 1, 2] else 1)
assert os.waitpid(child, 0)[1] == 0
assert team() == [0, 1, 2]
"""


@needs_kernels
def test_a_forked_process_has_threads_of_its_own():
    run = in_new_process(FORKED)
    assert run.returncode == 0, run.stderr


@needs_kernels
def test_spawned_processes_compute_the_same():
    runs = [in_new_process(PROGRAM + "print(value())") for _ in range(2)]
    assert [run.stdout for run in runs] == ["36192256.0\n"] * 2, runs[0].stderr


LSTM = """
import sys
import jax, jax.numpy as jnp, keras
from anytpu.engine.kernels import fast_kernels
from anytpu.engine.virtual import VirtualBackend
from anytpu.program import lower, of
from anytpu.system.topologies import row_of_cores

layer = keras.layers.LSTM(16, kernel_initializer="ones", recurrent_initializer="identity")
layer.build((8, 12, 4))
others = [v.value for v in layer.non_trainable_variables]

def step(state, batch):
    def loss(weights):
        return layer.stateless_call(weights, others, batch["x"])[0].sum()

    slopes = jax.grad(loss)(state["weights"])
    return {"weights": [w - 0.1 * s for w, s in zip(state["weights"], slopes)]}, {"sum": jnp.abs(slopes[0]).sum()}

batch = {"x": jnp.linspace(-1, 1, 8 * 12 * 4).reshape(8, 12, 4)}
state = {"weights": [v.value for v in layer.trainable_variables]}
program = of(step, (state, batch))
ran = VirtualBackend(row_of_cores(1).cores).compile(program).step(state, batch)
text = lower(program, "cpu").mlir_module()
with fast_kernels():
    here = jax.jit(lambda state, batch: step(state, batch)).lower(state, batch).as_text()
print(here.count("custom_call @anytpu_"), text.count("anytpu_"), float(ran[1]["sum"]))
"""


@needs_kernels
def test_an_lstm_is_three_calls_here_and_none_where_it_travels():
    runs = [in_new_process(LSTM, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu") for _ in range(2)]
    calls, travelling, total = runs[0].stdout.split() or pytest.fail(runs[0].stderr)
    assert (calls, travelling) == ("3", "0")
    assert runs[1].stdout == runs[0].stdout
    own = in_new_process(LSTM, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu", ANYTPU_KERNELS="xla").stdout.split()
    assert own[:2] == ["0", "0"]
    assert float(total) == pytest.approx(float(own[2]), rel=1e-4)


HUGE_PAGES = """
import jax.numpy as jnp
from anytpu.engine.virtual import VirtualBackend
from anytpu.program import of
from anytpu.system.topologies import row_of_cores
from anytpu_kernels import use_huge_pages

def step(state, batch):
    x = jnp.sin(batch["x"][:, None] * batch["x"])
    return {"w": state["w"] + (x @ x).sum()}, {}

backend = VirtualBackend(row_of_cores(1).cores)
for rows in (512, 4096):
    run = backend.compile(of(step, ({"w": jnp.zeros(())}, {"x": jnp.zeros(rows)})))
    print(run.temporary_bytes >= 2**25, use_huge_pages.cache_info().currsize)
"""


@needs_kernels
def test_large_temporary_buffers_lie_in_huge_pages():
    run = in_new_process(HUGE_PAGES)
    assert run.stdout == "False 0\nTrue 1\n", run.stderr
    run = in_new_process(HUGE_PAGES, ANYTPU_KERNELS="xla")
    assert run.stdout == "False 0\nTrue 0\n", run.stderr


def test_kernels_of_another_version_are_not_used(tmp_path: Path):
    (tmp_path / "anytpu_kernels.py").touch()
    program = "from anytpu.engine.foreign import why_not\nprint(why_not())"
    run = in_new_process(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{program}")
    expected = "the installed anytpu_kernels has no column_moments: scripts/venv builds it again\n"
    assert run.stdout == expected, run.stderr


def test_they_can_be_switched_off(monkeypatch: pytest.MonkeyPatch):
    run = in_new_process(
        "from anytpu.engine.foreign import foreign_kernels, why_not; print(foreign_kernels(), why_not())",
        ANYTPU_KERNELS="xla",
    )
    assert run.stdout == "None ANYTPU_KERNELS=xla\n", run.stderr
    monkeypatch.setenv("ANYTPU_KERNELS", "mkl")
    with pytest.raises(SettingError) as caught:
        _env.kernels()
    assert str(caught.value) == (
        "ANYTPU_KERNELS must be onednn (where anytpu-kernels is installed, the default) or xla, not 'mkl'"
    )


def test_they_are_there_or_it_is_said_why():
    assert (foreign_kernels() is None) is (why_not() is not None)
