"""PyTorch modules as Programs, beside PyTorch's own steps. Torch is not installed for the tests:
scripts/check_frameworks runs them in an environment that has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest

import anytpu as tpu
from anytpu.errors import ProgramError, SettingError

torch = pytest.importorskip("torch")
torchax = pytest.importorskip("torchax")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Net(torch.nn.Module):
    """A convolution, a norm and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)
        self.norm = torch.nn.GroupNorm(2, 8)
        self.head = torch.nn.Sequential(torch.nn.Linear(8 * 36, 32), torch.nn.GELU(), torch.nn.Linear(32, 10))

    def forward(self, x: Any) -> Any:
        return self.head(torch.flatten(torch.relu(self.norm(self.conv(x))), 1))


def batch() -> tuple[Any, Any]:
    torch.manual_seed(1)
    return torch.randn(16, 3, 8, 8), torch.randint(0, 10, (16,))


def criterion(model: Any, x: Any, y: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(x), y)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda weights: torch.optim.SGD(weights, 0.1),
    "nesterov": lambda weights: torch.optim.SGD(weights, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda weights: torch.optim.Adam(weights, 0.01, weight_decay=0.1),
    "adamw": lambda weights: torch.optim.AdamW(weights, 0.01, betas=(0.8, 0.9), weight_decay=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_pytorch(name: str):
    torch.manual_seed(0)
    model, (x, y) = Net(), batch()
    model.norm.weight.requires_grad = False
    optimizer = OPTIMIZERS[name]([weight for weight in model.parameters() if weight.requires_grad])
    program = tpu.program.of((model, optimizer, torch.nn.CrossEntropyLoss()), (x, y), tensors=True)
    assert (program.name, program.rows) == ("Net/train", 16)
    kinds = dict(zip(program.state_names, program.state_kinds, strict=True))
    assert kinds["conv.weight"] == "weights" and kinds["norm.weight"] == "frozen"
    state, step = program.tensors, jax.jit(program.step)
    for _ in range(4):
        state, outputs = step(state, {"x": x.numpy(), "labels": y.numpy().astype("int32")})
        optimizer.zero_grad()
        loss = criterion(model, x, y)
        loss.backward()
        optimizer.step()
        assert float(outputs["loss"]) == pytest.approx(loss.item(), rel=1e-4)
    for weight_name, weight in model.named_parameters():
        np.testing.assert_allclose(state[weight_name], weight.detach().numpy(), rtol=2e-4, atol=2e-5)


def test_gradients_stop_where_those_of_pytorch_do():
    model, x = torch.nn.Linear(2, 2, bias=False), torch.randn(4, 2)

    def loss(module: Any, x: Any) -> Any:
        with torch.no_grad():
            first = module(x)
        return (first * module(x).detach() * module(x)).sum()

    program = tpu.program.of((model, optax.sgd(1.0), loss), (x,), tensors=True)
    state, _ = jax.jit(program.step)(program.tensors, {"x": x.numpy()})
    loss(model, x).backward()
    np.testing.assert_allclose(program.tensors["weight"] - state["weight"], model.weight.grad, rtol=1e-4, atol=1e-5)


def test_groups_have_settings_of_their_own():
    model, (x, y) = Net(), batch()
    groups = [
        {"params": model.conv.parameters(), "lr": 0.0},
        {"params": [*model.norm.parameters(), *model.head.parameters()]},
    ]
    program = tpu.program.of((model, torch.optim.SGD(groups, 0.1), criterion), (x, y), tensors=True)
    state, _ = jax.jit(program.step)(program.tensors, {"x": x.numpy(), "y": y.numpy().astype("int32")})
    assert np.array_equal(state["conv.weight"], model.conv.weight.detach())
    assert not np.array_equal(state["head.0.weight"], model.head[0].weight.detach())


def test_a_module_is_planned_in_evaluation_mode():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
    x = torch.randn(8, 4)
    program = tpu.program.of(model, (x,), mode="infer", tensors=True)
    _, outputs = jax.jit(program.step)(program.tensors, {"input": x.numpy()})
    assert model.training and program.notes[:-1] == ("The module is planned as after model.eval().",)
    np.testing.assert_allclose(outputs, model.eval()(x).detach(), rtol=1e-4, atol=1e-5)


def test_a_model_without_values_is_planned():
    with torch.device("meta"):
        model, x, y = Net(), torch.empty(16, 3, 8, 8), torch.empty(16, dtype=torch.int64)
    job = model, torch.optim.AdamW(model.parameters()), torch.nn.CrossEntropyLoss()
    plan = tpu.plan(job, 64, "v5e-1", input_specs=(x, y))
    prediction = plan["v5e-1"]
    assert prediction.fits and {"conv", "norm", "head/0"} <= {op.layer for op in prediction.time.ops}
    assert tpu.plan(job, 64, "v5e-8", input_specs=(x, y), layout="fsdp")["v5e-8"].layout_name == "fsdp"
    assert all(weight.device.type == "meta" for weight in model.parameters())


def test_statistics_of_batch_norm_are_named():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    job = model, optax.sgd(0.1), lambda module, x: module(x).square().mean()
    program = tpu.program.of(job, (torch.randn(8, 4),))
    assert program.notes[:-1] == ("torchax does not update the running statistics of BatchNorm layers.",)
    model[1].eval()
    program = tpu.program.of(job, (torch.randn(8, 4),))
    assert program.notes[:-1] == ("1 module is in evaluation mode, and planned so.",)


class Calling(torch.nn.Module):
    """A layer, and a function of its result."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.inner, self.function, self.scale = torch.nn.Linear(4, 4), function, torch.ones(4)

    def forward(self, x: Any) -> Any:
        return self.function(self, self.inner(x))


def _condition(_: Any, x: Any) -> Any:
    return x if x.sum() > 0 else -x


VALUES = (
    "'Calling' reads the value of a tensor, as item(), if, nonzero and boolean indices do. A TPU program has fixed "
    "shapes, and it cannot branch on tensor values: use torch.where"
)
OTHER_TENSOR = (
    "'Calling' computes with a tensor that is no parameter, no buffer and no input: register it in __init__, "
    "self.register_buffer('scale', tensor)"
)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda self, x: x * self.scale, OTHER_TENSOR),
        (lambda self, x: x + torch.ones(4, device="cpu"), OTHER_TENSOR),
        (_condition, VALUES),
        (lambda self, x: x * x.sum().item(), VALUES),
        (lambda self, x: x[x > 0], VALUES),
        (
            lambda self, x: self.nothing,
            "'Calling' cannot be traced: AttributeError: 'Calling' object has no attribute 'nothing'",
        ),
    ],
)
def test_what_a_forward_cannot_do(function: Callable[[Any, Any], Any], message: str):
    with pytest.raises(ProgramError) as caught:
        tpu.program.of(Calling(function), (torch.zeros(8, 4),), mode="infer")
    assert str(caught.value) == message


def test_an_operation_without_a_form_in_jax_is_named():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Calling(lambda self, x: torch.special.airy_ai(x)))
    with pytest.raises(ProgramError) as caught:
        tpu.program.of(model, (torch.zeros(8, 4),), mode="infer")
    assert str(caught.value) == (
        f"'Sequential' calls aten::special_airy_ai in the layer '1', which torchax {torchax.__version__} cannot "
        "compute with JAX. Compute it with other operations, or outside of the model"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda model: torch.optim.Adagrad(model.parameters()),
            "the optimizer Adagrad of 'Net' has no equal here: give SGD without dampening, Adam, AdamW, or an optax "
            "optimizer, such as (model, optax.adagrad(0.01), loss)",
        ),
        (
            lambda model: torch.optim.Adam(model.parameters(), amsgrad=True),
            "the optimizer Adam of 'Net' has amsgrad=True, which has no equal here: leave it out, or give an optax "
            "optimizer, such as (model, optax.adam(0.001), loss)",
        ),
        (
            lambda model: torch.optim.Adam(model.head.parameters()),
            "the optimizer of 'Net' does not train 'conv.weight': make it of model.parameters(), or set "
            "requires_grad=False for that parameter",
        ),
        (lambda model: "adam", "the optimizer of 'Net' must be one of torch.optim or of optax, not str"),
    ],
)
def test_optimizers_without_an_equal(make: Callable[[Any], Any], message: str):
    model = Net()
    with pytest.raises(ProgramError) as caught:
        tpu.program.of((model, make(model), criterion), batch())
    assert str(caught.value) == message


def test_a_module_on_the_chip():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(36, 10)
    )
    x = torch.randn(64, 1, 8, 8)
    program = tpu.chip.compile(model, x)
    expected = model(x).detach().numpy()
    # 8 bits of an activation are 256 values of its range.
    assert np.abs(program.run(x.numpy()) - expected).max() < np.ptp(expected) / 50
    with pytest.raises(SettingError) as caught:
        tpu.chip.compile(model, x, state={})
    assert str(caught.value) == (
        "state is for the weights of a JAX function, and the PyTorch module 'Sequential' has its own: leave state out."
    )


def test_wrong_jobs():
    model = Net()
    with pytest.raises(ProgramError) as caught:
        tpu.program.of((model, optax.sgd(0.1), lambda module, x, y: module(x)), batch())
    assert str(caught.value) == "the loss of 'Net' must return a scalar tensor, not a tensor of shape (16, 10)"
    with pytest.raises(ProgramError) as caught:
        tpu.program.of(model, batch())
    assert str(caught.value) == (
        "'Net' cannot be planned with mode='train'. A model alone has no training step: give mode=\"infer\", or the "
        "triple (model, optimizer, loss)"
    )
    with pytest.raises(ProgramError) as caught:
        tpu.program.of((model, optax.sgd(0.1), criterion), ("text", 1))
    assert str(caught.value) == (
        "a batch has tensors, arrays or jax.ShapeDtypeStruct, and no str: give input_specs=(x, y) of tensors, such as "
        "torch.empty(32, 3, 224, 224, device='meta')"
    )
    for weight in model.parameters():
        weight.requires_grad = False
    with pytest.raises(ProgramError) as caught:
        tpu.program.of((model, optax.sgd(0.1), criterion), batch())
    assert str(caught.value) == "'Net' has no parameter to train: each has requires_grad=False"
