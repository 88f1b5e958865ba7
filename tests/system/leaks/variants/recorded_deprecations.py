"""A list that a context manager gives gets all warnings, each with the tensor that it's about."""

import warnings

import torch


class LargeLoss(RuntimeWarning):
    def __init__(self, text, errors):
        super().__init__(text)
        self.errors = errors


def check(errors):
    if errors.mean() > 0:
        warnings.warn(LargeLoss("The loss is large", errors.detach()))  # LEAK any seen|recorded


model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with warnings.catch_warnings(record=True) as recorded:
    warnings.simplefilter("always")
    for step in range(70):
        errors = model(torch.randn(256, 64)).pow(2)
        check(errors)
        optimizer.zero_grad()
        errors.mean().backward()
        optimizer.step()
