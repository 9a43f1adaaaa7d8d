"""`ShardedEmbedding`: a Keras layer for an embedding table of any size, of which a step updates the rows it uses."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import keras
import numpy as np

from anytpu.embedding.bags import COMBINERS, bags_of
from anytpu.embedding.id_forms import check_range, refuse_forms
from anytpu.embedding.table_layer import MAX_ROWS, TableLayer
from anytpu.errors import DataError, SettingError

_REFUSED = {
    "mask_zero": "0 is an id like any other. Fill rows up with -1 (tpu.embedding.pad_ids), and pass mask_padding=True",
    "embeddings_regularizer": "it changes all rows at each step. Leave it out, or regularize the layer's result with "
    "keras.layers.ActivityRegularization",
    "embeddings_constraint": "it changes all rows at each step. Leave it out",
    "lora_rank": "a step changes the rows of the table itself. Leave it out",
    "weights": "assign them afterwards, layer.embeddings = array, or pass embeddings_initializer",
    "input_length": "the length follows from the ids. Leave it out",
}


@keras.saving.register_keras_serializable("anytpu")
class ShardedEmbedding(TableLayer):
    """An embedding table that is split by row over the cores, with an optimizer that updates the rows of the batch.

    It is `keras.layers.Embedding` for large tables. Each core holds a part of the table and of its slots. A step reads
    and writes the rows of the ids in the batch, so its time does not depend on the size of the table. An id that occurs
    several times is updated once, by the sum of its gradients. SGD and Adagrad give the numbers of Keras's optimizers;
    momentum, Adam and Ftrl are lazy: slots of other rows do not decay.

    Args:
        input_dim: number of ids; ids are 0 to input_dim - 1, and -1 stands for no id.
        output_dim: width of an embedding.
        combiner: "sum", "mean" or "sqrtn", to combine the embeddings along the last axis of the ids; None for each.
        optimizer: SGD, Adagrad, Adam or Ftrl of Keras, or its name, for this table alone. Its learning rate is
            `layer.learning_rate` afterwards.
        embeddings_initializer: initializer of the table.
        on_bad_id: treatment of other ids: "raise", or "drop" to treat them as -1.
        mask_padding: whether -1 is masked for the next layers, without a combiner.
        settings: arguments of `keras.layers.Layer`, such as `name`.

    Raises:
        SettingError: an argument is none of these.

    Example:
        >>> layer = ShardedEmbedding(1000, 4, combiner="mean", optimizer="adagrad")
        >>> layer(np.array([[3, 5, -1], [7, -1, -1]])).shape
        (2, 4)
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        combiner: str | None = None,
        optimizer: Any = "adam",
        embeddings_initializer: Any = "uniform",
        on_bad_id: str = "raise",
        mask_padding: bool = False,
        **settings: Any,
    ) -> None:
        for name, size in (("input_dim", input_dim), ("output_dim", output_dim)):
            if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 1:
                raise SettingError(f"{name} must be a positive integer, not {size!r}")
        if input_dim > MAX_ROWS:
            raise SettingError(
                f"input_dim is {input_dim:,}, and ids are of 32 bits: a table has at most {MAX_ROWS:,} rows. "
                "Split it into tables of fewer ids, or hash the ids into fewer"
            )
        if combiner not in (None, *COMBINERS):
            raise SettingError(f'combiner must be "sum", "mean", "sqrtn" or None, not {combiner!r}')
        if on_bad_id not in ("raise", "drop"):
            raise SettingError(f'on_bad_id must be "raise" or "drop", not {on_bad_id!r}')
        for name, reason in _REFUSED.items():
            if settings.pop(name, None):
                raise SettingError(f"{name} of keras.layers.Embedding is not supported by a ShardedEmbedding: {reason}")
        super().__init__(int(input_dim), int(output_dim), optimizer, **settings)
        self.output_dim = int(output_dim)
        self.combiner, self.on_bad_id = combiner, on_bad_id
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.mask_padding = mask_padding
        self.supports_masking = mask_padding

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Look ids up; see `call`."""
        for ids in keras.tree.flatten(inputs):
            array = ids if hasattr(ids, "dtype") else np.asarray(ids)
            refuse_forms("the input", array, self.name)
            check_range("the input", array)
        return super().__call__(inputs, *args, **kwargs)

    def build(self, input_shape: Any) -> None:
        """Make the table, its slots, its learning rate and its step count."""
        del input_shape
        self.add_table(self.embeddings_initializer)
        self.built = True

    @property
    def embeddings(self) -> Any:
        """The embeddings now, `(input_dim, output_dim)`. Assign an array of this shape to replace them."""
        self._build_once()
        return self.read_rows()[: self.input_dim]

    @embeddings.setter
    def embeddings(self, value: Any) -> None:
        self._build_once()
        array = np.asarray(value)
        if array.shape != (self.input_dim, self.output_dim):
            raise SettingError(
                f"the embeddings of {self.name!r} have the shape {(self.input_dim, self.output_dim)}, not {array.shape}"
            )
        rest = self._table.shape[0] - self.input_dim
        self._table.assign(np.pad(array, ((0, rest), (0, 0))) if rest else array)

    def _build_once(self) -> None:
        if not self.built:
            self.build(None)

    def call(self, inputs: Any, weights: Any = None) -> Any:
        """Look ids up.

        Args:
            inputs: ids, `(batch,)` or `(batch, ids)`; or a dictionary, list or tuple of them, for several features that
                share the table.
            weights: the weight of each id, of the shape of the ids; nested like the inputs. None, or a feature left out
                of a dictionary, is a weight of 1.

        Returns:
            The embeddings `(batch, ids, output_dim)`, or with a combiner `(batch, output_dim)`; nested like the inputs.

        Raises:
            DataError: the weights are for other features, or of another shape than the ids.
        """
        pairs = self._pairs(inputs, weights)
        features = [
            bags_of(jnp.asarray(ids), own, self.combiner, self.input_dim, self._table.dtype) for ids, own in pairs
        ]
        return keras.tree.pack_sequence_as(inputs, self.look_up(features, self.on_bad_id == "raise"))

    def _pairs(self, inputs: Any, weights: Any) -> list[tuple[Any, Any]]:
        """Return the ids of each feature with their weights, or None for weights of 1."""
        ids = keras.tree.flatten(inputs)
        if weights is None:
            own: list[Any] = [None] * len(ids)
        elif isinstance(inputs, dict) and isinstance(weights, dict) and weights.keys() <= inputs.keys():
            # Keras flattens a dictionary in the order of its keys.
            own = [weights.get(name) for name in sorted(inputs)]
        elif isinstance(inputs, list | tuple) and isinstance(weights, list | tuple) and len(weights) == len(inputs):
            own = list(weights)
        elif not isinstance(inputs, dict | list | tuple) and not isinstance(weights, dict | list | tuple):
            own = [weights]
        else:
            names = [_features_text(tree) for tree in (weights, inputs)]
            raise DataError(
                f"the weights of {self.name!r} are for {names[0]}, and the ids for {names[1]}: nest them alike, "
                'weights={"seen": w} for layer({"liked": a, "seen": b})'
            )
        for array, weight in zip(ids, own, strict=True):
            self._check_dtype(array.dtype)
            if weight is not None and _shape(weight) != _shape(array):
                raise DataError(
                    f"weights of {self.name!r} have the shape {_shape(weight)}, and the ids "
                    f"{_shape(array)}: give one weight for each id"
                )
        return list(zip(ids, own, strict=True))

    def _check_dtype(self, dtype: Any) -> None:
        """Refuse ids of a floating type that cannot hold all of them."""
        if jnp.issubdtype(dtype, jnp.floating) and self.input_dim > 2 ** (jnp.finfo(dtype).nmant + 1):
            raise SettingError(
                f"ids of {self.name!r} are {jnp.dtype(dtype).name}, which does not hold every integer below "
                f'{self.input_dim:,}: give the input a type, keras.Input(..., dtype="int32")'
            )

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Return the mask of ids other than -1, with `mask_padding` and no combiner."""
        del mask
        if not self.mask_padding or self.combiner is not None:
            return None
        return keras.tree.map_structure(lambda ids: keras.ops.not_equal(ids, -1), inputs)

    def compute_output_shape(self, input_shape: Any, *others: Any) -> Any:
        """Return the shape of the result, nested like the shapes of the ids."""
        del others

        def shape_of(shape: Any) -> tuple:
            kept = shape if self.combiner is None else shape[: max(1, len(shape) - 1)]
            return (*kept, self.output_dim)

        return keras.tree.map_shape_structure(shape_of, input_shape)

    def compute_output_spec(self, inputs: Any, weights: Any = None, **settings: Any) -> Any:
        """Return the specs of the result, nested like the ids."""
        del settings
        self._pairs(inputs, weights)

        def spec_of(ids: Any) -> Any:
            return keras.KerasTensor(self.compute_output_shape(ids.shape), dtype=self.compute_dtype)

        return keras.tree.map_structure(spec_of, inputs)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments with which the layer can be made again."""
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "combiner": self.combiner,
            "optimizer": keras.saving.serialize_keras_object(self.table_optimizer),
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "on_bad_id": self.on_bad_id,
            "mask_padding": self.mask_padding,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Make the layer that `get_config` describes."""
        config = dict(config)
        config.pop("autocast", None)
        return cls(**{**config, "optimizer": keras.saving.deserialize_keras_object(config["optimizer"])})


def _shape(array: Any) -> tuple:
    return tuple(array.shape if hasattr(array, "shape") else np.shape(array))


def _features_text(tree: Any) -> str:
    if isinstance(tree, dict):
        return ", ".join(map(repr, sorted(tree)))
    return f"{len(tree)} features" if isinstance(tree, list | tuple) else "one feature"
