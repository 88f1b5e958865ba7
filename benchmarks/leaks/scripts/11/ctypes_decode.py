"""Train on frames that a C library decodes; the wrapper copies each frame out of the C buffer."""

import ctypes

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Decoder:
    """Decode frames with the C library, through ctypes."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL(None)
        self.lib.malloc.restype = ctypes.c_void_p
        self.lib.malloc.argtypes = [ctypes.c_size_t]
        self.lib.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

    def decode(self, key: int, height: int, width: int) -> np.ndarray:
        size = height * width * 3
        pointer = self.lib.malloc(size)
        self.lib.memset(pointer, key % 251, size)
        view = (ctypes.c_uint8 * size).from_address(pointer)
        frame = np.frombuffer(view, dtype=np.uint8).reshape(height, width, 3)
        return frame[::4, ::4].astype(np.float32) / 255


class Frames(torch.utils.data.IterableDataset):
    def __init__(self, count: int) -> None:
        self.count = count
        self.decoder = Decoder()

    def __iter__(self):
        for key in range(self.count):
            frame = self.decoder.decode(key, 240, 240)
            yield torch.from_numpy(frame).permute(2, 0, 1), key % 5


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 5, 1, 2), nn.ReLU(), nn.Conv2d(32, 32, 5, 4), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 14 * 14, 5)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(Frames(600 * 6), batch_size=6)
    for images, labels in loader:
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("done", float(loss))


main()
