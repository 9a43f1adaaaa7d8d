"""The batteries: one file a format, each with `BATTERIES`."""
