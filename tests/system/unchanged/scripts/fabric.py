# requires: lightning
"""Fabric: wrapped model, optimizer and loader, and a saved state."""
import lightning as L
import torch

fabric = L.Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
fabric.launch()
fabric.seed_everything(36, verbose=False)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 4)), batch_size=8, shuffle=True)
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(loader)
# memagent.attach(model, optimizer)
for epoch in range(3):
    for (x,) in loader:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        print(epoch, loss.item())
fabric.save("state.ckpt", {"model": model, "optimizer": optimizer, "epoch": 3})
print(type(model).__name__, type(optimizer).__name__)
