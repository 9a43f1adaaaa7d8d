"""Plots: shapes on a sheet, made without knowing where they will be seen.

Idea: a plot is a `Drawing` of a few shapes. `axes.py`, `rows.py` and `roofline.py` place them; `svg.py` writes a
drawing for a page, `files.py` writes files.
"""
