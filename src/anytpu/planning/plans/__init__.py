"""`tpu.plan`, `tpu.scaling` and `tpu.max_batch_size`."""
