"""`pure_step_of`: a PyTorch module, or its training step, as a function of (state, batch).

Idea: torchax computes PyTorch's operations on JAX arrays, so JAX traces the module's own `forward`. Gradients are
JAX's. The update is that of an optax optimizer with the settings of the PyTorch one.

Rule: the step plans a program; it does not train the user's module, whose tensors are not changed. A module may be on
the device "meta", without values. Parameters keep PyTorch's names: "layers.0.weight".
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
import optax
import torch  # pyright: ignore[reportMissingImports]
import torchax  # pyright: ignore[reportMissingImports]
import torchax.tensor  # pyright: ignore[reportMissingImports]
from jax.tree_util import keystr

from anytpu.errors import ProgramError
from anytpu.program.pure_step import PureStep, is_array, names_of_parameters
from anytpu.program.torch_optimizers import transform_of

_KEY = "random key"
"""Name of the array of the state from which random numbers are made."""


def pure_step_of(
    name: str, model: torch.nn.Module, batch: Sequence[Any], optimizer: Any = None, loss: Any = None
) -> PureStep:
    """Return the pure form of a training step, or of `forward` in evaluation mode if `loss` is None.

    Args:
        name: name of the job, for errors.
        model: the module.
        batch: tensors, arrays, or `jax.ShapeDtypeStruct`, in the order of the arguments.
        optimizer: a `torch.optim` optimizer of the module's parameters, or an optax one.
        loss: function `(model, *batch) -> scalar tensor`, or a criterion `(model(*inputs), labels)` as a module; None
            to compute the outputs alone.

    Raises:
        ProgramError: the optimizer is unknown, or has other parameters than the module.
    """
    values = {key: _array(value) for key, value in [*model.named_parameters(), *model.named_buffers()]}
    trained = {key: value for key, value in model.named_parameters() if value.requires_grad and loss is not None}
    state: dict[str, Any] = dict(values)
    kinds = {key: "weights" if key in trained or loss is None else "frozen" for key in values}
    names = _batch_names(model, loss, len(batch))
    named_batch = dict(zip(names, map(_array, batch), strict=True))
    if loss is None:

        def infer(arrays: dict[str, Any], rows: dict[str, Any]) -> tuple[dict[str, Any], Any]:
            traced = _Traced(name, model, arrays)
            return arrays, traced.outputs(lambda module, *inputs: module(*inputs), [rows[part] for part in names])

        return PureStep(infer, state, named_batch, kinds, ("The module is planned as after model.eval().",))
    if not trained:
        raise ProgramError(f"{name!r} has no parameter to train: each has requires_grad=False")
    # 1. The optimizer's state. Its form alone is computed if the module has no values.
    transform = transform_of(name, optimizer, trained)
    weights = {key: values[key] for key in trained}
    has_values = all(isinstance(value, np.ndarray) for value in weights.values())
    slots = transform.init(weights) if has_values else jax.eval_shape(transform.init, weights)
    slot_leaves, slot_form = jax.tree.flatten_with_path(slots)
    slot_names = [f"optimizer/{keystr(path, simple=True, separator='/')}" for path, _ in slot_leaves]
    # 2. Weights, slots and the random key are one flat state, by name.
    state |= dict(zip(slot_names, (leaf for _, leaf in slot_leaves), strict=True))
    state[_KEY] = np.arange(4, dtype="uint32") if has_values else jax.ShapeDtypeStruct((4,), "uint32")
    kinds |= dict.fromkeys(slot_names, "slots") | {_KEY: "frozen"}
    compute = _criterion_loss(loss) if isinstance(loss, torch.nn.Module) else loss

    def step(arrays: dict[str, Any], rows: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        key, next_key = jax.random.split(jax.random.wrap_key_data(arrays[_KEY], impl="rbg"))

        # The parameters to train replace those of the state, so JAX differentiates the loss by these alone.
        def loss_of(weights: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            traced = _Traced(name, model, {part: arrays[part] for part in values} | weights, key)
            value = traced.outputs(compute, [rows[part] for part in names])
            if getattr(value, "shape", None) != ():
                raise ProgramError(f"the loss of {name!r} must return a scalar tensor, not {_described(value)}")
            return value, traced.buffers()

        weights = {key: arrays[key] for key in trained}
        (value, buffers), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
        old = jax.tree.unflatten(slot_form, [arrays[slot] for slot in slot_names])
        with jax.named_scope("optimizer"):
            updates, new_slots = transform.update(gradients, old, weights)
            new_weights: Any = optax.apply_updates(weights, updates)
        new_arrays = new_weights | dict(zip(slot_names, jax.tree.leaves(new_slots), strict=True))
        return arrays | buffers | new_arrays | {_KEY: jax.random.key_data(next_key)}, {"loss": value}

    return PureStep(step, state, named_batch, kinds, _notes(model))


def _notes(model: torch.nn.Module) -> tuple[str, ...]:
    frozen = sum(1 for module in model.modules() if not module.training)
    norms = [module for module in model.modules() if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)]
    modules_are = "1 module is" if frozen == 1 else f"{frozen} modules are"
    notes = [f"{modules_are} in evaluation mode, and planned so."] if frozen else []
    if any(norm.training and norm.track_running_stats for norm in norms):
        notes.append("torchax does not update the running statistics of BatchNorm layers.")
    return tuple(notes)


class _Traced:
    """A module whose tensors are JAX arrays, for one trace.

    Args:
        name: name of the job, for errors.
        model: the user's module; it keeps its own tensors.
        arrays: arrays of its parameters and buffers, by name.
        key: a random key; None in evaluation mode.
    """

    def __init__(self, name: str, model: torch.nn.Module, arrays: dict[str, Any], key: Any = None) -> None:
        self._name, self._model, self._key = name, model, key
        self._env = torchax.default_env()
        self._tensors = self._env.j2t_iso(arrays)

    def outputs(self, compute: Callable[..., Any], batch: Sequence[Any]) -> Any:
        """Return the outputs of `compute(model, *batch)` as JAX arrays.

        Raises:
            ProgramError: an operation has no form in JAX, or depends on values.
        """
        holder = _ComputeModule(self._model, compute)
        tensors = self._env.j2t_iso(tuple(batch))
        # The modes of the layers belong to the user, and `eval` changes them for the trace.
        modes = {module: module.training for module in self._model.modules()}
        try:
            # The contexts in order: torchax's operations, its device for new tensors, no gradients, a key for random
            # operations.
            with contextlib.ExitStack() as stack:
                stack.enter_context(self._env)
                stack.enter_context(torch.device("jax"))
                stack.enter_context(_NoGradients())
                if self._key is None:
                    self._model.eval()
                else:
                    stack.enter_context(self._env.override_property(prng=self._key))
                layers = stack.enter_context(_named_layers(self._model))
                with self._explained(layers):
                    named = {f"model.{key}": tensor for key, tensor in self._tensors.items()}
                    results = torch.func.functional_call(holder, named, tensors)
                return self._env.t2j_iso(_plain(results))
        finally:
            for module, training in modes.items():
                module.training = training

    def buffers(self) -> dict[str, Any]:
        """Return the arrays of the buffers, as the module has changed them."""
        return {key: self._tensors[key].jax() for key, _ in self._model.named_buffers()}

    @contextlib.contextmanager
    def _explained(self, layers: list[str]) -> Iterator[None]:
        try:
            yield
        except ProgramError:
            raise
        except Exception as error:
            place = f" in the layer {layers[-1]!r}" if layers else ""
            raise ProgramError(_explanation(self._name, place, error)) from error


class _NoGradients(torch.overrides.TorchFunctionMode):
    """Lets no gradient pass through operations inside `torch.no_grad()`, of which torchax knows nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute an operation."""
        result = func(*args, **(kwargs or {}))
        if not torch.is_grad_enabled():
            for value in jax.tree.leaves(result):
                if isinstance(value, torchax.tensor.Tensor):
                    value.apply_jax_(jax.lax.stop_gradient)
        return result


class _ComputeModule(torch.nn.Module):
    """Calls a function of a module, so that its tensors can be replaced for the call."""

    def __init__(self, model: torch.nn.Module, compute: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self._compute = model, compute

    def forward(self, *batch: Any) -> Any:
        """Return what the function returns."""
        return self._compute(self.model, *batch)


def _batch_names(model: torch.nn.Module, loss: Any, count: int) -> list[str]:
    """Return the names of the arrays of a batch: those of the parameters of `forward` or of the loss."""
    if loss is None:
        return names_of_parameters(model.forward, count)
    if isinstance(loss, torch.nn.Module):
        return [*names_of_parameters(model.forward, count - 1), "labels"]
    return names_of_parameters(loss, count + 1)[1:]


def _criterion_loss(criterion: torch.nn.Module) -> Callable[..., Any]:
    return lambda model, *batch: criterion(model(*batch[:-1]), batch[-1])


def _array(value: Any) -> Any:
    """Return a tensor as an array, or as a spec if it is not on the CPU.

    Integers and floats of 64 bits become 32 bits, as in JAX. An array shares the tensor's memory if its dtype is kept.
    """
    if is_array(value):
        return value
    if not isinstance(value, torch.Tensor):
        raise ProgramError(
            f"a batch has tensors, arrays or jax.ShapeDtypeStruct, and no {type(value).__name__}: give "
            "input_specs=(x, y) of tensors, such as torch.empty(32, 3, 224, 224, device='meta')"
        )
    tensor = value.detach()
    dtype = jax.dtypes.canonicalize_dtype(torchax.ops.mappings.t2j_dtype(tensor.dtype))
    if tensor.device.type != "cpu":
        return jax.ShapeDtypeStruct(tuple(tensor.shape), dtype)
    if tensor.dtype is torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy().astype(dtype, copy=False)


def _plain(results: Any) -> Any:
    """Return a tree of tensors, without the classes of outputs that libraries define."""
    if isinstance(results, torch.Tensor):
        return results
    if isinstance(results, dict) or hasattr(results, "items"):
        return {str(key): _plain(value) for key, value in results.items() if value is not None}
    if isinstance(results, tuple | list):
        return [_plain(value) for value in results if value is not None]
    return results


_SCOPE = re.compile(r"torch\((.*)\)$")


def _scope_of_operation(function: Any) -> str:
    """Return the name of an operation for JAX's scopes: in brackets, so that it is no name of a layer."""
    return f"torch({function.name() if hasattr(function, 'name') else function.__name__})"


