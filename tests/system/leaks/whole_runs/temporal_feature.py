# Thread: visionml/pytracking#313 (state updated with tensors that carry their graph), as in video object
# segmentation with a running feature memory.
# Pattern: the template feature is an exponential mean over frames, kept on the module; the loss uses a
# detached copy of it, so backward never fails, but the mean itself carries the graph of all frames.
# Expected: the assignment to self.template, holder `template`.
import memagent
import torch
from torch import nn


class Tracker(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, dim, 3, 2, 1), nn.ReLU(), nn.Conv2d(dim, dim, 3, 2, 1)
        )
        self.gate = nn.Conv2d(dim, dim, 1)
        self.head = nn.Conv2d(2 * dim, 1, 1)
        self.template = None

    def forward(self, frame):
        feature = self.backbone(frame)
        if self.template is None:
            self.template = torch.zeros_like(feature)
        logits = self.head(torch.cat([feature, self.template.detach()], 1))
        self.update_template(feature.detach())
        return logits

    def update_template(self, feature):
        gate = torch.sigmoid(self.gate(feature))
        self.template = gate * self.template + (1 - gate) * feature  # LEAK any template


def main():
    model = Tracker()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    memagent.attach(model, optimizer)
    for frame_number in range(700):
        frame = torch.rand(1, 3, 64, 64)
        mask = (frame.mean(1, keepdim=True)[..., ::4, ::4] > 0.5).float()
        loss = nn.functional.binary_cross_entropy_with_logits(model(frame), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
