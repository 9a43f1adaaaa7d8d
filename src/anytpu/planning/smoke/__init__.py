"""`tpu.smoke`: a training program tried on a smaller model, and its real one planned, before a TPU is rented."""
