"""The scope of a strategy, and its wrappers around Keras.

Idea: inside a scope, each new variable records its system. Inside a replica, `apply_gradients` sums over the replicas,
and random seeds differ between replicas. Wrappers of higher floors (the one for `model.compile`) are loaded by
name and installed together with these.

Rule: the wrappers are installed once and stay; outside a scope and outside a replica they do nothing.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import keras

from anytpu import _by_name, _jax, _keras, _keras_layers
from anytpu._calls import users_stacklevel
from anytpu._contexts import value_within
from anytpu.errors import ProgramError, ReplicaError, StrategyError
from anytpu.strategy import assignments, keras_distribution
from anytpu.strategy.current import CURRENT, MAKES_TABLE
from anytpu.strategy.per_replica import is_traced
from anytpu.strategy.replicas import Replica, current_replica, inside, is_merging, outside
from anytpu.strategy.summed import reduced

_SYSTEM = "_anytpu_system"
_IS_UNTRACED = _jax.trace_state_clean()
_UNUSED: weakref.WeakSet[Any] = weakref.WeakSet()


@contextlib.contextmanager
def enter_scope(strategy: Any) -> Iterator[Any]:
    """Enter the scope of a strategy.

    Raises:
        StrategyError: inside the scope of a strategy on another system, or after the system was shut down. Or Keras has
            a distribution that is not the layout of the strategy.
    """
    outer = CURRENT.get()
    if outer is not None and outer.system is not strategy.system:
        raise StrategyError(
            f"mixing different strategies: the scope of {strategy!r} was opened inside the scope of {outer!r}. "
            "Close the outer scope first; a model belongs to one strategy"
        )
    _ = strategy.backend
    install()
    # A notebook may import keras-rs after the first scope.
    if "keras_rs" in sys.modules:
        _by_name.load("keras-rs scope")()
    keras_distribution.read_distribution(strategy)
    _UNUSED.clear()
    with value_within(CURRENT, strategy):
        yield strategy


@contextlib.contextmanager
def as_replica(strategy: Any, replica: Replica) -> Iterator[None]:
    """Run as one replica of a strategy, in its scope."""
    with value_within(CURRENT, strategy), inside(replica):
        yield


def prepare(caller: str) -> None:
    """Install the wrappers for a step, and reject it in a trace of JAX and while `keras.distribution` is active.

    Args:
        caller: name of the called method, for the error.
    """
    if not _IS_UNTRACED() and current_replica() is None and not is_merging():
        raise StrategyError(
            f"{caller} was called in a function that JAX traces, as for jax.jit, jax.grad, jax.vmap or jax.eval_shape: "
            "it compiles its function by itself, and returns values. Call it outside, and transform the function that "
            f"it runs: {caller}(jax.grad(fn), ...)"
        )
    install()
    _UNUSED.clear()
    refuse_distribution(caller)


def expect_use(strategy: Any) -> None:
    """Install the wrappers for a strategy that the user made; `warn_of_unused` names it until something runs on it."""
    install()
    _UNUSED.add(strategy)


def warn_of_unused(model: Any) -> None:
    """Warn, once, that a model trains outside of every scope although the user made a strategy."""
    strategy = next(iter(_UNUSED), None)
    if strategy is not None and CURRENT.get() is None:
        _UNUSED.clear()
        warnings.warn(
            f"{model.name!r} trains as plain Keras does, on one device: {strategy!r} was made, and nothing has run in "
            "its scope. To train on its cores, make and compile the model inside: with strategy.scope():",
            stacklevel=users_stacklevel(),
        )


def refuse_distribution(caller: str) -> None:
    """Raise while Keras has a distribution set.

    Args:
        caller: the other system that places variables, as the subject of a sentence.

    Raises:
        StrategyError: `keras.distribution.set_distribution` was called, or the caller is in the scope of a
            distribution.
    """
    distribution = keras.distribution.distribution()
    if distribution is not None:
        raise StrategyError(
            f"keras.distribution.{type(distribution).__name__} is set, and {caller} places variables too: two systems "
            "cannot place the same ones. To use the strategy alone, type keras.distribution.set_distribution(None) "
            "before the model is made; to use keras.distribution alone, make and compile the model outside of "
            "strategy.scope()"
        )


def refuse_split_variables(model: Any) -> None:
    """Raise if Keras or JAX would shard the variables of a model over a mesh, because its Program does not.

    `keras.distribution.DataParallel` is allowed: like a Program it splits only batches.

    Raises:
        ProgramError: another distribution is set, or a mesh by `jax.set_mesh`, or a variable of the model is sharded.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.size > 1:
        axes = ", ".join(f"{name}={size}" for name, size in zip(mesh.axis_names, mesh.axis_sizes, strict=True))
        raise ProgramError(
            f"a mesh is set ({axes}), and the Program of {model.name!r} would not follow it: leave jax.set_mesh out"
        )
    distribution = keras.distribution.distribution()
    if distribution is not None and not isinstance(distribution, keras.distribution.DataParallel):
        raise ProgramError(
            f"keras.distribution.{type(distribution).__name__} is set, and the Program of {model.name!r} would not "
            f"follow its layout. {_INSTEAD}"
        )
    for variable in model.variables:
        value = _keras.value_of(variable)
        if isinstance(value, jax.Array) and not value.sharding.is_fully_replicated:
            raise ProgramError(
                f"the variable {variable.path!r} of {model.name!r} is split over {len(value.sharding.device_set)} "
                f"devices, and a Program would not follow that. {_INSTEAD}"
            )


