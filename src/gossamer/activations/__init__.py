"""What autograd holds between forward and backward, in few bits (EXACT and block-wise EXACT).

The forward pass stays exact: products behind a chain may sum in another order, nothing else differs from float32. What
an op needs in backward is kept by a codec; only gradients carry noise, of mean zero. `plan.py` says what a recipe asks
for; the other files hold the ops, one kind each.
"""
