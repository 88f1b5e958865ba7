"""The formula estimator: a model's shape and its training in, bytes out. No torch."""
