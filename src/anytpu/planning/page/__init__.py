"""Reports of a plan: in the terminal, as a page, as pictures.

Idea: `report.py` is the entry point. `phrases.py` formats numbers for all forms; `table.py` and `details.py` print
them; `page.py` writes HTML; `pictures.py` lists the plots.

Rule: everything shown comes from the records of the plan. Only shares and positions are computed here.
"""
