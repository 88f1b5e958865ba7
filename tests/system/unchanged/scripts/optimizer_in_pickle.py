"""An optimizer that is pickled with all its attributes, and one that is pickled by reference."""
import copy
import pickle
import re

import torch


class Whole(torch.optim.SGD):
    def __getstate__(self):
        return {k: v for k, v in self.__dict__.items() if k != "_zero_grad_profile_name"}


class Referenced(torch.optim.SGD):
    def __reduce__(self):
        return "referenced"


torch.manual_seed(41)
model = torch.nn.Linear(4, 2)
whole, referenced = Whole(model.parameters(), lr=0.1), Referenced(model.parameters(), lr=0.1)
# memagent.attach(model, [whole, referenced])
for step in range(4):
    model(torch.randn(4, 4)).pow(2).mean().backward()
    whole.step()
    referenced.step()
    model.zero_grad()
    data = pickle.dumps(whole)
    with open(f"{step}.pickle", "wb") as file:
        # torch puts addresses into it, which vary in length
        file.write(b"\n".join(re.findall(rb"[A-Za-z_.]{6,}", data)))
    print(b"memagent" in data, pickle.loads(pickle.dumps(referenced)) is referenced)
    duplicate, deep = copy.copy(whole), copy.deepcopy(whole)
    print(sorted(duplicate.__dict__), [len(v) for k, v in deep.__dict__.items() if "hooks" in k])
    deep.step()
torch.save({"optimizer": whole, "model": model}, "all.pt")
print(torch.load("all.pt", weights_only=False)["optimizer"])
