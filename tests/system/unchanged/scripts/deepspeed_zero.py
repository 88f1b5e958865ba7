# requires: deepspeed
# process: own
"""DeepSpeed's engine in place of the optimizer's and the loss's own calls: ZeRO-1 on one rank."""
import os

import torch

os.environ.update(
    DS_ACCELERATOR="cpu", LOCAL_RANK="0", RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1"
)
torch.distributed.init_process_group(
    "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
)
import deepspeed  # noqa: E402

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
config = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 1},
    "bf16": {"enabled": True},
}
engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)
for step in range(24):
    inputs, targets = torch.randn(8, 32).bfloat16(), torch.randint(4, (8,))
    loss = torch.nn.functional.cross_entropy(engine(inputs).float(), targets)
    engine.backward(loss)
    engine.step()
    print(step, loss.item().hex(), engine.global_steps)
engine.save_checkpoint("checkpoints", tag="last")
torch.save(engine.module_state_dict(), "model.pt")
print(type(optimizer).__name__)
torch.distributed.destroy_process_group()
