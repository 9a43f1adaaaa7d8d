"""A plan as one reads it: in the terminal, as a page, as pictures.

Idea: `report.py` is what a plan finds by name. `phrases.py` says numbers in words, once for all; `table.py` and
`details.py` print them; `page.py` writes HTML, `pictures.py` lists the plots.

Rule: everything shown comes from the records of the plan. Nothing is computed here but shares and positions.
"""
