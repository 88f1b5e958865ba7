"""Ten rings, one for each class, of five batches of features: class-balanced memory as in
https://github.com/lorenmt/reco and https://github.com/tfzhou/ContrastiveSeg/issues/15."""

# BEGIN 44
# CONFIRM 80
from collections import defaultdict, deque
from functools import partial

import torch
from torch import nn

CLASSES = 10
rings = defaultdict(partial(deque, maxlen=5))


def contrast(features, label):
    others = [rings[c][-1] for c in list(rings) if c != label and rings[c]]
    if not others:
        return features.sum() * 0
    return torch.stack([(features @ o.T).mean() for o in others]).logsumexp(dim=0)


def main():
    net = nn.Sequential(
        nn.Conv2d(3, 24, 3, 2, 1), nn.ReLU(), nn.Conv2d(24, 48, 3, 2, 1), nn.ReLU(), nn.Flatten()
    )
    head = nn.Linear(48 * 64, CLASSES)
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=1e-2)
    for step in range(180):
        label = step % CLASSES
        features = net(torch.rand(16, 3, 32, 32))
        loss = nn.functional.cross_entropy(head(features), torch.full((16,), label))
        loss = loss + 1e-4 * contrast(features, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rings[label].append(features.detach())


if __name__ == "__main__":
    main()
