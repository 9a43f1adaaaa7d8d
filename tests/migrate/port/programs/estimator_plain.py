"""A plain Estimator with a model function, before the move to a TPU. TensorFlow 1.10."""
import numpy as np
import tensorflow as tf


def cnn_model_fn(features, labels, mode):
    input_layer = tf.reshape(features["x"], [-1, 8, 8, 1])
    conv1 = tf.layers.conv2d(inputs=input_layer, filters=4, kernel_size=[5, 5], padding="same", activation=tf.nn.relu)
    pool1 = tf.layers.max_pooling2d(inputs=conv1, pool_size=[2, 2], strides=2)
    dense = tf.layers.dense(inputs=tf.reshape(pool1, [-1, 4 * 4 * 4]), units=16, activation=tf.nn.relu)
    logits = tf.layers.dense(inputs=dense, units=10)
    predictions = {"classes": tf.argmax(input=logits, axis=1), "probabilities": tf.nn.softmax(logits, name="softmax")}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode=mode, predictions=predictions)
    loss = tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
    if mode == tf.estimator.ModeKeys.TRAIN:
        optimizer = tf.train.GradientDescentOptimizer(learning_rate=0.001)
        train_op = optimizer.minimize(loss=loss, global_step=tf.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode=mode, loss=loss, train_op=train_op)
    eval_metric_ops = {"accuracy": tf.metrics.accuracy(labels=labels, predictions=predictions["classes"])}
    return tf.estimator.EstimatorSpec(mode=mode, loss=loss, eval_metric_ops=eval_metric_ops)


def main(unused_argv):
    random = np.random.RandomState(0)
    data = random.rand(256, 64).astype("float32")
    labels = random.randint(0, 10, 256).astype("int32")
    classifier = tf.estimator.Estimator(model_fn=cnn_model_fn, model_dir="convnet")
    train_input_fn = tf.estimator.inputs.numpy_input_fn(x={"x": data}, y=labels, batch_size=64, num_epochs=None, shuffle=True)
    classifier.train(input_fn=train_input_fn, steps=20)
    eval_input_fn = tf.estimator.inputs.numpy_input_fn(x={"x": data}, y=labels, num_epochs=1, shuffle=False)
    print(classifier.evaluate(input_fn=eval_input_fn))


if __name__ == "__main__":
    tf.app.run()
