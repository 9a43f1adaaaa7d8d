"""Reports of a chip program: in the terminal, as a trace, as a page, as pictures.

Idea: `report.py` is the entry point. `record.py` collects the records of a report; `layers.py` and `figures.py` compute
its numbers for all forms. `text.py` prints them, `trace.py` writes a trace for Perfetto, `page.py` writes HTML,
`pictures.py` lists the plots. Sections for newcomers are in `diagram.py`, `integers.py`, `listing.py` and
`multiplication.py`, those for engineers in `sections.py`.

Rule: everything shown comes from the records of the chip. Times are predicted and marked so; results are exact.
"""
