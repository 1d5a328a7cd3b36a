"""The report of a comparison: a table for the terminal, and a page with plots.

read        the comparison's JSON -> Comparison, with NaN for every number that is missing
headline    the result, in one sentence per recipe
columns     the table's cells; `table` shows them in a terminal, `page` in HTML
inference   the cells of the inference table, where the comparison has one
markup      HTML and SVG as strings that are escaped once
scale, labels, frame        ticks, labels that avoid each other, axes
scatter, bars, curves       the plots
page        all of it in one file that needs nothing else
"""

from .headline import headline
from .inference import inference_table
from .page import write_page
from .table import table

__all__ = ["headline", "inference_table", "table", "write_page"]
