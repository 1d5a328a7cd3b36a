"""What outlives a call: the state of lightened modules and models, and facts about tensors."""

from .layer import LayerState, ModelState, model_state_of, state_of

__all__ = ["LayerState", "ModelState", "model_state_of", "state_of"]
