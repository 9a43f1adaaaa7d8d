"""The first Colab notebook on a TPU: XLA's axpy. TensorFlow 1.11."""
import os
import pprint

import numpy as np
import tensorflow as tf

if "COLAB_TPU_ADDR" not in os.environ:
    print("ERROR: Not connected to a TPU runtime")
else:
    tpu_address = "grpc://" + os.environ["COLAB_TPU_ADDR"]
    print("TPU address is", tpu_address)
    with tf.Session(tpu_address) as session:
        devices = session.list_devices()
    print("TPU devices:")
    pprint.pprint(devices)


def axy_computation(a, x, y):
    return a * x + y


inputs = [3.0, tf.ones([3, 3], tf.float32), tf.ones([3, 3], tf.float32)]
tpu_computation = tf.contrib.tpu.rewrite(axy_computation, inputs)
tpu_grpc_url = tf.contrib.cluster_resolver.TPUClusterResolver("demo-tpu").get_master()
with tf.Session(tpu_grpc_url) as sess:
    sess.run(tf.contrib.tpu.initialize_system())
    output = sess.run(tpu_computation)
    print(output)
    sess.run(tf.contrib.tpu.shutdown_system())
print("Done!")
