"""Find the layers that prevent compiling the steps of a Keras model.

Idea: a layer's `supports_jit` covers all of Keras's backends. Six image layers have it False because of TensorFlow, but
JAX compiles them; only the crop needs other code. Other layers compute on the host in each call. Their models run in
Keras's own loop, and the warning names the layer.

Rule: for a class that is not Keras's own, `supports_jit` decides, also where it derives from a layer of Keras.

Source: https://keras.io/api/layers/preprocessing_layers; the layers of Keras 3.15.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
from jax import lax

from anytpu import _keras
from anytpu.strategy.per_replica import is_traced

_COMPILED = (
    "RandomCrop",
    "RandomPerspective",
    "RandomRotation",
    "RandomShear",
    "RandomTranslation",
    "RandomZoom",
)
_TENSORFLOW = "computes with TensorFlow on the host"
_HOST = {
    "AugMix": "chooses its operations with Python's random module, which a compiled step would call once",
    "RandomElasticTransform": "makes a kernel of a random size",
    "HashedCrossing": _TENSORFLOW,
    "Hashing": _TENSORFLOW,
    "IntegerLookup": _TENSORFLOW,
    "StringLookup": _TENSORFLOW,
    "TextVectorization": _TENSORFLOW,
}


def can_compile(model: Any) -> bool:
    """Return whether JAX can compile the steps of a model with all its layers."""
    return not any(_why_on_host(layer) for layer in _keras.layers_of(model))


def why_on_host(model: Any) -> str | None:
    """Return a clause with the first layer that cannot be compiled and the reason, or None if all layers can."""
    named = ((layer, _why_on_host(layer)) for layer in _keras.layers_of(model))
    return next((f"the layer {layer.name!r} ({type(layer).__name__}) {why}" for layer, why in named if why), None)


def advice(model: Any) -> str:
    """Return how to change a model with a layer on the host so that it can be compiled; "" without such a layer."""
    layer = next((layer for layer in _keras.layers_of(model) if _why_on_host(layer)), None)
    if layer is None:
        return ""
    if not _is_keras_layer(layer, _HOST):
        return "If JAX can trace its call, set supports_jit = True on the layer before model.compile"
    return (
        "Leave it out of the model and apply it to the data, for example dataset.map(lambda batch: "
        "(layer(batch[0]), batch[1]))"
    )


def is_left_to_keras(model: Any) -> bool:
    """Return whether Keras resolves `jit_compile="auto"` to False for a model whose steps JAX can compile."""
    return can_compile(model) and not all(layer.supports_jit for layer in _keras.layers_of(model))


@functools.cache
def install() -> None:
    """Install the wrappers that make `RandomCrop` and `keras.remat` compilable, once."""
    _keras.wrap(keras.layers.RandomCrop, "transform_images", _cropping)
    _keras.wrap(_keras.jax_core_module(), "remat", _retracing)


def _retracing(original: Callable) -> Callable:
    """Wrap Keras's `remat`, so that a layer is traced again in each step.

    `jax.checkpoint` caches the trace of a function. A layer's cached trace holds the weights of the first trace, when
    the model was built. Plain Keras 3.15 never trains them, and a Program of the model had them as extra arguments.
    """

    def remat(function: Callable) -> Callable:
        def call(*args: Any, **kwargs: Any) -> Any:
            return original(lambda *args, **kwargs: function(*args, **kwargs))(*args, **kwargs)

        return call

    return remat


def _cropping(original: Callable) -> Callable:
    """Wrap `RandomCrop.transform_images`, which slices at an offset that must be a constant when JAX traces."""

    def transform_images(self: Any, images: Any, transformation: Any, training: bool = True) -> Any:
        if not training or not any(map(is_traced, transformation)):
            return original(self, images, transformation, training=training)
        top, left = transformation
        images = self.backend.cast(images, self.compute_dtype)
        images = lax.dynamic_slice_in_dim(images, top, self.height, self.height_axis)
        return lax.dynamic_slice_in_dim(images, left, self.width, self.width_axis)

    return transform_images


def _why_on_host(layer: Any) -> str | None:
    if _is_keras_layer(layer, _HOST):
        return _HOST[type(layer).__name__]
    return None if layer.supports_jit or _is_keras_layer(layer, _COMPILED) else "has supports_jit=False"


def _is_keras_layer(layer: Any, names: Any) -> bool:
    """Return whether the class of a layer is Keras's own and its name is in `names`."""
    cls = type(layer)
    return cls.__name__ in names and getattr(keras.layers, cls.__name__, None) is cls
