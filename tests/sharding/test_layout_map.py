"""A LayoutMap of Keras: each array has the partition that Keras itself gives it, LoRA adapters and slots included."""

import json
import os
import subprocess

import pytest

from forked import python

PROGRAM = '''
import json, sys
import anytpu as tpu, keras
from anytpu.program.program import state_names
from anytpu.sharding import place, resolve

layers = keras.layers

class Attention(layers.Layer):
    def __init__(self, **settings):
        super().__init__(**settings)
        for part in ("query", "key", "value"):
            setattr(self, part, layers.EinsumDense("btd,dnh->btnh", (None, 4, 8), name=part))
        self.out = layers.EinsumDense("btnh,nhd->btd", (None, 32), name="attention_output")

    def call(self, x):
        return self.out(self.query(x) * self.key(x) + self.value(x))

class Block(layers.Layer):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.attention, self.norm = Attention(name="attention"), layers.LayerNormalization(name="norm")
        self.wide = layers.Dense(32, name="ffw")

    def call(self, x):
        return self.wide(self.norm(x + self.attention(x)))

def make(optimizer):
    """Two blocks of attention and a feed-forward layer with adapters, named as those of KerasHub are."""
    tokens = keras.Input((16,), dtype="int32")
    embedding = layers.Embedding(64, 32, name="token_embedding")
    blocks = [Block(name=f"decoder_block_{n}") for n in (0, 1)]
    x = embedding(tokens)
    for block in blocks:
        x = block(x)
        attention = block.attention
        for layer in (attention.query, attention.key, attention.value, attention.out, block.wide):
            layer.enable_lora(4)
    embedding.enable_lora(4)
    model = keras.Model(tokens, layers.Dense(8, name="logits")(x), name="net")
    model.compile(optimizer(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.build(model.trainable_variables)
    return model

def layout_map(keys):
    mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"), keras.distribution.list_devices())
    layouts = keras.distribution.LayoutMap(mesh)
    for key, axes in keys.items():
        layouts[key] = tuple(axes)
    return layouts

def axes_of(value):
    parts = getattr(value.sharding, "spec", ())  # A scalar is on one device.
    spec = [part if isinstance(part, tuple) else (part,) if part else () for part in parts]
    return spec if any(spec) else []

optimizers = {
    "adam": keras.optimizers.Adam,
    "averaged": lambda: keras.optimizers.SGD(momentum=0.9, use_ema=True, gradient_accumulation_steps=2),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
    "factored": keras.optimizers.Adafactor,
}
maps, differences = json.loads(sys.argv[1]), {}
for (name, optimizer), (title, keys) in zip(optimizers.items(), maps.items(), strict=True):
    parallel = keras.distribution.ModelParallel(layout_map=layout_map(keys), batch_dim_name="batch")
    keras.utils.clear_session(free_memory=False)  # Otherwise the optimizer of the second model has another name.
    with parallel.scope():
        model = make(optimizer)
        theirs = {v.path: axes_of(v.value) for v in (*model.variables, *model.optimizer.variables)}
    keras.utils.clear_session(free_memory=False)
    placed = place(tpu.program.of(make(optimizer), batch_size=8), resolve(parallel, None, 8))
    ours = dict(zip(state_names(placed), map(list, placed.placement.specs), strict=False))
    ours = {path: spec if any(spec) else [] for path, spec in ours.items()}
    split = sum(bool(spec) for path, spec in theirs.items() if path in ours)
    other = {path: (ours[path], theirs[path]) for path in ours if path in theirs and ours[path] != theirs[path]}
    differences[title] = [len(set(ours) & set(theirs)), split, other]
print(json.dumps(differences))
'''

MAPS = {
    "the Gemma notebook": {
        "token_embedding/embeddings": ["model", None],
        "decoder_block.*attention.*(query|key|value).*kernel": ["model", None, None],
        "decoder_block.*attention_output.*kernel": ["model", None, None],
        "decoder_block.*ffw.*kernel": [None, "model"],
    },
    "one of two like weights, and a bias": {
        "decoder_block_0/attention/query/kernel": ["model"],
        "decoder_block.*/norm/gamma": ["model"],
    },
    "adapters by name": {".*lora_kernel_b": [None, "model"], ".*lora_embeddings_b": [None, "batch"]},
    "all kernels, also factors of slots": {"(?!adafactor).*/kernel": [None, "batch"]},
}


def test_each_array_has_the_partition_that_keras_gives_it():
    eight = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "PJRT_NPROC": "16"}
    done = subprocess.run(
        [*python(), "-c", PROGRAM, json.dumps(MAPS)],
        env={**os.environ, **eight},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.fail(done.stderr)
    found = json.loads(done.stdout.splitlines()[-1])
    assert [other for _, _, other in found.values()] == [{}] * len(MAPS)
    # Each map splits some of the arrays, and most arrays of the step are those of Keras.
    assert all(count > 30 and 0 < split < count for count, split, _ in found.values()), found