_INSTEAD = (
    "Write the step as a JAX function, and its layout as jax.sharding.NamedSharding on its input_specs. To have each "
    "device hold the whole model, type keras.distribution.set_distribution(None) before the model is made"
)


@functools.cache
def install() -> None:
    """Install the wrappers on Keras, once."""
    _keras_layers.draw_flat()
    _keras_layers.normalise_no_rows()
    _keras.wrap(_keras.variable_class(), "__init__", _wrap_init)
    _keras.wrap(_keras.jax_core_module().JaxVariable, "_initialize_layout", _wrap_layout)
    assignments.install()
    keras_distribution.install()
    _keras.wrap(keras.optimizers.Optimizer, "apply", _wrap_apply)
    _keras.wrap(keras.optimizers.LossScaleOptimizer, "apply", _wrap_scaled_apply)
    _keras.wrap(keras.random.SeedGenerator, "next", _wrap_next_seed)
    _keras.wrap(keras.losses.Loss, "__call__", _wrap_loss_call)
    # The name of `reset_state` in TensorFlow 2.
    _keras.add_method(keras.metrics.Metric, "reset_states", _reset_states)
    _by_name.load("keras scope")()


def system_of(variable: Any) -> Any | None:
    """Return the system in whose scope a variable was made, or None."""
    return vars(variable).get(_SYSTEM)


def claim(variables: Iterable[Any], system: Any) -> None:
    """Assign variables made outside of scopes to a system, for a model that was built by its first batch."""
    for variable in variables:
        vars(variable).setdefault(_SYSTEM, system)


def _wrap_init(init: Callable) -> Callable:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        strategy = CURRENT.get()
        if strategy is not None:
            vars(self)[_SYSTEM] = strategy.system
        if _keras.stateless_scope() is None or current_replica() is None:
            init(self, *args, **kwargs)
        else:
            init(self, **_with_initializer(inspect.signature(init).bind(self, *args, **kwargs).arguments))

    return __init__


def _wrap_layout(initialize: Callable) -> Callable:
    """Give a variable that is made in the scope of a strategy with a layout its sharding before it has a value."""

    def wrapper(self: Any) -> None:
        initialize(self)
        strategy = CURRENT.get()
        if strategy is not None and self._layout is None and current_replica() is None:
            self._layout = strategy.variable_sharding(self.path, tuple(self.shape), MAKES_TABLE.get())

    return wrapper


