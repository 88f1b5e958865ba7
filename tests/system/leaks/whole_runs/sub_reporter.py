# Thread: espnet/espnet#4632 "Increasing CPU memory during training stage".
# Pattern: the reporter of an epoch collects every registered value until finished(); the script has one
# very long epoch, and registers the attention weights besides the losses.
# Expected: the append in SubReporter.register, holder `stats`.
import memagent
import numpy as np
import torch
from torch import nn


class Average:
    def __init__(self, value):
        self.value = value


def to_reported_value(v, weight=None):
    if isinstance(v, (torch.Tensor, np.ndarray)):
        if v.size == 1 if isinstance(v, np.ndarray) else v.numel() == 1:
            return Average(float(v))
        return Average(v.detach().cpu().numpy() if isinstance(v, torch.Tensor) else v)
    return Average(v)


class SubReporter:
    def __init__(self, key, epoch, total_count):
        self.key, self.epoch, self.total_count = key, epoch, total_count
        self.stats = {}
        self._finished = False

    def register(self, stats, weight=None):
        for key2, v in stats.items():
            if v is None:
                v = np.nan
            r = to_reported_value(v, weight)
            self.stats.setdefault(key2, []).append(r)  # LEAK any stats
        self.total_count += 1

    def finished(self):
        self._finished = True
        self.stats.clear()


class ASRModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.subsample = nn.Linear(80, 64)
        self.att = nn.MultiheadAttention(64, 4, batch_first=True)
        self.ctc = nn.Linear(64, 50)

    def forward(self, speech, text):
        h = self.subsample(speech)
        h, weights = self.att(h, h, h, average_attn_weights=False)
        logp = self.ctc(h).log_softmax(-1)
        loss = nn.functional.nll_loss(logp.flatten(0, 1), text.flatten())
        return loss, {"loss": loss.detach(), "loss_att": None, "att_ws": weights[0]}


class Trainer:
    @classmethod
    def train_one_epoch(cls, model, optimizer, iterations, reporter):
        for _ in range(iterations):
            speech, text = torch.randn(4, 60, 80), torch.randint(0, 50, (4, 60))
            loss, stats = model(speech, text)
            reporter.register(stats)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()


if __name__ == "__main__":
    asr = ASRModel()
    adam = torch.optim.Adam(asr.parameters(), lr=1e-3)
    memagent.attach(asr, adam)
    reporter = SubReporter("train", 1, 0)
    Trainer.train_one_epoch(asr, adam, 700, reporter)
    reporter.finished()
