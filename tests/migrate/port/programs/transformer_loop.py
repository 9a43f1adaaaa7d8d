"""A Transformer encoder with a custom training loop, after the text tutorials. TensorFlow 2.4."""
import numpy as np
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="grpc://10.0.0.2:8470")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
print("All devices: ", tf.config.list_logical_devices("TPU"))
strategy = tf.distribute.experimental.TPUStrategy(resolver)

VOCAB, LENGTH, D_MODEL, HEADS = 50, 12, 16, 2
BATCH_SIZE = 8 * strategy.num_replicas_in_sync


def get_angles(pos, i, d_model):
    return pos / np.power(10000, (2 * (i // 2)) / np.float32(d_model))


def positional_encoding(position, d_model):
    angles = get_angles(np.arange(position)[:, np.newaxis], np.arange(d_model)[np.newaxis, :], d_model)
    angles[:, 0::2] = np.sin(angles[:, 0::2])
    angles[:, 1::2] = np.cos(angles[:, 1::2])
    return tf.cast(angles[np.newaxis, ...], dtype=tf.float32)


def create_look_ahead_mask(size):
    return 1 - tf.linalg.band_part(tf.ones((size, size)), -1, 0)


def scaled_dot_product_attention(q, k, v, mask):
    matmul_qk = tf.matmul(q, k, transpose_b=True)
    dk = tf.cast(tf.shape(k)[-1], tf.float32)
    logits = matmul_qk / tf.math.sqrt(dk)
    if mask is not None:
        logits += mask * -1e9
    return tf.matmul(tf.nn.softmax(logits, axis=-1), v)


class MultiHeadAttention(tf.keras.layers.Layer):
    def __init__(self, d_model, num_heads):
        super(MultiHeadAttention, self).__init__()
        self.num_heads = num_heads
        self.d_model = d_model
        self.depth = d_model // num_heads
        self.wq = tf.keras.layers.Dense(d_model)
        self.wk = tf.keras.layers.Dense(d_model)
        self.wv = tf.keras.layers.Dense(d_model)
        self.dense = tf.keras.layers.Dense(d_model)

    def split_heads(self, x, batch_size):
        x = tf.reshape(x, (batch_size, -1, self.num_heads, self.depth))
        return tf.transpose(x, perm=[0, 2, 1, 3])

    def call(self, x, mask):
        batch_size = tf.shape(x)[0]
        q, k, v = (self.split_heads(w(x), batch_size) for w in (self.wq, self.wk, self.wv))
        attention = scaled_dot_product_attention(q, k, v, mask)
        attention = tf.transpose(attention, perm=[0, 2, 1, 3])
        return self.dense(tf.reshape(attention, (batch_size, -1, self.d_model)))


class Encoder(tf.keras.Model):
    def __init__(self):
        super(Encoder, self).__init__()
        self.embedding = tf.keras.layers.Embedding(VOCAB, D_MODEL)
        self.pos_encoding = positional_encoding(LENGTH, D_MODEL)
        self.attention = MultiHeadAttention(D_MODEL, HEADS)
        self.norm = tf.keras.layers.LayerNormalization(epsilon=1e-6)
        self.dropout = tf.keras.layers.Dropout(0.1)
        self.final = tf.keras.layers.Dense(VOCAB)

    def call(self, x, training):
        seq_len = tf.shape(x)[1]
        x = self.embedding(x) * tf.math.sqrt(tf.cast(D_MODEL, tf.float32))
        x += self.pos_encoding[:, :seq_len, :]
        x = self.dropout(x, training=training)
        x = self.norm(x + self.attention(x, create_look_ahead_mask(seq_len)))
        return self.final(x)


class CustomSchedule(tf.keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, d_model, warmup_steps=40):
        super(CustomSchedule, self).__init__()
        self.d_model = tf.cast(d_model, tf.float32)
        self.warmup_steps = warmup_steps

    def __call__(self, step):
        arg1 = tf.math.rsqrt(step)
        arg2 = step * (self.warmup_steps ** -1.5)
        return tf.math.rsqrt(self.d_model) * tf.math.minimum(arg1, arg2)


tokens = np.random.RandomState(0).randint(1, VOCAB, (512, LENGTH + 1)).astype(np.int32)
dataset = tf.data.Dataset.from_tensor_slices((tokens[:, :-1], tokens[:, 1:])).shuffle(512)
dataset = dataset.batch(BATCH_SIZE, drop_remainder=True).prefetch(tf.data.experimental.AUTOTUNE)
dist_dataset = strategy.experimental_distribute_dataset(dataset)

with strategy.scope():
    transformer = Encoder()
    optimizer = tf.keras.optimizers.Adam(CustomSchedule(D_MODEL), beta_1=0.9, beta_2=0.98, epsilon=1e-9)
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    train_loss = tf.keras.metrics.Mean(name="train_loss")


def loss_function(real, pred):
    mask = tf.math.logical_not(tf.math.equal(real, 0))
    loss_ = loss_object(real, pred)
    loss_ *= tf.cast(mask, dtype=loss_.dtype)
    return tf.reduce_sum(loss_) / (BATCH_SIZE * LENGTH)


def train_step(inputs):
    inp, tar = inputs
    with tf.GradientTape() as tape:
        predictions = transformer(inp, training=True)
        loss = loss_function(tar, predictions)
    gradients = tape.gradient(loss, transformer.trainable_variables)
    optimizer.apply_gradients(zip(gradients, transformer.trainable_variables))
    train_loss(loss)
    return loss


@tf.function
def distributed_train_step(inputs):
    per_replica_losses = strategy.run(train_step, args=(inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)


for epoch in range(2):
    train_loss.reset_states()
    for batch, inputs in enumerate(dist_dataset):
        loss = distributed_train_step(inputs)
    print("Epoch {} Loss {:.4f}".format(epoch + 1, train_loss.result()))
