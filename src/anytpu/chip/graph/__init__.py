"""The graph: a network of the few kinds of layers that the chip knows, in floats or in integers, and its arithmetic."""
