"""How the forward of a lightened model runs.

    functional    a user's own forward: torch's functions replaced, epilogues that wait for the product behind them
    as_pyg        a model that gains nothing at these sizes: with the classes that its modules had

Layers know nothing of it: the forward of each is wrapped here, once.
"""

from ..layers import CONVERTED
from .functional import refuse_jit_script, replacing, unwatched

__all__ = ["refuse_jit_script", "replacing"]

for _kind in CONVERTED.values():
    _kind.forward = unwatched(_kind.forward)
    _kind.__prepare_scriptable__ = refuse_jit_script  # type: ignore[attr-defined]
