"""The host's side: where each number lies in its buffer, and its steps between the chip's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.chip.graph.nodes import HostStep, Quantization
from anytpu.chip.image.image import Binding, Image, Service
from anytpu.chip.isa.instructions import Halt, InterruptHost
from anytpu.chip.machine import run
from anytpu.chip.machine.host import pack, unpack
from anytpu.chip.network.layout import BatchLayout
from anytpu.chip.network.operations import Argument, HostOperations, Operation
from anytpu.errors import ChipError


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.lists(st.integers(1, 70), min_size=1, max_size=3),
    st.sampled_from([8, 16]),
)
def test_each_number_lies_where_the_image_says(batch, height, width, lanes, bits):
    binding = Binding("x", (height, width, sum(lanes)), Quantization(1.0, bits=bits), 64, tuple(lanes))
    rng = np.random.default_rng(0)
    q = binding.quantization
    x = rng.integers(q.low, q.high + 1, (batch, height, width, sum(lanes))).astype(q.dtype)
    host = np.full(64 + binding.total_bytes(batch) + 64, 99, np.uint8)
    pack(host, binding, x)
    assert (host[:64] == 99).all()
    assert (host[-64:] == 99).all()
    address, channel = 64, 0
    for number, count in enumerate(lanes):
        pitch = -(-count // 32) * 32
        for n, h, w, lane in np.ndindex(batch, height, width, count):
            byte = address + ((h * width + w) * batch + n) * pitch + lane
            found = int(host[byte : byte + 1].view(np.int8)[0])
            if bits == 16:
                found = int(host[byte]) + 256 * int(
                    host[byte + binding.plane_bytes(number, batch) :][:1].view(np.int8)[0]
                )
            assert found == x[n, h, w, channel + lane]
        address += height * width * batch * pitch * (bits // 8)
        channel += count
    back = unpack(host, binding, batch)
    assert back.dtype == q.dtype
    np.testing.assert_array_equal(back, x)


def doubled(inputs: tuple[str, ...], output: str) -> HostStep:
    """Return a step of the host that adds a value to itself."""
    argument = Argument("a", (2, 1, 1, 3), "float32", BatchLayout(0, 2))
    operation = Operation("add", ("a", "a"), "b", (2, 1, 1, 3), np.dtype("float32"))
    steps = HostOperations((argument,), (operation,), Argument("b", (2, 1, 1, 3), "float32", BatchLayout(0, 2)))
    return HostStep(output, "", inputs, output, "add", "it is a test", steps)


def binding(tensor: str, address: int, scale: float) -> Binding:
    return Binding(tensor, (1, 1, 3), Quantization(scale, 1), address, (3,))


def image(**changes) -> Image:
    """Return an image in which the host doubles x, as integers, then what it made, then the user's own u."""
    x, y = binding("x", 0, 0.5), binding("y", 64, 0.25)
    services = (
        Service(doubled(("x",), "y"), (x,), y),
        Service(doubled(("y",), "z"), (y,), None),
        Service(doubled(("u",), "v"), (None,), None),
        Service(doubled(("v",), "w"), (None,), None),
    )
    code = (*(InterruptHost(number) for number in range(4)), Halt())
    whole = {
        "instructions": code,
        "weights": np.zeros(0, np.uint8),
        "batch": 2,
        "host_bytes": 128,
        "inputs": (x,),
        "outputs": (y,),
        "services": services,
    }
    return Image("steps", **{**whole, **changes})


def values() -> dict[str, np.ndarray]:
    x = np.array([[1, 2, -3], [127, -128, 0]], np.int8).reshape(2, 1, 1, 3)
    return {"x": x, "u": np.arange(6, dtype=np.float32).reshape(2, 1, 1, 3)}


def test_steps_of_the_host():
    made = run(image(), values())
    assert sorted(made) == ["u", "v", "w", "x", "y", "z"]  # with what went in
    real = (values()["x"].astype(np.float32) - 1) * 0.5 * 2
    y = np.clip(np.rint(real / 0.25) + 1, -128, 127)
    np.testing.assert_array_equal(made["y"], y)
    assert made["y"].dtype == np.int8
    np.testing.assert_array_equal(made["z"], (y - 1) * 0.25 * 2)
    np.testing.assert_array_equal(made["v"], 2 * values()["u"])
    np.testing.assert_array_equal(made["w"], 4 * values()["u"])


def refusal(given: dict[str, np.ndarray]) -> str:
    with pytest.raises(ChipError) as e:
        run(image(), given)
    return str(e.value)


def test_what_is_wrong_with_the_values():
    good = values()
    assert refusal({"x": good["x"]}) == "'steps' needs 'u', and was given only 'x'."
    assert refusal({}) == "'steps' needs 'x', and was given nothing."
    assert refusal({**good, "x": good["x"][:1]}) == (
        "'steps' was compiled for batches of 2, and 'x' is of shape (1, 1, 1, 3)."
    )
    assert refusal({**good, "x": good["x"][..., :2]}) == "'x' must be of shape (2, 1, 1, 3), not (2, 1, 1, 2)."
    assert refusal({**good, "x": good["u"]}) == ("'x' must be of 8-bit integers, not of float32: quantize it first.")
    assert refusal({**good, "x": good["x"].astype(np.int32) + 1}) == (
        "'x' must be of integers from -128 to 127, and has some from -127 to 128."
    )


def test_integers_of_another_dtype_are_taken_if_they_fit():
    given = {**values(), "x": values()["x"].astype(np.int64)}
    np.testing.assert_array_equal(run(image(), given)["y"], run(image(), values())["y"])


def test_a_step_before_the_one_that_it_needs():
    turned = image(instructions=(InterruptHost(0), InterruptHost(3), Halt()))
    with pytest.raises(ChipError) as e:
        run(turned, values())
    assert str(e.value) == "The host's step 'w' needs 'v', which no step before it has made."
