"""The page of the records of runs."""
