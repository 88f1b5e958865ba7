"""Predictions are concatenated by a function until the end of an evaluation that never ends:
https://github.com/huggingface/transformers/issues/12878."""

import torch
from torch import nn


def pad_and_concat(first, second, padding=-100):
    if first.shape[1] == second.shape[1]:
        return torch.cat((first, second), dim=0)
    width = max(first.shape[1], second.shape[1])
    result = first.new_full((len(first) + len(second), width), padding)
    result[: len(first), : first.shape[1]] = first
    result[len(first) :, : second.shape[1]] = second
    return result


def nested_concat(tensors, new_tensors):
    if isinstance(tensors, (list, tuple)):
        return type(tensors)(nested_concat(t, n) for t, n in zip(tensors, new_tensors))
    return pad_and_concat(tensors, new_tensors)


def train(model, optimizer, steps):
    preds_host = None
    for step in range(steps):
        x = torch.randn(64, 48)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            logits = model(torch.randn(32, 48))
        preds_host = (  # LEAK any preds_host
            logits if preds_host is None else nested_concat(preds_host, logits)
        )
    return preds_host


net = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 500))
print(train(net, torch.optim.AdamW(net.parameters()), 140).shape)
