"""What a model, its modules and its tensors carry beside their parameters, each piece with one owner."""
