"""What outlives a call: the state of lightened modules and models, and facts about tensors."""

from .layer import LayerState, ModelState, state_of

__all__ = ["LayerState", "ModelState", "state_of"]
