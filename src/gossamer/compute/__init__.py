"""The arithmetic of training: which products run in int8, forward and backward (Tango).

    plan       the setting gs.Int8, and what a lightened module was told
    rows       int8 rows: quantised once per tensor, weights, noise by role
    entry      how rows come into a product, alone or out of norm, activation and dropout, and how gradients leave
    adjacency  neighbour sums of int8 rows
    conv       products and neighbour sums, in integers both ways; gradients is its way back
    attention  GAT and GATv2
    watch      automatic precision: which modules stay in float32

Layers ask `plan.of(module)`; the rest is theirs to call.
"""
