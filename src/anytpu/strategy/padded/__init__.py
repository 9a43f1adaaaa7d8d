"""Steps on batches with pads, computed from the real rows alone."""
