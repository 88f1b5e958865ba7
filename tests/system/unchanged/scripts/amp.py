"""Autocast with a scaler that skips steps whose gradients overflow, and the scheduler's warning."""
import torch

torch.manual_seed(27)
model = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.GELU(), torch.nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3)
# memagent.attach(model, optimizer)
for step in range(14):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(8, 6)).float().pow(2).mean()
    scaled = scaler.scale(loss)
    (scaled * (float("inf") if step in (0, 5) else 1)).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    print(step, loss.item(), scaler.step(optimizer), scaler.get_scale())
    scaler.update()
    scheduler.step()
torch.save({"scaler": scaler.state_dict(), "model": model.state_dict()}, "amp.pt")
