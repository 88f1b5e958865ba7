"""stderr is gone: as None, closed, and as an object that only writes."""
import sys

import torch

torch.manual_seed(60)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# memagent.attach(model, optimizer)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(4, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()


class Writer:
    texts = []

    def write(self, text):
        self.texts.append(text)


print(step())
sys.stderr.close()
print(step())
sys.stderr = None
print(step())
sys.stderr = Writer()
print("to the script's own stream", file=sys.stderr)
print(step(), [text for text in Writer.texts if "memagent" not in text])
