"""The time and memory of one program on one TPU: compiled, or extrapolated from smaller ones."""
