"""The tests' surroundings, the same on every machine, and property tests that find the same cases each time.

The surroundings are the environment, the home, the CPU, and anytpu before Keras.
"""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

# First, before anything reads a variable.
import surroundings  # noqa: F401

# A shell starts what runs in the background with SIGINT ignored, and every child would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Before anything imports JAX. Tests of real accelerators run in a process of their own.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most tests compile without most optimizations, a third of their time. "0" compiles all as a user's programs are.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import jax
import pytest
from hypothesis import HealthCheck, settings

# Before any test module imports keras: it chooses the backend.
import anytpu  # noqa: F401
import quick_compilation
import recorded_compilations  # noqa: F401
from anytpu import _keras_layers
from anytpu.train.checkpoint import saver

# As in the scope of a strategy: the same numbers, of which XLA compiles the draws five times as fast.
_keras_layers.draw_flat()

# Saves may take a minute before one is postponed: beside other work, one of some tests took a second.
saver._FREE_S = 60.0

# No deadline: a first call compiles. Derandomized: CI fails on a fault, not on luck.
settings.register_profile("anytpu", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("anytpu")


@pytest.fixture(autouse=True, scope="session")
def compile_each_program_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep XLA's programs from test to test, for the other workers and for the processes that tests start."""
    quick_compilation.keep_programs(str(request.config.cache.mkdir("xla")))
    yield
    quick_compilation.keep_programs(None)


@pytest.fixture(autouse=True)
def same_initial_weights() -> None:
    """Give each test the same random numbers, whatever ran before it in its process.

    A model with batch normalization, trained from a rare draw of its weights, diverges to NaN.
    """
    if "keras" in sys.modules:
        sys.modules["keras"].utils.set_random_seed(0)


TESTS = Path(__file__).parent
QUICK = "JAX_DISABLE_MOST_OPTIMIZATIONS"
# Folders whose files all have a mark: their tests read what a compiler makes of a program.
MARKED = {"planning": "optimized", "bench": "optimized"}


@pytest.fixture(autouse=True, scope="module")
def compile_as_the_marks_of_a_file_say(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile with all optimizations for the mark `optimized`, as new processes of a test do for `new_processes`."""
    folder = request.path.relative_to(TESTS).parts[0] if TESTS in request.path.parents else ""
    marks = {mark.name for mark in request.node.iter_markers()} | {MARKED.get(folder)}
    if os.environ[QUICK] == "0" or not marks & {"optimized", "new_processes"}:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quick_compilation, "without_emitters", False)
        if "optimized" in marks:
            patch.setenv(QUICK, "0")
            jax.config.update(QUICK.lower(), False)
        jax.clear_caches()  # What other files compiled is not used here, nor the other way round.
        yield
    jax.config.update(QUICK.lower(), True)
    jax.clear_caches()


LISTS = {"battery": TESTS / "battery.txt", "slow": TESTS / "slow.txt"}
READS_KERAS_VARIABLES = [TESTS / folder for folder in ("train", "migrate", "migrate/keras_to_tpu")]
# `Variable.numpy()` of Keras 3.15 does this with NumPy 2; its `__array__` takes no `copy`.
KERAS_NUMPY = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


@pytest.hookimpl(tryfirst=True)  # Before pytest deselects by marks.
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of battery.txt and of slow.txt, and refuse names of tests that are gone."""
    for item in items:
        if item.path.parent in READS_KERAS_VARIABLES:
            item.add_marker(KERAS_NUMPY)
    tests = {item.nodeid: item for item in items}
    files = {name.partition("::")[0] for name in tests}
    for mark, path in LISTS.items():
        named = {line for line in path.read_text().splitlines() if not line.startswith("#")}
        for name in named & tests.keys():
            tests[name].add_marker(mark)
        gone = {name for name in named if name.partition("::")[0] in files} - tests.keys()
        # Files given as arguments are collected whole, except single tests of them.
        if gone and not any("::" in argument for argument in config.args):
            raise pytest.UsageError(f"tests/{path.name} names tests that are gone: {', '.join(sorted(gone))}")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what was imported out of garbage collections: many tests collect, and each would visit all of it."""
    gc.collect()
    gc.freeze()
