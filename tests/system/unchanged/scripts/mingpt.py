"""A trainer class with callbacks that makes its optimizer in run(), from a loader with replacement."""
import time
from collections import defaultdict

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler


class SortDataset(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        numbers = torch.randint(3, size=(6,))
        return numbers, torch.sort(numbers)[0]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(3, 12), nn.GRU(12, 12, batch_first=True), nn.Linear(12, 3)

    def forward(self, x, targets=None):
        logits = self.head(self.rnn(self.embed(x))[0])
        return logits, nn.functional.cross_entropy(logits.view(-1, 3), targets.view(-1))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-3)


class Trainer:
    def __init__(self, model, dataset):
        self.optimizer, self.callbacks = None, defaultdict(list)
        self.model, self.dataset = model, dataset
        self.iter_num, self.iter_time = 0, 0.0

    def add_callback(self, event, callback):
        self.callbacks[event].append(callback)

    def trigger(self, event):
        for callback in self.callbacks.get(event, []):
            callback(self)

    def run(self):
        self.optimizer = self.model.configure_optimizers()
        sampler = RandomSampler(self.dataset, replacement=True, num_samples=int(1e6))
        loader = DataLoader(self.dataset, sampler=sampler, shuffle=False, batch_size=8)
        data = iter(loader)
        self.model.train()
        while self.iter_num < 12:
            x, y = next(data)
            _, self.loss = self.model(x, y)
            self.model.zero_grad(set_to_none=True)
            self.loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.trigger("on_batch_end")
            self.iter_num += 1
            self.iter_time = time.time()


torch.manual_seed(3407)
trainer = Trainer(Model(), SortDataset())
trainer.add_callback("on_batch_end", lambda t: print(t.iter_num, t.loss.item()))
trainer.run()
