"""Sorts irises with an estimator on all cores. TensorFlow 1.15."""

import numpy as np
import tensorflow.compat.v1 as tf

USE_TPU = True
BATCH = 48


def model_fn(features, labels, mode, params):
    hidden = tf.keras.layers.Dense(16, activation="relu")(features)
    logits = tf.keras.layers.Dense(3)(hidden)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.tpu.TPUEstimatorSpec(mode=mode, predictions={"class": tf.argmax(logits, axis=1)})
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    optimizer = tf.train.AdamOptimizer(learning_rate=0.05)
    if USE_TPU:
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    return tf.estimator.tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def flowers():
    random = np.random.RandomState(0)
    labels = random.randint(0, 3, 480).astype("int32")
    return random.normal(labels[:, None], 0.3, [480, 4]).astype("float32"), labels


def input_fn(params):
    dataset = tf.data.Dataset.from_tensor_slices(flowers())
    return dataset.shuffle(480).repeat().batch(params["batch_size"], drop_remainder=True)


def main():
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=["iris-node"], zone="us-central1-b")
    config = tf.estimator.tpu.RunConfig(
        cluster=resolver,
        tpu_config=tf.estimator.tpu.TPUConfig(iterations_per_loop=20),
    )
    estimator = tf.estimator.tpu.TPUEstimator(
        model_fn=model_fn, config=config, use_tpu=USE_TPU, train_batch_size=BATCH, predict_batch_size=BATCH
    )
    estimator.train(input_fn=input_fn, max_steps=60)
    features, labels = flowers()

    def predict_fn(params):
        return tf.data.Dataset.from_tensor_slices(features).batch(params["batch_size"])

    classes = [one["class"] for one in estimator.predict(input_fn=predict_fn)]
    print("right:", np.mean(np.array(classes)[: len(labels)] == labels))


if __name__ == "__main__":
    main()
