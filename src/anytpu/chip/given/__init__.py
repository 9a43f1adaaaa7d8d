"""Networks that are given in integers: the scales and zero points of a file are kept, and nothing is calibrated."""
