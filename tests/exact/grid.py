"""The exact grid: every case, how far two outcomes are apart, and how far they may be.

Idea: plain Keras on one device is right by definition. Whatever the number of examples, the batch and the cores, ours
must come to the same weights, logs, results and predictions.

Rule: pure functions and frozen records; nothing here computes a model. `exact.child` does, in a process that has the
number of devices and the dtype of its cases.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping

import numpy as np

EXAMPLES = (1, 7, 8, 9, 20, 21, 32)
BATCHES = (1, 6, 8, 10, 16)
CORES = (1, 2, 8)
BACKENDS = ("virtual", "local")
DTYPES = ("float64", "float32")
MODELS = ("mlp", "cnn", "batch-wide", "weighted", "streamed")
OPTIMIZERS = ("sgd", "adam")
SHARDED_MODELS = ("wide-mlp", "wide-cnn", "lstm", "transformer", "experts")
LAYOUTS = ("data", "fsdp", "fsdp-2d", "columns", "rows", "fsdp-columns", "map", "model-only")
STEPS = 50
"""What a fit runs at least; the last epoch is finished."""

SHARDED_STEPS = 5
"""What a fit of a sharded model runs at least."""

Outcome = Mapping[str, np.ndarray]
"""All that a run leaves: weights, optimizer state, History, evaluation, predictions, each by its name."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One point of the grid.

    Attributes:
        backend: "virtual", or "local" for devices that the program is really partitioned over.
        dtype: floatx.
        model: a name in `exact.models.KINDS`.
        optimizer: "sgd" or "adam".
        examples: the number of rows.
        batch: the batch size.
        cores: the number of cores.
        steps: `steps_per_execution`; None leaves it to the clock.
        layout: a name in `exact.layouts.LAYOUTS`, or "" for none.
    """

    backend: str
    dtype: str
    model: str
    optimizer: str
    examples: int
    batch: int
    cores: int
    steps: int | None = None
    layout: str = ""

    def __str__(self) -> str:
        size = f"{self.examples} examples in batches of {self.batch} on {self.cores} cores"
        layout = self.layout and f" in the layout {self.layout}"
        return f"{self.backend} {self.dtype} {self.model} {self.optimizer}{layout}: {size}"

    @property
    def epochs(self) -> int:
        """How many epochs make `STEPS` steps or more, or `SHARDED_STEPS` of a sharded model."""
        return math.ceil((SHARDED_STEPS if self.layout else STEPS) / math.ceil(self.examples / self.batch))

    @property
    def shapes(self) -> int:
        """How many sizes its batches have: full ones, a partial one, or both."""
        return (self.examples >= self.batch) + (self.examples % self.batch > 0)

    @property
    def bound(self) -> float:
        """How large the worst error may be."""
        if self.dtype == "float64":
            return 1e-9
        return 1e-5 if self.optimizer == "sgd" else 1e-4


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of one case.

    Attributes:
        case: the case.
        error: the worst error of all that it is judged by.
        name: what had that error.
        training_compilations: the programs that fit compiled before its first validation.
        compilations: the programs that fit compiled, validation and all.
    """

    case: Case
    error: float
    name: str
    training_compilations: int
    compilations: int

    @property
    def faults(self) -> list[str]:
        """What is wrong; empty when nothing is."""
        faults = []
        if not self.error <= self.case.bound:
            faults.append(f"{self.case}: {self.name} is off by {self.error:.1e}, more than {self.case.bound:.0e}")
        if self.training_compilations != self.case.shapes:
            faults.append(f"{self.case}: {self.training_compilations} training programs for {self.case.shapes} sizes")
        if self.compilations != 2 * self.case.shapes:
            faults.append(f"{self.case}: {self.compilations} programs in a fit for {self.case.shapes} sizes, twice")
        return faults


def every_case() -> Iterator[Case]:
    """Yield the whole grid, in the order in which it is cheapest to run: what shares an oracle stands together."""
    sizes = [(examples, batch) for examples in EXAMPLES for batch in BATCHES]
    for backend, dtype, model, optimizer in itertools.product(BACKENDS, DTYPES, MODELS, OPTIMIZERS):
        for (examples, batch), cores in itertools.product(sizes, CORES):
            yield Case(backend, dtype, model, optimizer, examples, batch, cores)


def every_layout() -> Iterator[Case]:
    """Yield each sharded model in each layout, with a last batch that no mesh divides."""
    for backend, dtype, model, layout in itertools.product(BACKENDS, DTYPES, SHARDED_MODELS, LAYOUTS):
        yield _sharded(backend, dtype, model, layout)


