"""Prices, the cost of a run, and the limits of time of a plan."""
