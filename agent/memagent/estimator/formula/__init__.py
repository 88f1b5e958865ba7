"""The formula estimator: from a model's shape and its training to bytes. It doesn't need torch."""
