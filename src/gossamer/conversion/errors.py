"""What a conversion may refuse."""


class CannotCapture(ValueError):
    """A model, or a line of its forward, that no integer program can be made from."""


class NotQuantised(ValueError):
    """A layer without a range: the model was neither trained for integers nor calibrated."""
