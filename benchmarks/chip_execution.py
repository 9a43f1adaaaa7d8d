"""How fast the chip's machine runs: beside this machine's float32 BLAS, beside onnxruntime, and on a deep network.

    python benchmarks/chip_execution.py [--rounds 11] [--parts layers,digits,deep] [--patience S] [--output FILE]

layers: single layers whose tiles are full, compiled and run as any model is: quantized input in, integers out, through
    the checked program. Contenders take turns, with a pause between them, so that no thread of one still spins while
    the next works; of two runs of a turn the second is timed:
        blas         numpy's product of two float32 matrices of 2048 by 2048, with the BLAS's own threads
        anytpu       the chip's machine; its rate counts the layer's own multiply-adds only
        ort          onnxruntime: the same quantized layer, written by `to_onnx` (QLinearConv; QLinearMatMul for a dense
                     layer), on as many threads as there are cores, floats in and out
digits: a CNN on the 8 by 8 digits, a batch of 256, floats in and floats out; anytpu and onnxruntime take turns. Their
    outputs must be the same.
deep: Keras's ResNet50 with random weights: seconds to read, calibrate and quantize, compile, check, count cycles, and
    run one image, the first time (with all that is prepared for later runs) and after that.

A rate is of the median time, a share the median of the rounds' own: what else the machine does meets both contenders of
a round alike. With `--patience` a round waits so long, at most, for the rest of the machine to be idle (Linux). Weights
are normal numbers as trained ones are, or, where it is said, uniform: those leave float32's exact integers sooner, and
need more parts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anytpu as tpu  # isort: skip
import keras
import numpy as np
import onnxruntime

from anytpu.chip import machine
from anytpu.chip.checking import check
from anytpu.chip.compiler import compile_image
from anytpu.chip.graph.nodes import Convolution, Network, Port, Quantization
from anytpu.chip.network import read
from anytpu.chip.onnx import write
from anytpu.chip.quantized import quantize
from anytpu.chip.timing import time as count_cycles
from machine import cpu_name

SQUARE = 2048
PAUSE_S = 0.1
LAYERS: dict[str, tuple[int, int, int, int, int, bool]] = {
    # height and width, channels, outputs, kernel, batch, uniform weights
    "dense 2048 to 2048, batch 2048": (1, 2048, 2048, 1, 2048, False),
    "dense 2048 to 2048, batch 2048, uniform": (1, 2048, 2048, 1, 2048, True),
    "3x3, 256 to 256, 56x56, batch 2": (56, 256, 256, 3, 2, False),
    "3x3, 256 to 256, 56x56, batch 2, uniform": (56, 256, 256, 3, 2, True),
    "3x3, 512 to 512, 28x28, batch 4": (28, 512, 512, 3, 4, False),
    "3x3, 512 to 512, 14x14, batch 8": (14, 512, 512, 3, 8, False),
    "1x1, 1024 to 1024, 14x14, batch 8": (14, 1024, 1024, 1, 8, False),
    "1x1, 256 to 256, 56x56, batch 2": (56, 256, 256, 1, 2, False),
}


def layer_of(side: int, channels: int, outputs: int, kernel: int, uniform: bool) -> Network:
    rng = np.random.default_rng(0)
    shape = (kernel, kernel, channels, outputs)
    weights = rng.integers(-127, 128, shape) if uniform else np.clip(np.rint(rng.normal(0, 32, shape)), -127, 127)
    pad = (kernel // 2, kernel // 2)
    scales = np.full(outputs, 0.01, np.float32)
    # Without a bias a dense layer is one QLinearMatMul for onnxruntime.
    bias = rng.integers(-1000, 1000, outputs).astype(np.int32) * (side > 1)
    node = Convolution(
        "layer", "layer", ("x",), "y", weights.astype(np.int8), scales, bias, (1, 1), (1, 1), (pad, pad), 1, -128, 127
    )
    shapes = {"x": (side, side, channels), "y": (side, side, outputs)}
    quantizations = {"x": Quantization(float(np.float32(0.02)), 3), "y": Quantization(1.0, 0)}
    return Network("layer", (Port("x", shapes["x"]),), (Port("y", shapes["y"]),), shapes, quantizations, (node,))


def session_of(network: Network, folder: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = os.cpu_count() or 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    path = write(network, Path(folder) / f"{network.name}.onnx")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


patience_s = 0.0


def wait_until_idle() -> None:
    """Wait until all cores were idle for half a second, 19 of 20 ticks, or until patience has run out."""
    stop_s = time.monotonic() + patience_s
    while time.monotonic() < stop_s:
        before = ticks()
        time.sleep(0.5)
        idle, of_all = (b - a for a, b in zip(before, ticks(), strict=True))
        if idle >= 0.95 * of_all:
            return


def ticks() -> tuple[int, int]:
    """Return the ticks that all cores were idle, and all of their ticks, since the machine was started."""
    numbers = [int(number) for number in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return numbers[3] + numbers[4], sum(numbers)


def take_turns(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each contender, round by round. The first round is not counted."""
    turns: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        wait_until_idle()
        for name, work in contenders.items():
            time.sleep(PAUSE_S)
            work()  # wakes the cores, and brings back what the others drove out of the caches
            start_s = time.perf_counter()
            work()
            if number >= 1:
                turns[name].append(time.perf_counter() - start_s)
    return turns


