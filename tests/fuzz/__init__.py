"""Damaged inputs, read by everything that reads a file: refused in words of ours, or right."""
