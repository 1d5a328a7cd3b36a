"""What autograd saves for any PyTorch model, in few bits, by hooks on saved tensors."""

from .hooks import compressed_activations

__all__ = ["compressed_activations"]
