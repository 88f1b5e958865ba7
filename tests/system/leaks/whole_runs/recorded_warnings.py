# Thread: pytorch/pytorch warnings recorded around a whole training (catch_warnings(record=True)), as in
# test helpers copied into training scripts; cf. Project-MONAI/MONAI#7727 on errors that keep tensors.
# Pattern: the loss warns with a Warning object that carries the offending logits; everything recorded is
# in the list that catch_warnings gave, a local of main().
# Expected: the warnings.warn call, or the `with` line; holder `caught`.
import warnings

import memagent
import torch
from torch import nn


class CalibrationWarning(UserWarning):
    def __init__(self, message, logits):
        super().__init__(message)
        self.logits = logits


class CheckedCrossEntropy(nn.Module):
    def __init__(self, ceiling):
        super().__init__()
        self.ceiling = ceiling

    def forward(self, logits, target):
        confidence = logits.softmax(-1).amax(-1).mean()
        if confidence < self.ceiling:
            warnings.warn(
                CalibrationWarning(f"mean confidence {confidence:.2f}", logits.detach())
            )  # LEAK any caught
        return nn.functional.cross_entropy(logits, target)


def main():
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 500))
    criterion = CheckedCrossEntropy(0.9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    memagent.attach(model, optimizer)
    with warnings.catch_warnings(record=True) as caught:  # LEAK any caught
        warnings.simplefilter("always")
        for step in range(700):
            x, y = torch.randn(64, 64), torch.randint(0, 500, (64,))
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(len(caught), "warnings")


main()
