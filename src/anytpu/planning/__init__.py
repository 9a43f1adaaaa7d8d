"""Planning: how fast a program would be on a TPU, whether it fits and what it costs, before one is rented."""