@contextlib.contextmanager
def _named_layers(model: torch.nn.Module) -> Iterator[list[str]]:
    """Let the operations of each layer carry its name, "layers.0.linear"; yield the names of the running layers."""
    running: list[str] = []
    scopes: list[Any] = []

    def enter(name: str) -> None:
        around = running[-1] if running else ""
        running.append(name)
        scopes.append(jax.named_scope(name.removeprefix(f"{around}.")))
        scopes[-1].__enter__()

    def leave(*results: Any) -> None:
        scopes.pop().__exit__(None, None, None)
        # A layer that raises stays in `running`, and the error names it. Like a layer that returns None it has no
        # result, and torch calls this while it handles the error.
        if results[-1] is not None or sys.exc_info()[0] is None:
            running.pop()

    handles = []
    for name, module in model.named_modules():
        if name:
            handles.append(module.register_forward_pre_hook(lambda *_, name=name: enter(name)))
            handles.append(module.register_forward_hook(leave, always_call=True))
    original = torchax.tensor._name_of_func
    torchax.tensor._name_of_func = _scope_of_operation
    try:
        yield running
    finally:
        torchax.tensor._name_of_func = original
        for handle in handles:
            handle.remove()


_VALUE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


def _explanation(name: str, place: str, error: Exception) -> str:
    """Return the text for an error in `forward`."""
    first = str(error).partition("\n")[0]
    if isinstance(error, torchax.tensor.OperatorNotFound):
        operation = first.removeprefix("Operator with name ").removesuffix(" has no lowering")
        operation = match[1] if (match := _SCOPE.match(operation)) else operation
        return (
            f"{name!r} calls {operation}{place}, which torchax {torchax.__version__} cannot compute with JAX. Compute "
            "it with other operations, or outside of the model"
        )
    if isinstance(error, _VALUE_ERRORS):
        return (
            f"{name!r} reads the value of a tensor{place}, as item(), if, nonzero and boolean indices do. A TPU "
            "program has fixed shapes, and it cannot branch on tensor values: use torch.where"
        )
    if isinstance(error, AssertionError) and "mixed math" in first:
        return (
            f"{name!r} computes with a tensor{place} that is no parameter, no buffer and no input: "
            "register it in __init__, self.register_buffer('scale', tensor)"
        )
    return f"{name!r} cannot be traced{place}: {type(error).__name__}: {first}"


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"a tensor of shape {tuple(shape)}"
