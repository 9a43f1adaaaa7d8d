"""How many cycles a program takes, and why."""
