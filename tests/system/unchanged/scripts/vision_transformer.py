"""Patches, a class token, an encoder of torch's own layers, label smoothing and warm-up."""
import torch
from torch import nn


class ViT(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, dim))
        self.position = nn.Parameter(torch.randn(1, 5, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(dim, 5)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.position
        return self.head(self.encoder(x)[:, 0])


torch.manual_seed(8)
model = ViT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
# memagent.attach(model, optimizer)
for step in range(12):
    x, y = torch.randn(8, 3, 8, 8), torch.randint(0, 5, (8,))
    loss = criterion(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(step, loss.item(), scheduler.get_last_lr())
model.eval()
with torch.inference_mode():
    print(model(torch.ones(2, 3, 8, 8)).tolist())
