"""A user's model on a user's data, watched: inputs, call order, hooks, and everything put back."""
