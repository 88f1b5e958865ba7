# Thread: PolymathicAI/the_well#51 "High memory consumption of WellDataset class" (files opened, never closed).
# Pattern: the dataset opens a shard when it is first needed, reads it into a BytesIO, and keeps the handle
# in `self.files`. A new shard each 5 steps. Bytes, invisible to the garbage collector.
# Expected: the assignment to `self.files[...]` in _open_file, holder `files`.
import io

import memagent
import numpy as np
import torch
from torch import nn


class WellDataset(torch.utils.data.Dataset):
    def __init__(self, n_files, samples_per_file, shape):
        self.n_files = n_files
        self.samples_per_file = samples_per_file
        self.shape = shape
        self.files = {}

    def _read_shard(self, index):
        rng = np.random.default_rng(index)
        return rng.standard_normal(
            (self.samples_per_file, *self.shape), dtype=np.float32
        ).tobytes()  # ALLOCATES

    def _open_file(self, index):
        file = io.BytesIO(self._read_shard(index))
        self.files[index] = file  # LEAK any files
        return file

    def __len__(self):
        return self.n_files * self.samples_per_file

    def __getitem__(self, i):
        file_index, sample = divmod(i, self.samples_per_file)
        file = self.files.get(file_index)
        if file is None:
            file = self._open_file(file_index)
        size = int(np.prod(self.shape)) * 4
        file.seek(sample * size)
        field = np.frombuffer(file.read(size), dtype=np.float32).reshape(self.shape)
        return torch.from_numpy(field.copy())


def main():
    dataset = WellDataset(n_files=170, samples_per_file=40, shape=(2, 32, 32))
    loader = torch.utils.data.DataLoader(dataset, batch_size=8)
    model = nn.Sequential(nn.Conv2d(2, 16, 3, padding=1), nn.GELU(), nn.Conv2d(16, 2, 3, padding=1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    memagent.attach(model, optimizer)
    for fields in loader:
        prediction = model(fields[:-1])
        loss = (prediction - fields[1:]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
