# Validation each 40 steps collects the outputs of 25 batches in lists, reduces them, and drops them;
# the history keeps one float per validation. Clean.
import memagent
import torch
from torch import nn


class Evaluator:
    def __init__(self, model):
        self.model = model
        self.history = []

    @torch.no_grad()
    def run(self):
        self.model.eval()
        predictions, references = [], []
        for _ in range(25):
            x = torch.randn(64, 64)
            predictions.append(self.model(x))
            references.append(x.sum(1, keepdim=True).expand(-1, 256))
        error = (torch.cat(predictions) - torch.cat(references)).abs().mean().item()
        self.history.append(error)
        self.model.train()
        return error


def main():
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256))
    optimizer = torch.optim.Adam(model.parameters())
    memagent.attach(model, optimizer)
    evaluator = Evaluator(model)
    for step in range(1, 881):
        x = torch.randn(64, 64)
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            evaluator.run()


main()
