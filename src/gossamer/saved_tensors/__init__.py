"""Saved tensors of any PyTorch model in few bits, by hooks on autograd's nodes."""

from .hooks import compressed_activations

__all__ = ["compressed_activations"]
