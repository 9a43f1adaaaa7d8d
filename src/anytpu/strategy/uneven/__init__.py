"""A batch that does not fill all replicas: one trace for each number of rows, run in lockstep between collectives."""
