"""Old TPU programs: TPUEstimator, TensorFlow 1's functions and `keras_to_tpu_model` run here, `anytpu port` rewrites.

Idea: a room above the core. `replaced` is the table of old names. `port`, `estimator`, `low_level` and `keras_to_tpu`
are its four doors.
"""
