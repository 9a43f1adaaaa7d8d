"""A program of the chip as one sees it: in the terminal, as a trace, as a page, as pictures.

Idea: `report.py` is what a program finds by name. `record.py` gathers what a page shows; `layers.py` and `figures.py`
say it in numbers, once for all; `terminal.py` prints them, `trace.py` writes what Perfetto reads, `page.py` writes
HTML, `pictures.py` lists the plots.

Rule: everything shown comes from the records of the chip. A time is predicted and called so; a result is exact.
"""