def summary(turns: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    return {
        name: {"median_s": statistics.median(all_s), "least_s": min(all_s), "greatest_s": max(all_s)}
        for name, all_s in turns.items()
    }


def measure_layers(rounds: int, folder: str) -> dict[str, Any]:
    square = np.random.default_rng(0).random((SQUARE, SQUARE), np.float32)
    result: dict[str, Any] = {}
    print(f"{'':44}{'blas':>8}{'anytpu':>8}{'share':>7}{'ort':>8}   (multiply-adds a second, in 1e9)")
    for name, (side, channels, outputs, kernel, batch, uniform) in LAYERS.items():
        network = layer_of(side, channels, outputs, kernel, uniform)
        image = compile_image(network, batch=batch)
        q = network.quantizations["x"]
        integers = np.random.default_rng(1).integers(-128, 128, (batch, side, side, channels)).astype(np.int8)
        floats = q.dequantize(integers)
        contenders = {
            "blas": lambda: square @ square,
            "anytpu": lambda image=image, integers=integers: machine.run(image, {"x": integers})["y"],
        }
        session = session_of(network, folder)
        contenders["ort"] = lambda session=session, floats=floats: session.run(None, {"x": floats})[0]
        ours, theirs = network.quantizations["y"].dequantize(contenders["anytpu"]()), contenders["ort"]()
        turns = take_turns(contenders, rounds)
        macs = batch * side * side * channels * outputs * kernel * kernel
        seconds = summary(turns)
        rates = {
            contender: (SQUARE**3 if contender == "blas" else macs) / seconds[contender]["median_s"] / 1e9
            for contender in seconds
        }
        pairs = zip(turns["blas"], turns["anytpu"], strict=True)
        share = statistics.median(macs / ours_s * blas_s / SQUARE**3 for blas_s, ours_s in pairs)
        result[name] = {
            "macs": macs,
            "seconds": seconds,
            "rates_gmacs_per_s": rates,
            "share_of_blas": share,
            "outputs_that_differ": int((ours != theirs.reshape(ours.shape)).sum()),
        }
        first, rest = f"{rates['blas']:8.1f}{rates['anytpu']:8.1f}", f"{rates['ort']:8.1f}"
        print(f"{name:44}{first}{share:7.2f}{rest}", flush=True)
    return result


def digits_model() -> keras.Model:
    layers = keras.layers
    first = [layers.Conv2D(16, 3, padding="same", use_bias=False), layers.BatchNormalization(), layers.ReLU()]
    second = [layers.MaxPooling2D(), layers.Conv2D(32, 3, padding="same", activation="relu")]
    last = [layers.GlobalAveragePooling2D(), layers.Dense(10)]
    return keras.Sequential([keras.Input((8, 8, 1)), *first, *second, *last])


def measure_digits(rounds: int, folder: str) -> dict[str, Any]:
    keras.utils.set_random_seed(0)
    (x, _), _ = tpu.pipeline.digits()
    program = tpu.chip.compile(digits_model(), x[:256], batch=256)
    assert program.network is not None
    contenders: dict[str, Callable[[], Any]] = {"anytpu": lambda: program.run(x[:256])}
    session = session_of(program.network, folder)
    given = {session.get_inputs()[0].name: x[:256].astype(np.float32)}
    contenders["ort"] = lambda: session.run(None, given)[0]
    differ = int((np.asarray(contenders["anytpu"]()) != contenders["ort"]()).sum())
    seconds = summary(take_turns(contenders, rounds))
    rates = {contender: 256 / seconds[contender]["median_s"] for contender in seconds}
    print("digits CNN, rows a second:", ", ".join(f"{contender} {rate:,.0f}" for contender, rate in rates.items()))
    return {"seconds": seconds, "rows_per_s": rates, "outputs_that_differ": differ}


def measure_deep(rounds: int, side: int) -> dict[str, Any]:
    seconds: dict[str, float] = {}

    def timed(what: str, work: Callable[[], Any]) -> Any:
        start_s = time.perf_counter()
        answer = work()
        seconds[what] = time.perf_counter() - start_s
        print(f"{what:30}{seconds[what]:8.3f} s", flush=True)
        return answer

    keras.utils.set_random_seed(0)
    model = keras.applications.ResNet50(weights=None, input_shape=(side, side, 3))  # pyright: ignore[reportArgumentType]
    x = np.random.default_rng(0).normal(size=(4, side, side, 3)).astype(np.float32)
    start_s = time.perf_counter()
    program = timed("trace", lambda: tpu.program.of(model, None, "infer", True, batch_size=4))
    network = timed("read", lambda: read(program))
    quantized = timed("calibrate on 4, quantize", lambda: quantize(network, [x]))
    image = timed("compile", lambda: compile_image(quantized, batch=1))
    seconds["all of compiling"] = time.perf_counter() - start_s
    timed("check", lambda: check(image))
    timing = timed("count cycles", lambda: count_cycles(image))
    tensor = image.inputs[0].tensor
    values = {tensor: quantized.quantizations[tensor].quantize(x[:1])}
    timed("run one image, first time", lambda: machine.run(image, values))
    turns = summary(take_turns({"run one image": lambda: machine.run(image, values)}, rounds))
    print(f"{'run one image':30}{turns['run one image']['median_s']:8.3f} s")
    return {
        "model": f"ResNet50, {side} by {side}",
        "seconds": seconds,
        "run": turns["run one image"],
        "instructions": len(image.instructions),
        "weight_memory_bytes": len(image.weights),
        "macs": sum(tag.macs for tag in image.tags),
        "predicted_cycles": timing.cycles,
    }


def this_machine() -> str:
    versions = f"numpy {np.__version__}, onnxruntime {onnxruntime.__version__}"
    return f"{cpu_name()}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--parts", default="layers,digits,deep")
    parser.add_argument("--side", type=int, default=224, help="of the picture of the deep network")
    parser.add_argument("--output", help="write the figures as JSON here")
    parser.add_argument("--patience", type=float, default=0.0, help="seconds that a round waits for an idle machine")
    options = parser.parse_args()
    global patience_s
    patience_s = options.patience
    record: dict[str, Any] = {"machine": this_machine(), "rounds": options.rounds}
    with tempfile.TemporaryDirectory() as folder:
        measures: dict[str, Callable[[], Any]] = {
            "layers": lambda: measure_layers(options.rounds, folder),
            "digits": lambda: measure_digits(options.rounds, folder),
            "deep": lambda: measure_deep(options.rounds, options.side),
        }
        for part in options.parts.split(","):
            record[part] = measures[part]()
            if hasattr(os, "getloadavg"):
                record[part]["load_at_the_end"] = os.getloadavg()[0]
            if options.output:
                Path(options.output).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
