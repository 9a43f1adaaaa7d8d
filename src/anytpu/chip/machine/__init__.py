"""The machine that runs instructions, and the systolic array, register by register."""
