"""A model as the few kinds of layers that the chip knows: read from a Program, and computed in floating point."""
