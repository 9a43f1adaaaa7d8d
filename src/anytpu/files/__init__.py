"""Safe reading of untrusted files, and atomic writing of new ones; shared by every reader and writer.

Rule: these modules raise `ValueError` and `OSError`. The caller knows the file and raises its own error that names it.
"""
