"""`tpu.check_kernel`: a Pallas kernel compiled, priced and compared with its reference."""
