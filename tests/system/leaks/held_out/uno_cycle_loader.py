"""itertools.cycle around a loader keeps a copy of each batch of the first pass.
https://github.com/bytedance/UNO/issues/64"""

import itertools
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


class Pairs(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.rand(3, 32, 32, generator=generator)
        return image, image.flip(-1)


def build_unet():
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, stride=2, padding=1),
        nn.SiLU(),
        nn.Conv2d(12, 12, 3, padding=1),
        nn.SiLU(),
        nn.ConvTranspose2d(12, 3, 4, stride=2, padding=1),
    )


def main():
    torch.manual_seed(0)
    unet = build_unet()
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4, weight_decay=0.01)
    dataloader = DataLoader(Pairs(), batch_size=8, shuffle=True)
    dataloader = itertools.cycle(dataloader)  # LEAK any cycle|dataloader
    for step in range(STEPS):
        reference, target = next(dataloader)  # LEAK any cycle|dataloader
        loss = nn.functional.mse_loss(unet(reference), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()


main()
