"""`tpu.model_step` builds a model by its step: whatever the step takes first, and whatever it names before it is built.

Right: the first loss is that of NumPy with the initial weights; the second epoch begins with the weights of the first.
"""

import anytpu as tpu  # isort: skip
import keras
import numpy as np
from case import check, finish


class Pair(keras.Model):
    """`call` takes the second part of the batch; the step names the weights of layers that are not built."""

    def __init__(self):
        super().__init__()
        self.first = keras.layers.Dense(3, kernel_initializer="ones")
        self.second = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, z):
        return self.second(self.first(z))

    @tpu.model_step
    def train_step(self, data):
        real, z = data
        gradients = []
        for layers, sign in (([self.second], 1.0), ([self.first], -1.0)):
            variables = [variable for layer in layers for variable in layer.trainable_variables]

            def loss(sign=sign):
                return sign * keras.ops.mean(self.second(self.first(z)) - self.second(real))

            value, found = tpu.value_and_grad(loss, variables)()
            gradients += zip(found, variables, strict=True)
        self.optimizer.apply_gradients(gradients)
        return {"value": value, "rows": 5.0, "parts": {"first": np.float32(2.0), "none": None}}


real, z = np.full((10, 3), 2.0, "float32"), np.full((10, 4), 1.0, "float32")
for cores in (1, 8):
    with tpu.connect("virtual", cores=cores).scope():
        model = Pair()
        model.compile(keras.optimizers.SGD(0.01))
    history = model.fit(real, z, batch_size=5, shuffle=False, verbose=0, epochs=1).history
    # 12 of z, 6 of the real rows; the first step moves `second` by -0.01 * 2 and `first` by 0.01 * 1.
    first, second, bias = 1.0, 1.0, 0.0
    for _ in range(2):
        slope = 4 * first + bias - 2
        value = -3 * second * slope
        first, second, bias = first + 0.01 * second, second - 0.01 * slope, bias + 0.01 * second
    check(f"{cores} cores: loss of the second step", value, history["value"][0])
    check(f"{cores} cores: numbers among the logs", [5.0, 2.0], [history["rows"][0], history["first"][0]])
    check(f"{cores} cores: kernels", [first, second], [model.first.kernel[0, 0], model.second.kernel[0, 0]])
    check(f"{cores} cores: shapes", [[4, 3], [3, 1]], [model.first.kernel.shape, model.second.kernel.shape])
finish()
