"""ResNet-50 v1.5 as the MLPerf and DAWNBench submissions for TPUs trained it.

Idea: per-core code joined by sums, as TPUEstimator made it: gradients are summed over the replicas, BatchNorm sees one
core's images, or those of a group of cores.

Rule: bfloat16 activations, float32 weights and statistics; images come with the batch last (HWCN), as the input
pipelines of these submissions laid them out for the compiler. The stride of a bottleneck is on its 3 x 3 convolution.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from plan_cases.case import Built
from plan_cases.optimizers import Optimizer, momentum
from plan_cases.placing import mesh_of, placed, spec

_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
_CLASSES = 1000
MOMENTUM = momentum()


@dataclasses.dataclass(frozen=True)
class ResNet:
    """A training run of ResNet-50.

    Attributes:
        batch: images of all cores.
        replicas: cores.
        optimizer: how weights are updated.
        norm_group: cores over which BatchNorm takes its statistics.
        is_space_to_depth: the host folded 2 x 2 pixels into channels, and the first convolution is 4 x 4 of stride 1.
        l2: weight decay that is part of the loss; 0 where the optimizer decays.
    """

    batch: int
    replicas: int
    optimizer: Optimizer = MOMENTUM
    norm_group: int = 1
    is_space_to_depth: bool = False
    l2: float = 1e-4

    def build(self) -> Built:
        """Return the step over all cores, and its specs."""
        mesh = mesh_of(replica=self.replicas)
        weights = jax.eval_shape(self.weights)
        state = {"weights": weights, "slots": jax.eval_shape(self.optimizer.start, weights), "stats": stats_of(weights)}
        side, channels = (115, 12) if self.is_space_to_depth else (224, 3)
        images = spec(mesh, (side, side, channels, self.batch), jnp.bfloat16, None, None, None, "replica")
        labels = spec(mesh, (self.batch,), jnp.int32, "replica")
        rows = {"images": P(None, None, None, "replica"), "labels": P("replica")}
        step = jax.shard_map(
            self.step, mesh=mesh, in_specs=(P(), rows), out_specs=(P(), P()), axis_names={"replica"}, check_vma=False
        )
        return step, (placed(mesh, state), {"images": images, "labels": labels})

    def weights(self) -> dict[str, Any]:
        """Return the weights: kernels, and (scale, offset) pairs."""
        first = (4, 4, 12, 64) if self.is_space_to_depth else (7, 7, 3, 64)
        weights: dict[str, Any] = {"first": _conv(first)}
        features = 64
        for stage, (width, blocks) in enumerate(_STAGES):
            for block in range(blocks):
                one = {"a": _conv((1, 1, features, width)), "b": _conv((3, 3, width, width))}
                one["c"] = _conv((1, 1, width, 4 * width))
                if block == 0:
                    one["skip"] = _conv((1, 1, features, 4 * width))
                weights[f"{stage}.{block}"] = one
                features = 4 * width
        weights["dense"] = {"kernel": jnp.zeros((features, _CLASSES)), "bias": jnp.zeros(_CLASSES)}
        return weights

    def step(self, state: Any, batch: Any) -> tuple[Any, Any]:
        """Train on one core's images."""
        (loss, stats), gradients = jax.value_and_grad(self.loss, has_aux=True)(state["weights"], state["stats"], batch)
        gradients = lax.psum(gradients, "replica")
        weights, slots = self.optimizer.update(state["weights"], gradients, state["slots"])
        return {"weights": weights, "slots": slots, "stats": stats}, {"loss": lax.psum(loss, "replica")}

    def loss(self, weights: Any, stats: Any, batch: Any) -> tuple[jax.Array, Any]:
        """Return this core's share of the loss, and the new statistics."""
        logits, stats = self.logits(weights, stats, batch["images"])
        targets = jax.nn.one_hot(batch["labels"], _CLASSES) * 0.9 + 0.1 / _CLASSES
        loss = -jnp.mean(jnp.sum(targets * jax.nn.log_softmax(logits), -1))
        if self.l2:
            kernels = [w for w in jax.tree.leaves(weights) if w.ndim > 1]
            loss += self.l2 * sum(jnp.sum(w * w) / 2 for w in kernels)
        return loss / self.replicas, stats

    def logits(self, weights: Any, stats: Any, images: jax.Array) -> tuple[jax.Array, Any]:
        """Return `(batch, 1000)` float32, and the new statistics."""
        new: dict[str, Any] = {}
        x = jnp.transpose(images, (3, 0, 1, 2))
        first = {"stride": 1, "padding": "VALID"} if self.is_space_to_depth else {"stride": 2, "padding": 3}
        x, new["first"] = self._layer(x, weights["first"], stats["first"], **first)
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for stage, (_, blocks) in enumerate(_STAGES):
            for block in range(blocks):
                key = f"{stage}.{block}"
                x, new[key] = self._block(x, weights[key], stats[key], 2 if stage and not block else 1)
        x = jnp.mean(x, (1, 2))
        kernel, bias = weights["dense"]["kernel"], weights["dense"]["bias"]
        return (x @ kernel.astype(x.dtype)).astype(jnp.float32) + bias, new

    def _block(self, x: jax.Array, weights: Any, stats: Any, stride: int) -> tuple[jax.Array, Any]:
        new = {}
        skip = x
        if "skip" in weights:
            skip, new["skip"] = self._layer(x, weights["skip"], stats["skip"], stride=stride, is_relu=False)
        x, new["a"] = self._layer(x, weights["a"], stats["a"])
        x, new["b"] = self._layer(x, weights["b"], stats["b"], stride=stride, padding=1)
        x, new["c"] = self._layer(x, weights["c"], stats["c"], is_relu=False)
        return jax.nn.relu(x + skip), new

    def _layer(
        self, x: jax.Array, weights: Any, stats: Any, stride: int = 1, padding: Any = 0, is_relu: bool = True
    ) -> tuple[jax.Array, Any]:
        pads = padding if isinstance(padding, str) else [(padding, padding)] * 2
        kernel = weights["kernel"].astype(x.dtype)
        x = lax.conv_general_dilated(x, kernel, (stride,) * 2, pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        mean, variance = self._moments(x)
        scale = weights["scale"] * lax.rsqrt(variance + 1e-5)
        x = (x * scale + (weights["offset"] - mean * scale)).astype(jnp.bfloat16)
        new = {"mean": 0.9 * stats["mean"] + 0.1 * mean, "variance": 0.9 * stats["variance"] + 0.1 * variance}
        return (jax.nn.relu(x) if is_relu else x), jax.tree.map(lax.stop_gradient, new)

    def _moments(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        wide = x.astype(jnp.float32)
        mean, square = jnp.mean(wide, (0, 1, 2)), jnp.mean(wide * wide, (0, 1, 2))
        if self.norm_group > 1:
            groups = [list(range(at, at + self.norm_group)) for at in range(0, self.replicas, self.norm_group)]
            joined = lax.psum(jnp.stack([mean, square]), "replica", axis_index_groups=groups) / self.norm_group
            mean, square = joined[0], joined[1]
        return mean, square - mean * mean


def stats_of(weights: Any) -> Any:
    """Return the specs of the moving averages beside each kernel that has a scale."""
    if "scale" in weights:
        return {"mean": weights["scale"], "variance": weights["scale"]}
    return {name: stats_of(inner) for name, inner in weights.items() if name != "dense"}


def _conv(shape: tuple[int, ...]) -> dict[str, jax.Array]:
    return {"kernel": jnp.zeros(shape), "scale": jnp.ones(shape[-1]), "offset": jnp.zeros(shape[-1])}
