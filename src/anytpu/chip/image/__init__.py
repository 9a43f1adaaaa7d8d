"""The image of a program of the chip: instructions, weights and the layout of the host's arrays, and its bytes."""
