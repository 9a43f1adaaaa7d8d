"""Plots: shapes on a sheet, made without knowing where they will be seen.

Idea: a plot is a `Drawing` of a few shapes. `axes.py`, `frame.py` and `rows.py` help to place them; `svg.py` writes a
drawing for a page or a file, `png.py` paints it, `files.py` names the files.
"""
