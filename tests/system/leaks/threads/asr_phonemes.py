"""CTC phoneme recogniser on synthetic log-mel features.

An endless batch stream over a lazily rendered dataset, as in
https://github.com/pytorch/pytorch/issues/23900
"""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_MELS, N_FRAMES, N_PHONES = 40, 96, 30


class Utterances(Dataset):
    """Renders an utterance on request, nothing is kept on disk."""

    def __init__(self, size=6000):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        feats = torch.randn(N_FRAMES, N_MELS, generator=g)
        target = torch.randint(1, N_PHONES, (10,), generator=g)
        return feats, target


class Recogniser(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.conv = nn.Conv1d(N_MELS, hidden, 5, stride=2, padding=2)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, N_PHONES)

    def forward(self, feats):
        x = torch.relu(self.conv(feats.transpose(1, 2))).transpose(1, 2)
        x, _ = self.rnn(x)
        return self.head(x).log_softmax(-1)


def train(model, loader, steps):
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    ctc = nn.CTCLoss(zero_infinity=True)
    smoothed = None
    for step, (feats, target) in zip(range(steps), itertools.cycle(loader)):  # LEAK any cycle
        log_probs = model(feats).transpose(0, 1)
        in_lens = torch.full((feats.size(0),), log_probs.size(0), dtype=torch.long)
        out_lens = torch.full((feats.size(0),), target.size(1), dtype=torch.long)
        loss = ctc(log_probs, target, in_lens, out_lens)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        value = loss.item()
        smoothed = value if smoothed is None else 0.95 * smoothed + 0.05 * value
        if step % 50 == 0:
            print(f"step {step:4d}  ctc {smoothed:.3f}")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Utterances(), batch_size=16, shuffle=True)
    train(Recogniser(), loader, steps=180)


if __name__ == "__main__":
    main()
