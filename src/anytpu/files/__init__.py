"""Files that somebody else wrote, and files that must not be left half written: what every reader and writer needs.

Rule: these modules raise `ValueError` and `OSError`; whoever calls them knows the file and says so with its own error.
"""