def every_size() -> Iterator[Case]:
    """Yield each size once for each backend and dtype, the models and optimizers in turn: a tenth of the grid."""
    pairs = list(itertools.product(MODELS, OPTIMIZERS))
    sizes = list(itertools.product(EXAMPLES, BATCHES))
    for turn, (backend, dtype) in enumerate(itertools.product(BACKENDS, DTYPES)):
        for index, (examples, batch) in enumerate(sizes):
            # 7 and 10 have no common divisor, so neighbours differ and each pair comes up.
            pair = pairs[(7 * index + 3 * turn + index // len(pairs)) % len(pairs)]
            for cores in CORES:
                yield Case(backend, dtype, *pair, examples, batch, cores)


# Model, optimizer; examples, batch, cores; steps_per_execution. Most on the partitioned devices in float64, where a
# wrong split shows and rounding does not hide it.
_SAMPLES = {
    ("local", "float64"): (
        ("cnn", "sgd", 20, 16, 8, None),  # a last batch smaller than the cores
        ("batch-wide", "adam", 21, 6, 8, 3),  # no batch divides; three steps a call
        ("batch-wide", "sgd", 1, 10, 8, None),  # one example: fewer than a batch, and than cores
        ("weighted", "adam", 8, 1, 8, None),  # one row a batch
        ("mlp", "sgd", 32, 8, 8, None),  # everything divides
    ),
    ("virtual", "float64"): (
        ("streamed", "sgd", 20, 16, 8, 3),  # batches made on the host
        ("batch-wide", "sgd", 9, 8, 2, None),  # a last batch of one row
        ("weighted", "adam", 7, 8, 8, None),
    ),
    ("local", "float32"): (),
    ("virtual", "float32"): (("batch-wide", "sgd", 20, 6, 2, 7),),
}
_MORE_SAMPLES = {
    ("local", "float64"): (
        ("weighted", "sgd", 9, 8, 2, None),
        ("streamed", "adam", 32, 10, 8, 50),  # more steps a call than an epoch has
    ),
    ("virtual", "float64"): (
        ("cnn", "adam", 21, 6, 8, None),
        ("mlp", "adam", 21, 10, 1, None),
    ),
    ("local", "float32"): (("cnn", "sgd", 21, 6, 8, None),),
    ("virtual", "float32"): (("cnn", "adam", 8, 10, 8, None),),
}

# Model, layout: each layout once, most on the partitioned devices in float64. Neighbours of one model share an oracle.
_SHARDED_SAMPLES = {
    ("local", "float64"): (
        ("wide-mlp", "fsdp-2d"),
        ("wide-mlp", "rows"),
        ("transformer", "fsdp-columns"),
        ("wide-cnn", "columns"),
        ("experts", "model-only"),
        ("experts", "map"),
    ),
    ("virtual", "float64"): (),
    ("local", "float32"): (("wide-mlp", "data"),),
    ("virtual", "float32"): (("lstm", "fsdp"),),
}
_MORE_SHARDED_SAMPLES = {("local", "float64"): (("lstm", "rows"), ("wide-mlp", "fsdp-columns"))}


def sample(backend: str, dtype: str) -> list[Case]:
    """Return the cases of one backend and dtype that the tests run."""
    return [Case(backend, dtype, *fields) for fields in _SAMPLES[backend, dtype]]


def sharded_sample(backend: str, dtype: str) -> list[Case]:
    """Return the cases with a layout, of one backend and dtype, that the tests run."""
    return [_sharded(backend, dtype, *pair) for pair in _SHARDED_SAMPLES[backend, dtype]]


def larger_sample(backend: str, dtype: str) -> list[Case]:
    """Return the cases of one backend and dtype, with a layout and without, that the batteries add."""
    cases = [Case(backend, dtype, *fields) for fields in _MORE_SAMPLES[backend, dtype]]
    return [*cases, *(_sharded(backend, dtype, *pair) for pair in _MORE_SHARDED_SAMPLES.get((backend, dtype), ()))]


def _sharded(backend: str, dtype: str, model: str, layout: str) -> Case:
    # The last batch has 11 rows, which neither 2 nor 4 cores of an axis "data" divide.
    return Case(backend, dtype, model, "sgd", 27, 16, 8, layout=layout)


def error(expected: np.ndarray, found: np.ndarray) -> float:
    """Return how far two arrays are apart: the largest difference, for floats in units of the largest value or of 1.

    Integers must be equal, and NaN equals NaN; anything else is infinitely far.
    """
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return math.inf
    if expected.dtype.kind != "f":
        return 0.0 if np.array_equal(expected, found) else math.inf
    if expected.size == 0 or np.array_equal(expected, found, equal_nan=True):
        return 0.0
    difference = np.abs(expected.astype(np.float64) - found.astype(np.float64))
    worst = float(np.max(difference) / max(1.0, float(np.max(np.abs(expected)))))
    return worst if math.isfinite(worst) else math.inf


def worst(case: Case, expected: Outcome, found: Outcome) -> tuple[float, str]:
    """Return the worst error among the parts of an outcome that a case is judged by, and the name of that part.

    In float32 Adam turns rounding noise into steps, so there only the losses are compared; float64 judges the rest.
    """
    if expected.keys() != found.keys():
        return math.inf, f"the names {sorted(expected.keys() ^ found.keys())}"
    only_losses = case.dtype == "float32" and case.optimizer == "adam"
    judged = [name for name in expected if not only_losses or name.endswith("loss")]
    return max((error(expected[name], found[name]), name) for name in judged)
