"""What autograd holds between forward and backward, in few bits (EXACT and block-wise EXACT).

The forward pass stays exact, bit for bit. What an op needs in backward is kept by a codec; only gradients carry noise,
of mean zero. `plan.py` says what a recipe asks for; the other files hold the ops, one kind each.
"""

from .hooks import compressed_activations

__all__ = ["compressed_activations"]
