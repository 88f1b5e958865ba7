"""Language model on random bytes; snapshots are serialised in a background thread.

Compare simonsobs/sotodlib#884 (futures keep their results) and pytorch/pytorch#170163.
"""
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn


class Snapshotter:
    def __init__(self, folder: Path):
        self.folder = folder
        self.pool = ThreadPoolExecutor(max_workers=1)
        self.pending = []

    def _serialise(self, step, state):
        buffer = io.BytesIO()
        torch.save(state, buffer)
        (self.folder / "last.pt").write_bytes(buffer.getvalue())
        return step, buffer

    def save(self, step, model):
        state = {k: v.detach().clone() for k, v in model.state_dict().items()}
        self.pending.append(self.pool.submit(self._serialise, step, state))

    def close(self):
        sizes = [f.result()[1].getbuffer().nbytes for f in self.pending]
        self.pool.shutdown()
        return len(sizes)


class CharLM(nn.Module):
    def __init__(self, vocab=128, dim=192):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def main(steps=450, every=5):
    torch.manual_seed(21)
    torch.set_num_threads(1)
    model = CharLM()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    with TemporaryDirectory() as tmp:
        snap = Snapshotter(Path(tmp))
        for step in range(1, steps + 1):
            x = torch.randint(0, 128, (16, 49))
            logits = model(x[:, :-1])
            loss = nn.functional.cross_entropy(logits.transpose(1, 2), x[:, 1:])
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            if step % every == 0:
                snap.save(step, model)
            if step % 90 == 0:
                print(step, f"{loss.item():.4f}")
        print("snapshots:", snap.close())


main()
