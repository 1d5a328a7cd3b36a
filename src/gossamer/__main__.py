"""`python -m gossamer` is `gossamer`."""

from .cli import app

app(prog_name="gossamer")
