import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __init__(self):
        self.seen = []

    def __len__(self):
        return 640

    def __getitem__(self, index):
        sample = torch.randn(32)
        self.seen.append(bytearray(2**16))  # LEAK worker Samples.seen
        return sample


def main():
    for batch in DataLoader(Samples(), batch_size=16, num_workers=1):
        train_step(model(batch).square().mean())


main()
