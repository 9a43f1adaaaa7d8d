"""Compare random and trained networks on all implementations of the chip's arithmetic: 0 integers may differ.

    python scripts/exact_chip.py [--networks 300] [--seeds 5] [--applications ResNet50 ...] [--output FILE]

Random quantized networks (drawn by tests/chip_random.py) are computed in four ways: by the plain reference; by
onnxruntime from the files of `to_onnx` (int8 and uint8, with and without its optimizations); by the chip's instructions
on three array sizes; and by a register-level systolic array. Then models trained on the digits are compared in the same
way, and their floating-point and integer accuracy is printed. Last, one image runs through large published networks.
The results are printed and written to benchmarks/results/exact_chip.json; a differing integer is a failure. The tests
run a sample of these cases.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anytpu as tpu  # isort: skip
import keras
import numpy as np
from hypothesis import HealthCheck, Phase, given, settings

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import chip_models  # noqa: E402
import chip_oracle  # noqa: E402
import chip_random  # noqa: E402
from anytpu.chip.graph.nodes import (  # noqa: E402
    Convolution,
    Elementwise,
    Network,
    Pool,
    Quantization,
)
from anytpu.chip.quantized import reference  # noqa: E402

Tensors = dict[str, np.ndarray]

PACKAGES = ("numpy", "onnx", "onnxruntime", "jax", "keras", "hypothesis")
APPLICATIONS = ("MobileNetV2", "InceptionV3", "EfficientNetB0", "ResNet50")
SMALL, LARGE = {"most_nodes": 6, "most_channels": 20}, {"most_nodes": 4, "most_channels": 400}
"""What random networks are drawn like, in turn: many small layers; layers of more lanes than the array has."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=300, help="how many random networks (300)")
    parser.add_argument("--seeds", type=int, default=5, help="how often the MLP and the CNN are trained (5)")
    parser.add_argument("--epochs", type=int, default=15, help="of each training (15)")
    parser.add_argument("--applications", nargs="*", default=APPLICATIONS, help="networks of keras.applications")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "exact_chip.json")
    return parser.parse_args()


# --- Who computes


def contenders(folder: Path, is_small: bool) -> Iterator[tuple[str, Callable[[chip_random.Case], Tensors]]]:
    """Yield the name and function of each contender: it computes all tensors (onnxruntime), or the chip's outputs."""
    for level in ("none", "all"):
        run = functools.partial(chip_oracle.integers, path=folder / "model.onnx", level=level)
        yield f"onnxruntime, optimizations: {level}", lambda case, run=run: run(case.network, case.inputs)
    for name, design in chip_oracle.DESIGNS.items():
        run = functools.partial(chip_oracle.on_chip, design=design)
        yield f"chip, {name}", lambda case, run=run: run(case.network, case.inputs)
    if is_small:
        run = functools.partial(chip_oracle.on_chip, design=chip_oracle.DESIGNS["8 by 8"], literal=True)
        yield "systolic array, 8 by 8", lambda case: run(case.network, case.inputs)


# --- Random networks


@dataclasses.dataclass
class Tally:
    """Counts of a contender's compared results."""

    networks: int = 0
    numbers: int = 0
    differing: int = 0
    seconds: float = 0.0


@dataclasses.dataclass
class Found:
    """Counts so far, per contender and over all networks."""

    tallies: dict[str, Tally] = dataclasses.field(default_factory=dict)
    layers: Counter[str] = dataclasses.field(default_factory=Counter)
    totals: Counter[str] = dataclasses.field(default_factory=Counter)


