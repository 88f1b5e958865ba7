"""Binary segmentation with meters.

After visionml/pytracking pull request 313 (_update_stats is given tensors with gradients).
"""
import argparse
from collections import OrderedDict

import torch
import torch.nn as nn
import torch.nn.functional as F


class AverageMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.val = 0.0
        self.sum = 0.0
        self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum = self.sum + val * n
        self.count += n

    @property
    def avg(self):
        return float(self.sum) / max(self.count, 1)


def soft_iou(logits, mask):
    p = logits.sigmoid()
    inter = (p * mask).flatten(1).sum(1)
    union = (p + mask - p * mask).flatten(1).sum(1)
    return (inter / union.clamp(min=1e-6)).mean()


def conv(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=420)
    ap.add_argument("--batch", type=int, default=8)
    args = ap.parse_args()
    torch.manual_seed(3)
    torch.set_num_threads(1)

    net = nn.Sequential(conv(3, 16), conv(16, 32), conv(32, 16), nn.Conv2d(16, 1, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    stats = OrderedDict((name, AverageMeter()) for name in ("Loss/total", "Stats/iou"))

    for step in range(args.steps):
        img = torch.randn(args.batch, 3, 64, 64)
        mask = (img.mean(1, keepdim=True) > 0).float()
        out = net(img)
        loss = F.binary_cross_entropy_with_logits(out, mask)
        opt.zero_grad()
        loss.backward()
        opt.step()
        stats["Loss/total"].update(loss.item(), args.batch)
        stats["Stats/iou"].update(soft_iou(out, mask), args.batch)
        if (step + 1) % 70 == 0:
            print("step %d: %s" % (step + 1, ", ".join(f"{k} {m.avg:.3f}" for k, m in stats.items())))


if __name__ == "__main__":
    main()
