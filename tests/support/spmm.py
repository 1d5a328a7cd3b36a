"""What the tests of SpMM in float32 and in int8 share."""

from __future__ import annotations

import itertools

NO_TRANSPOSE = (None, 0.0, None, None, None, None, None)  # nor bias, root, rows
ENDS = [set(names) for count in range(4) for names in itertools.combinations(("bias", "root", "rows"), count)]