def run_random(count: int, folder: Path) -> dict[str, Any]:
    """Run random networks on all contenders; return the counts."""
    found = Found()
    run_some(found, SMALL, count - count // 2, folder)
    run_some(found, LARGE, count // 2, folder)
    by_name = {
        name: dataclasses.asdict(tally) | {"seconds": round(tally.seconds, 1)} for name, tally in found.tallies.items()
    }
    return {**found.totals, "layers": dict(found.layers.most_common()), "contenders": by_name}


def run_some(found: Found, drawn: dict[str, int], count: int, folder: Path) -> None:
    def compare(case: chip_random.Case) -> None:
        wanted = reference.compute(case.network, case.inputs)
        found.layers.update(type(node).__name__ for node in case.network.nodes)
        numbers = sum(array.size for array in wanted.values())
        found.totals.update(networks=1, numbers=numbers, ties=ties(case.network, wanted))
        if found.totals["networks"] % 25 == 0:
            print(f"{found.totals['networks']} networks", flush=True)
        for name, compute in contenders(folder, drawn is SMALL):
            tally(found.tallies.setdefault(name, Tally()), case, compute, wanted)

    exactly = settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    exactly(given(case=chip_random.cases(**drawn))(compare))()


def tally(
    found: Tally, case: chip_random.Case, compute: Callable[[chip_random.Case], Tensors], wanted: Tensors
) -> None:
    started = time.perf_counter()
    computed = compute(case)
    found.seconds += time.perf_counter() - started
    names = [name for name in computed if name in case.network.quantizations]
    assert set(names) >= set(chip_oracle.chip_outputs(case.network))
    found.networks += 1
    found.numbers += sum(wanted[name].size for name in names)
    found.differing += sum(chip_oracle.differing(wanted, computed, names).values())


class _Fine(Quantization):
    """A quantization of 64 bits, which no tensor may have: it only counts ties."""

    def __post_init__(self):
        pass


def ties(network: Network, tensors: Tensors) -> int:
    """Return how many results lie exactly between two integers before they are rounded, where the rule decides.

    They are counted by computing with a scale 2**30 times as fine: a tie is then an odd multiple of 2**29.
    """
    count = 0
    for node in network.nodes:
        if isinstance(node, Convolution | Elementwise) or (isinstance(node, Pool) and node.kind == "average"):
            fine = _Fine(network.quantizations[node.output].scale / 2**30, 0, 64)
            finer = dataclasses.replace(network, quantizations={**network.quantizations, node.output: fine})
            wide = node if isinstance(node, Pool) else dataclasses.replace(node, low=fine.low, high=fine.high)
            found = reference.compute_node(wide, finer, [tensors[name] for name in node.inputs])
            count += int((found % 2**30 == 2**29).sum())
    return count


# --- Trained models


def run_model(name: str, seed: int, epochs: int, folder: Path) -> dict[str, Any]:
    """Train a model, run all test digits on the chip and in onnxruntime; return the results."""
    model = chip_models.model_of(name, seed)
    chip_models.train(model, epochs)
    program = tpu.chip.compile(model, chip_models.X_TRAIN[:256], activation_bits=chip_models.BITS[name])
    x, y, network = chip_models.X_TEST, chip_models.Y_TEST, program.network
    wanted = reference.compute(network, [x])
    found = chip_oracle.integers(network, [x], folder / "model.onnx")
    (scores,) = chip_oracle.run(program.to_onnx(folder / "model.onnx"), [x]).values()
    on_chip = program.run(x)
    floats = np.asarray(keras.ops.convert_to_numpy(model(x, training=False)))
    return {
        "model": name,
        "seed": seed,
        "activation_bits": chip_models.BITS[name],
        "numbers": sum(array.size for array in found.values()),
        "differing": sum(chip_oracle.differing(wanted, found, list(found)).values()),
        "outputs": on_chip.size,
        "outputs_differing": int((on_chip != scores).sum()),
        "accuracy_float32": float((floats.argmax(axis=1) == y).mean()),
        "accuracy_chip": float((on_chip.argmax(axis=1) == y).mean()),
    }


def run_models(seeds: int, epochs: int, folder: Path) -> list[dict[str, Any]]:
    """Train the MLP and the CNN several times, the others once, and run them."""
    found = []
    for name in chip_models.BITS:
        for seed in range(seeds if name in ("mlp", "cnn") else 1):
            found.append(run_model(name, seed, epochs, folder))
            one = found[-1]
            differing = one["differing"] + one["outputs_differing"]
            print(
                f"{name}, seed {seed}: {differing} of {one['numbers']:,} integers differ, "
                f"{one['accuracy_float32']:.2%} right in float32, {one['accuracy_chip']:.2%} on the chip"
            )
    return found


# --- Large published networks


def run_application(name: str, folder: Path) -> dict[str, Any]:
    """Run an image through a network of keras.applications with random weights; return the results."""
    keras.utils.set_random_seed(0)
    pixels = 224 if name == "ResNet50" else 128
    model = getattr(keras.applications, name)(weights=None, input_shape=(pixels, pixels, 3), classes=100)
    random = np.random.default_rng(0)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.set_weights([random.uniform(0.5, 1.5, weight.shape) for weight in layer.weights])
    x = random.uniform(0, 1, (4, pixels, pixels, 3)).astype(np.float32)
    program = tpu.chip.compile(model, x, batch=1)
    network, first = program.network, [x[:1]]
    found = chip_oracle.integers(network, first, folder / "model.onnx")
    (last,) = (
        tensor for port in network.outputs for tensor in (port.tensor, *makers(network, port.tensor)) if tensor in found
    )
    scores = program.run_int8(x[:1])
    return {
        "network": name,
        "pixels": pixels,
        "layers": len(network.nodes),
        "instructions": len(program.image().instructions),
        "outputs": scores.size,
        "distinct": len(np.unique(scores)),
        "differing": int((scores.ravel() != found[last].ravel()).sum()),
    }


def makers(network: Network, tensor: str) -> tuple[str, ...]:
    """Return the chip tensors that an output of the host is computed from."""
    return (
        next(node.inputs for node in network.nodes if node.output == tensor)
        if tensor not in network.quantizations
        else ()
    )


# --- The whole


def show(random: dict[str, Any], models: list[dict[str, Any]], applications: list[dict[str, Any]]) -> int:
    """Print the results; return the number of differing integers."""
    layers = sum(random["layers"].values())
    print(f"{random['networks']} random networks, {layers} layers, {random['numbers']:,} integers")
    print(f"{random['ties']:,} of them lie exactly between two integers before they are rounded")
    for name, tally in random["contenders"].items():
        print(f"  {tally['differing']} of {tally['numbers']:>9,} differ: {name} ({tally['networks']} networks)")
    for name in ("mlp", "cnn"):
        lost = [
            trained["accuracy_float32"] - trained["accuracy_chip"] for trained in models if trained["model"] == name
        ]
        if lost:
            print(f"{name}: {100 * statistics.mean(lost):+.2f} points lost, mean of {len(lost)} seeds")
    for network in applications:
        print(
            f"{network['network']} at {network['pixels']} x {network['pixels']}, {network['layers']} layers: "
            f"{network['differing']} of {network['outputs']} outputs differ ({network['distinct']} distinct)"
        )
    everything = [*random["contenders"].values(), *models, *applications]
    return sum(row["differing"] + row.get("outputs_differing", 0) for row in everything)


def main() -> int:
    chosen = options()
    with tempfile.TemporaryDirectory() as folder:
        random = run_random(chosen.networks, Path(folder))
        models = run_models(chosen.seeds, chosen.epochs, Path(folder))
        applications = [run_application(name, Path(folder)) for name in chosen.applications]
    differing = show(random, models, applications)
    record = {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "differing": differing,
        "random": random,
        "models": models,
        "applications": applications,
    }
    chosen.output.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{differing} integers differ; written to {chosen.output}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
