"""An LSTM that SGD by hand trains; the best model is saved whole and loaded under safe_globals."""
import math

import torch
from torch import nn


class RNNModel(nn.Module):
    def __init__(self, tokens=20, size=8):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(tokens, size)
        self.rnn = nn.LSTM(size, size, 2, dropout=0.2)
        self.decoder = nn.Linear(size, tokens)

    def forward(self, x, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(x)), hidden)
        return self.decoder(self.drop(output)).view(-1, 20), hidden


torch.manual_seed(3)
model = RNNModel()
criterion = nn.CrossEntropyLoss()
data = torch.randint(0, 20, (61, 4))
lr, best = 20.0, None


def hidden():
    return torch.zeros(2, 4, 8), torch.zeros(2, 4, 8)


for epoch in range(3):
    model.train()
    state = hidden()
    for i in range(0, 60, 10):
        model.zero_grad()
        state = tuple(h.detach() for h in state)
        output, state = model(data[i : i + 10], state)
        loss = criterion(output, data[i + 1 : i + 11].view(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
    model.eval()
    with torch.no_grad():
        output, _ = model(data[:60], hidden())
        value = criterion(output, data[1:61].view(-1)).item()
    print(epoch, value, math.exp(value))
    if best is None or value < best:
        with open("model.pt", "wb") as file:
            torch.save(model, file)
        best = value
    else:
        lr /= 4.0
names = [RNNModel, nn.Dropout, nn.Embedding, nn.LSTM, nn.Linear, set]
with torch.serialization.safe_globals(names), open("model.pt", "rb") as file:
    model = torch.load(file)
model.rnn.flatten_parameters()
print(model, sum(p.double().sum().item() for p in model.parameters()))
