"""TensorFlow 1's graph and Session, one call a step, as the low-level API was used: iris only."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from inputs import rows
from worker import Train, serve

tf.disable_eager_execution()


def iris(steps: int) -> Train:
    x, y = rows("iris", steps)
    inputs = tf.placeholder("float", shape=[None, 5])
    labels = tf.placeholder("float", shape=[None, 3])
    w_1 = tf.Variable(tf.random_normal((5, 256), stddev=0.1))
    w_2 = tf.Variable(tf.random_normal((256, 3), stddev=0.1))
    logits = tf.matmul(tf.nn.sigmoid(tf.matmul(inputs, w_1)), w_2)
    loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(labels=labels, logits=logits))
    update = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
    session = tf.Session()
    session.run(tf.global_variables_initializer())

    def train() -> float:
        for step in range(steps):
            i = step % 100
            session.run(update, feed_dict={inputs: x[i : i + 1], labels: y[i : i + 1]})
        return session.run(loss, feed_dict={inputs: x, labels: y})

    return train


if __name__ == "__main__":
    serve({"iris": iris})
