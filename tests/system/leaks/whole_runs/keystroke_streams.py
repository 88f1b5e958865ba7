"""As in: tensorflow/tfjs#858; pytorch/pytorch#2198."""

# Next-key prediction over user sessions; the LSTM state of a session is carried from chunk to chunk.
import random
import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(3)
random.seed(3)

KEYS, HIDDEN, LAYERS, BATCH, CHUNK = 64, 192, 2, 64, 12


class SessionModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(KEYS, 48)
        self.lstm = nn.LSTM(48, HIDDEN, LAYERS, batch_first=True)
        self.out = nn.Linear(HIDDEN, KEYS)
        self.sessions = {}

    def initial(self):
        return torch.zeros(LAYERS, HIDDEN), torch.zeros(LAYERS, HIDDEN)

    def load(self, ids):
        hs, cs = zip(*(self.sessions.get(i) or self.initial() for i in ids))
        return torch.stack(hs, 1), torch.stack(cs, 1)

    def save(self, ids, state):
        h, c = (s.detach() for s in state)
        for row, i in enumerate(ids):
            self.sessions[i] = (h[:, row], c[:, row])  # LEAK any sessions

    def forward(self, ids, keys):
        y, state = self.lstm(self.emb(keys), self.load(ids))
        self.save(ids, state)  # LEAK any sessions
        return self.out(y)


def sessions():
    """Endless supply of (ids, chunk): every session has three chunks."""
    number = 0
    while True:
        ids = [f"user-{number + j}" for j in range(BATCH)]
        number += BATCH
        phase = torch.randint(0, KEYS, (BATCH, 1))
        for part in range(3):
            t = torch.arange(part * CHUNK, (part + 1) * CHUNK + 1)
            yield ids, (phase + t * 5 + torch.randint(0, 2, (BATCH, CHUNK + 1))) % KEYS


model = SessionModel()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
stream = sessions()
ema = None
for it in range(1, 1201):
    ids, chunk = next(stream)
    logits = model(ids, chunk[:, :-1])
    loss = criterion(logits.reshape(-1, KEYS), chunk[:, 1:].reshape(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    ema = loss.item() if ema is None else 0.98 * ema + 0.02 * loss.item()
    if it % 150 == 0:
        print("iter", it, "loss", round(ema, 4))
