# Thread: hill-a/stable-baselines#1099 and tensorboardX-like asynchronous image writers.
# Pattern: each 4th step a thread writes images; finished threads stay in `self.threads` for a join at the
# end, each with the images as its attribute.
# Expected: the append in ImageLogger.save, holder `threads`.
import io
import threading

import memagent
import torch
from torch import nn


class WriteThread(threading.Thread):
    def __init__(self, name, images):
        super().__init__(name=name)
        self.images = images

    def run(self):
        target = io.BytesIO()
        torch.save(self.images[:1].clone(), target)
        self.size = target.tell()


class ImageLogger:
    def __init__(self):
        self.threads = []

    def save(self, name, images):
        thread = WriteThread(name, images)
        thread.start()
        self.threads.append(thread)  # LEAK any threads

    def close(self):
        for thread in self.threads:
            thread.join()


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(784, 32)
        self.decode = nn.Linear(16, 784)

    def forward(self, x):
        mean, logvar = self.encode(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        kl = -0.5 * (1 + logvar - mean.pow(2) - logvar.exp()).sum(-1).mean()
        return torch.sigmoid(self.decode(z)), kl


def main():
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    memagent.attach(model, optimizer)
    logger = ImageLogger()
    for step in range(700):
        x = torch.rand(96, 784)
        recon, kl = model(x)
        loss = nn.functional.binary_cross_entropy(recon, x) + kl / 784
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 0:
            logger.save(f"recon-{step}", recon.detach())
    logger.close()


main()
