"""`tpu.check`: one training step on one core, on many and on really partitioned devices, layer by layer."""
