"""The program to plan, and the settings of a plan, read once."""
