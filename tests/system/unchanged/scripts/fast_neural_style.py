"""A frozen feature extractor gives the loss of a trained network; it goes to eval before saving."""
import torch
from torch import nn

torch.manual_seed(9)
transformer = nn.Sequential(
    nn.ReflectionPad2d(1), nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True), nn.ReLU(),
    nn.Conv2d(8, 3, 3, padding=1),
)
vgg = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).requires_grad_(False)
optimizer = torch.optim.Adam(transformer.parameters(), 1e-3)
mse = nn.MSELoss()
# memagent.attach(transformer, optimizer)


def gram(y):
    b, c, h, w = y.size()
    f = y.view(b, c, h * w)
    return f.bmm(f.transpose(1, 2)) / (c * h * w)


style = gram(vgg(torch.rand(1, 3, 16, 16)))
for step in range(8):
    optimizer.zero_grad()
    x = torch.rand(2, 3, 16, 16)
    y = transformer(x)
    content = 1e5 * mse(vgg(y), vgg(x))
    loss = content + 1e10 * mse(gram(vgg(y)), style.expand(2, -1, -1))
    loss.backward()
    optimizer.step()
    print(step, content.item(), loss.item())
    if step % 4 == 3:
        transformer.eval().cpu()
        torch.save(transformer.state_dict(), f"ckpt_{step}.pth")
        transformer.train()
