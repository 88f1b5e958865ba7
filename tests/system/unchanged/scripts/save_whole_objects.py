"""Model, optimizer, scheduler and loader are saved whole, by every writer, between two steps."""
import copyreg
import io
import pickle
import re

import torch

torch.manual_seed(40)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
model.register_forward_hook(print)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
loader = torch.utils.data.DataLoader(torch.arange(8), batch_size=2)
# memagent.attach(model, optimizer)


def write(name, data):
    """Write the words in a pickle: the addresses that torch puts into it vary in length."""
    with open(name, "wb") as file:
        file.write(b"\n".join(re.findall(rb"[A-Za-z_.]{6,}", data)))


def step():
    loss = model(torch.randn(4, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    print(loss.item())


for index in range(3):
    step()
    handle = model[index].register_forward_pre_hook(print)
    optimizer.register_step_post_hook(print)
    torch.save([model, optimizer, loader], f"all_{index}.pt")
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        write(f"{index}_{protocol}.pickle", pickle.dumps([model, optimizer, loader], protocol))
    for item in (model, optimizer):
        attributes = {k: v for k, v in vars(item).items() if k != "step"}
        write(f"{index}_{type(item).__name__}_dict.pickle", pickle.dumps(attributes))
    buffer = io.BytesIO()
    python = pickle._Pickler(buffer)
    python.dump(model)
    python.dump(model._forward_hooks)
    python.dump(optimizer._optimizer_step_pre_hooks)
    print(len(buffer.getvalue()), handle.id, b"memagent" in buffer.getvalue())
    loaded, other, _ = torch.load(f"all_{index}.pt", weights_only=False)
    print(loaded, other, copyreg.__name__)
