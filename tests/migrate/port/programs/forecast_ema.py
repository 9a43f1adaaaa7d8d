"""A forecast with two heads: windows, a metric of its own, clipped gradients, averaged weights, early stopping."""
import functools
import numpy as np
import tensorflow as tf
import tensorflow.keras as keras

strategy = tf.distribute.get_strategy()
try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver.connect()
    strategy = tf.distribute.TPUStrategy(tpu)
except Exception as e:
    print('no TPU', e)

SEQ, FEAT, HORIZON = 12, 3, 4
GLOBAL = 4 * strategy.num_replicas_in_sync
series = np.cumsum(np.random.RandomState(1).randn(400, FEAT).astype('float32'), axis=0)


def make_window(series):
    ds = tf.data.Dataset.from_tensor_slices(series)
    ds = ds.window(SEQ + HORIZON, shift=1, drop_remainder=True)
    ds = ds.flat_map(lambda w: w.batch(SEQ + HORIZON, drop_remainder=True))
    ds = ds.map(lambda w: (w[:SEQ], w[SEQ:, 0]))
    return ds


train_ds = make_window(series[:300]).shuffle(256).batch(GLOBAL, drop_remainder=True)
val_ds = make_window(series[300:]).batch(GLOBAL)


class SMAPE(keras.metrics.Metric):
    def __init__(self, name='smape', **kwargs):
        super().__init__(name=name, **kwargs)
        self.total = self.add_weight('total', initializer='zeros')
        self.count = self.add_weight('count', initializer='zeros')

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = tf.cast(y_true, self.dtype)
        value = 2 * tf.abs(y_true - y_pred) / (tf.abs(y_true) + tf.abs(y_pred) + K_EPS)
        self.total.assign_add(tf.reduce_sum(value))
        self.count.assign_add(tf.cast(tf.size(y_true), self.dtype))

    def result(self):
        return tf.math.divide_no_nan(self.total, self.count)

    def reset_states(self):
        self.total.assign(0.)
        self.count.assign(0.)


K_EPS = keras.backend.epsilon()


class Attention(keras.layers.Layer):
    def __init__(self, units, **kw):
        super().__init__(**kw)
        self.units = units

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1], self.units), initializer='glorot_uniform', trainable=True, name='w')
        self.v = self.add_weight('v', (self.units, 1), initializer='zeros')

    def call(self, x):
        score = tf.tensordot(tf.tanh(tf.tensordot(x, self.w, axes=1)), self.v, axes=1)
        alpha = tf.nn.softmax(score, axis=1)
        return tf.reduce_sum(alpha * x, axis=1)


def build():
    i = keras.layers.Input((SEQ, FEAT))
    x = keras.layers.Conv1D(8, 3, padding='causal', activation='relu')(i)
    x = keras.layers.LSTM(8, return_sequences=True, recurrent_dropout=0.0)(x)
    x = Attention(8)(x)
    mean = keras.layers.Dense(HORIZON, name='mean')(x)
    scale = keras.layers.Dense(HORIZON, activation=tf.math.softplus, name='scale')(x)
    return keras.Model(i, [mean, scale])


with strategy.scope():
    model = build()
    ema = keras.models.clone_model(model)
    ema.set_weights(model.get_weights())
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(1e-2, 10, 0.9, staircase=True))
    train_loss = keras.metrics.Mean()
    smape = SMAPE()


def nll(y, mean, scale):
    scale = scale + 1e-3
    return tf.reduce_sum(0.5 * tf.math.log(2 * np.pi * scale ** 2) + 0.5 * tf.square((y - mean) / scale), axis=-1)


@tf.function
def train_epoch(iterator, steps):
    def step(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            mean, scale = model(x, training=True)
            loss = tf.reduce_sum(nll(y, mean, scale)) / GLOBAL
        grads = tape.gradient(loss, model.trainable_variables)
        grads = [tf.clip_by_norm(g, 1.0) for g in grads]
        optimizer.apply_gradients(list(zip(grads, model.trainable_variables)))
        for a, b in zip(ema.variables, model.variables):
            a.assign(0.9 * a + 0.1 * b)
        train_loss.update_state(loss * strategy.num_replicas_in_sync)
    for _ in tf.range(steps):
        strategy.run(step, args=(next(iterator),))


@tf.function
def val_step(x, y):
    def step(x, y):
        mean, _ = ema(x, training=False)
        smape.update_state(y, mean)
        return tf.reduce_mean(tf.abs(mean - y))
    return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(step, args=(x, y)), axis=None)


best, wait = np.inf, 0
iterator = iter(strategy.experimental_distribute_dataset(train_ds.repeat()))
for epoch in range(3):
    train_epoch(iterator, tf.constant(4))
    mae = [val_step(x, y) for x, y in strategy.experimental_distribute_dataset(val_ds)]
    mae = float(tf.reduce_mean(mae))
    tf.print('epoch', epoch, 'loss', train_loss.result(), 'smape', smape.result(), 'mae', mae)
    if mae < best:
        best, wait = mae, 0
        ema.save_weights('best.h5')
    else:
        wait += 1
        if wait > 2:
            break
    train_loss.reset_states()
    smape.reset_states()
ema.load_weights('best.h5')
print(ema.predict(val_ds)[0].shape)
