"""What each operation takes, and what a step takes."""
