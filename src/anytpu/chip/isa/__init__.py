"""The instructions: what they are, what they mean, and their bytes."""
