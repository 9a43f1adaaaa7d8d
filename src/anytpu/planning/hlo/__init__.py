"""What the compiler prints, read into records."""
