"""The native kernels: allocate the result, pass addresses, return it.

Arguments have been checked by the op. A dtype that no kernel handles (float64) goes to the op's reference. Each file
registers its kernels when it is imported, and this package imports all of them; `_*.py` is what several files share.
"""

import importlib
import pkgutil

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f".{_file.name}", __name__)
