"""`tpu.keras_to_tpu_model` and its strategy: a Keras model that trains on a TPU, as TensorFlow 1 had it."""
