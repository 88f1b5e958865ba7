# Thread: NVIDIA-NeMo/Speech#8897 and espnet#281 (CPU memory grows while features are read).
# Pattern: a streaming reader appends PCM to a bytearray and reads at an offset; what was read is never cut.
# Expected: the `+=` (or extend) on `self._buffer`, holder `_buffer`.
import memagent
import numpy as np
import torch
from torch import nn


class PcmStream:
    def __init__(self, rate=16_000):
        self.rate = rate
        self._buffer = bytearray()
        self._position = 0

    def feed(self, pcm):
        self._buffer += pcm  # LEAK any _buffer

    def read(self, samples):
        end = self._position + 2 * samples
        if end > len(self._buffer):
            return None
        window = np.frombuffer(bytes(self._buffer[self._position : end]), dtype=np.int16)
        self._position = end
        return torch.from_numpy(window.astype(np.float32) / 32768)


class Microphone:
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def record(self, seconds):
        return self.rng.integers(-3000, 3000, int(16_000 * seconds), dtype=np.int16).tobytes()


class Wav2Feature(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(1, 16, 10, 5), nn.GELU(), nn.Conv1d(16, 32, 8, 4), nn.GELU()
        )
        self.project = nn.Linear(32, 16)

    def forward(self, wave):
        return self.project(self.conv(wave[:, None]).transpose(1, 2))


def main():
    stream, microphone = PcmStream(), Microphone()
    model = Wav2Feature()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    memagent.attach(model, optimizer)
    steps = 0
    while steps < 800:
        stream.feed(microphone.record(1.2))
        while True:
            wave = stream.read(19_200)
            if wave is None:
                break
            loss = model(wave.view(4, -1)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1


if __name__ == "__main__":
    main()
