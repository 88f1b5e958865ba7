"""A bidirectional LSTM with packed sequences, and a learning rate that is halved by hand."""
import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 6, padding_idx=0)
        self.rnn = nn.LSTM(6, 8, 1, bidirectional=True)
        self.out = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))

    def encode(self, tokens, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.embed(tokens), lengths, enforce_sorted=False)
        _, (h, _) = self.rnn(packed)
        return h.transpose(0, 1).contiguous().view(tokens.shape[1], -1)

    def forward(self, premise, hypothesis):
        return self.out(torch.cat([self.encode(*premise), self.encode(*hypothesis)], 1))


torch.manual_seed(15)
model, criterion = Classifier(), nn.CrossEntropyLoss()
opt = torch.optim.Adam(model.parameters(), lr=0.01)
# memagent.attach(model, opt)


def sentence():
    return torch.randint(1, 30, (7, 8)), torch.randint(2, 8, (8,))


for step in range(12):
    model.train()
    opt.zero_grad()
    loss = criterion(model(sentence(), sentence()), torch.randint(0, 3, (8,)))
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    opt.step()
    if step % 4 == 3:
        for group in opt.param_groups:
            group["lr"] /= 2
    print(step, loss.item(), opt.param_groups[0]["lr"])
torch.save(model, f"snapshot_loss_{loss.item():.6f}.pt")
