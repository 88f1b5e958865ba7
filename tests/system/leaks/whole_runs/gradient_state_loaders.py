# Thread: huggingface/accelerate#3391 "[memory leak] Replace GradientState -> DataLoader reference".
# Pattern: a Borg state notes each loader at the begin of its iteration and forgets it at the end; the
# training loop leaves each loader by `break`, so generator-held loaders stay noted together with the
# tensors of their datasets. A new loader is made each 6 steps (a chunk of a streamed corpus).
# Expected: the append in _add_dataloader, holder `dataloader_references`.
import memagent
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class GradientState:
    _shared_state = {}

    def __init__(self):
        self.__dict__ = self._shared_state
        if not self.__dict__:
            self.sync_gradients = True
            self.active_dataloader = None
            self.dataloader_references = [None]

    def _add_dataloader(self, dataloader):
        self.active_dataloader = dataloader
        self.dataloader_references.append(self.active_dataloader)  # LEAK any dataloader_references

    def _remove_dataloader(self, dataloader):
        self.dataloader_references.remove(dataloader)
        self.active_dataloader = self.dataloader_references[-1]


class DataLoaderShard:
    def __init__(self, loader):
        self.loader = loader
        self.gradient_state = GradientState()

    def begin(self):
        self.gradient_state._add_dataloader(self)

    def end(self):
        self.gradient_state._remove_dataloader(self)

    def __iter__(self):
        self.begin()
        for batch in self.loader:
            yield batch
        self.end()


class Accelerator:
    def __init__(self):
        self.gradient_state = GradientState()

    def prepare(self, loader):
        return DataLoaderShard(loader)

    def backward(self, loss):
        loss.backward()


def chunk(rows=256):
    return TensorDataset(torch.randn(rows, 512), torch.randint(0, 10, (rows,)))


def training_function():
    accelerator = Accelerator()
    model = nn.Sequential(nn.Linear(512, 128), nn.GELU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    memagent.attach(model, optimizer)
    completed = 0
    while completed < 800:
        loader = accelerator.prepare(DataLoader(chunk(), batch_size=32, shuffle=True))
        for step, (inputs, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            completed += 1
            if step == 5:
                break


training_function()
