"""What a computation costs: bytes saved for backward, peak memory, seconds.

    with measure.kept(exclude=[model, data]) as kept:       the tensors that autograd saves for backward
        loss = step()
    print(kept)                                             every tensor, largest first; kept.bytes is their sum

    with measure.peak() as peak:                            resident memory at its highest, above that at the start
        train()
    print(peak.bytes)

    measure.kept_bytes(step), measure.epoch_seconds(step)   the same for one function, and its time
    measure.selection_bytes(model)                          what gs.TopRows(...) holds beside the graph
    measure.in_fresh_process(function, ...)                 value, peak and seconds in an interpreter of its own

Kept bytes, those saved for backward, depend on the method alone; the peak depends on the machine and its allocator too.
Measure the peak in a fresh process: memory that earlier work freed would be reused, and not be counted.
"""

from .fresh_process import Fresh, FreshProcessError, in_fresh_process
from .peak_memory import Peak, peak
from .saved_memory import Kept, KeptTensor, kept, kept_bytes, selection_bytes
from .seconds import Seconds, epoch_seconds

__all__ = [
    "Fresh",
    "FreshProcessError",
    "Kept",
    "KeptTensor",
    "Peak",
    "Seconds",
    "epoch_seconds",
    "in_fresh_process",
    "kept",
    "kept_bytes",
    "peak",
    "selection_bytes",
]
