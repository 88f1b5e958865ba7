"""Train from one large shard, read member by member as a stream."""

import io
import tarfile
import tempfile
from collections.abc import Iterator

import torch
from torch import nn

STEPS, BATCH = 600, 24


def write(file) -> None:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for number in range(STEPS * BATCH):
            entry = tarfile.TarInfo(f"{number:08d}." + "scan-" * 40 + "bin")
            entry.pax_headers = {"MEMO.patient": f"{number}" * 60}
            entry.size = 512
            archive.addfile(entry, io.BytesIO(bytes((number + at) % 251 for at in range(512))))


def samples(stream: tarfile.TarFile) -> Iterator[torch.Tensor]:
    for member in stream:
        data = bytearray(stream.extractfile(member).read())
        yield torch.frombuffer(data, dtype=torch.uint8).float() / 251


torch.manual_seed(9)
with tempfile.TemporaryFile() as file:
    write(file)
    file.seek(0)
    shard = tarfile.open(fileobj=file, mode="r:")
    scans = samples(shard)
    model = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 512))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _step in range(STEPS):
        batch = torch.stack([next(scans) for _ in range(BATCH)])
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"{loss.item():.6f}")
