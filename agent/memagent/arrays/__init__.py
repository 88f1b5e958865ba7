"""Samples as numpy arrays, shared with the server. The training process imports none of it."""
