"""A straight line fitted in a session, on the cores of a TPU. TensorFlow 1.8."""

import numpy as np
import tensorflow as tf
from tensorflow.contrib import tpu
from tensorflow.contrib.cluster_resolver import TPUClusterResolver
from tensorflow.contrib.tpu.python.tpu import tpu_function

tf.set_random_seed(42)
tpu_function.get_tpu_context().set_number_of_shards(8)
target = TPUClusterResolver(tpu=["my_tpu"]).get_master()

x = tf.placeholder("float", shape=[None, 2])
y = tf.placeholder("float", shape=[None, 1])
weights = tf.Variable(tf.random_normal([2, 1], stddev=0.1))
cost = tf.reduce_mean(tf.square(tf.matmul(x, weights) - y))
guess = tf.argmax(tf.matmul(x, weights), axis=1)
cross = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=y, logits=tf.nn.sigmoid(x)))
update = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.01)).minimize(cost)

# Start, and look at what is there.
with tf.Session(target) as sess:
    sess.run(tpu.initialize_system())
    devices = sess.list_devices()
    sess.run(tpu.shutdown_system())

with tf.Session(target) as sess:
    sess.run(tpu.initialize_system())
    sess.run(tf.global_variables_initializer())
    for _ in range(100):
        batch = np.random.rand(16, 2)
        sess.run(update, feed_dict={x: batch, y: batch.sum(axis=1, keepdims=True)})
    sess.run(tpu.shutdown_system())


def doubled(one):
    return tpu.cross_replica_sum(one) * 2.0


outputs = tpu.batch_parallel(doubled, inputs=[np.ones([8, 2], "float32")], num_shards=8)
again = tpu.rewrite(lambda one: one + 1.0, inputs=[np.ones([2], "float32")])
