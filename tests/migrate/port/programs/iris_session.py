"""Irises with placeholders and a session, after the first notebooks with a TPU. TensorFlow 1.9."""
import os

import numpy as np
import tensorflow as tf

assert "COLAB_TPU_ADDR" in os.environ, "ERROR: Not connected to a TPU runtime"
tpu_address = "grpc://" + os.environ["COLAB_TPU_ADDR"]

random = np.random.RandomState(0)
labels = random.randint(0, 3, 128)
inputs = (random.rand(128, 4) + labels[:, None]).astype("float32")
targets = np.eye(3, dtype="float32")[labels]


def add_op(x, y):
    return x + y


x = tf.placeholder(tf.float32, [None, 4])
y = tf.placeholder(tf.float32, [None, 3])
tpu_ops = tf.contrib.tpu.rewrite(add_op, [x, x])

w = tf.Variable(tf.truncated_normal([4, 3], stddev=0.1))
b = tf.Variable(tf.zeros([3]))
logits = tf.matmul(x, w) + b
loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(labels=y, logits=logits))
train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)

session = tf.Session(tpu_address)
try:
    session.run(tf.contrib.tpu.initialize_system())
    session.run(tf.global_variables_initializer())
    for step in range(100):
        _, value = session.run([train, loss], feed_dict={x: inputs, y: targets})
        if step % 50 == 0:
            print(step, value)
finally:
    session.run(tf.contrib.tpu.shutdown_system())
    session.close()