def _with_initializer(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a variable that a step makes, with an initializer in place of its first value.

    Keras initialises the variable once, after the trace of the step, and needs an initializer for that.
    """
    settings = {name: value for name, value in arguments.items() if name not in ("self", "kwargs")}
    settings |= arguments.get("kwargs", {})
    first = settings["initializer"]
    if callable(first) or isinstance(first, str):
        return settings
    with jax.ensure_compile_time_eval():
        value: Any = keras.ops.convert_to_tensor(first, dtype=settings.get("dtype"))
    if is_traced(value):
        raise ReplicaError(
            "a variable is made inside strategy.run with a first value that the step computes, an array of shape "
            f"{value.shape}. A variable is made once, before the first step, so give it a value that is known then: a "
            'number, a NumPy array, or an initializer with a shape, such as keras.Variable("zeros", shape=(3,)); or '
            "make it outside of the step"
        )
    return settings | {"initializer": lambda shape, dtype: value, "shape": value.shape, "dtype": value.dtype}


def _wrap_apply(apply: Callable) -> Callable:
    def wrapper(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        replica = current_replica()
        gradients = [reduced(gradient, replica) for gradient in grads]
        with assignments.unaggregated():
            return apply(self, gradients, trainable_variables)

    return wrapper


def _wrap_scaled_apply(apply: Callable) -> Callable:
    """Let a `LossScaleOptimizer` apply gradients in a replica.

    Keras's own method assigns to variables in the branches of `jax.lax.cond`, which JAX cannot trace.
    """

    def wrapper(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        replica = current_replica()
        if replica is None:
            return apply(self, grads, trainable_variables)
        listed = list(trainable_variables or _keras.trained_by(self))
        if not self.built:
            with keras.name_scope(self.name, caller=self):
                self.build(listed)
            self.built = True
        summed = {id(v): reduced(g, replica) for g, v in zip(grads, listed, strict=True)}
        trained, own = _keras.trained_by(self), self.variables
        with outside():
            new = self.stateless_apply(
                [v.value for v in own], [summed.get(id(v)) for v in trained], [v.value for v in trained]
            )
        for variable, value in zip([*trained, *own], [*new[0], *new[1]], strict=True):
            assignments.write_back(variable, value)

    return wrapper


_MEANS = frozenset({"sum_over_batch_size", "mean", "mean_with_sample_weight"})


def _wrap_loss_call(call: Callable) -> Callable:
    def wrapper(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        replica = current_replica()
        is_alone = replica is None or replica.replicas == 1
        if not is_alone and self.reduction in _MEANS:
            raise ReplicaError(
                f"the loss {self.name!r} takes the mean over one replica's rows, and gradients are summed over the "
                'replicas: please use reduction="sum" or reduction="none" for a loss inside strategy.run, for example '
                f'tpu.compute_average_loss(keras.losses.{type(self).__name__}(reduction="none")(labels, predictions), '
                "global_batch_size=64)"
            )
        return call(self, y_true, y_pred, sample_weight)

    return wrapper


def _reset_states(self: Any) -> None:
    """Alias of `reset_state`."""
    self.reset_state()


def _wrap_next_seed(next_seed: Callable) -> Callable:
    def wrapper(self: Any, ordered: bool = True) -> Any:
        seed = next_seed(self, ordered)
        replica = current_replica()
        return seed if replica is None or replica.replicas == 1 else jax.random.fold_in(seed, replica.index)

    return wrapper


def compiled_in_spite(what: str) -> contextlib.AbstractContextManager[Any]:
    """Return a context that traces and compiles also under `jax.disable_jit`; there it warns.

    Args:
        what: what is compiled, for the warning.
    """
    if not jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
        return contextlib.nullcontext()
    warnings.warn(
        f"jax.disable_jit() has no effect on {what}: a step of a strategy is always compiled. To see its values, print "
        "them with jax.debug.print, or call the function itself, outside of strategy.run",
        stacklevel=users_stacklevel(),
    )
    return jax.disable_jit(False)
