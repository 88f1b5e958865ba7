# requires: accelerate
"""accelerate's loop for a language model: prepared objects, accumulation, clipping, saved state."""
import math

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, default_data_collator, get_scheduler

set_seed(32)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=40, n_positions=16, bos_token_id=0, eos_token_id=0))
data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 40, (32, 8))]
loader = DataLoader(data, shuffle=True, collate_fn=default_data_collator, batch_size=4)
groups = [{"params": [p for n, p in model.named_parameters() if "bias" not in n], "weight_decay": 0.01}, {"params": [p for n, p in model.named_parameters() if "bias" in n], "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=5e-3)
scheduler = get_scheduler("linear", optimizer=optimizer, num_warmup_steps=2, num_training_steps=8)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
# memagent.attach(model, optimizer)
for epoch in range(2):
    model.train()
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        print(epoch, loss.item(), scheduler.get_last_lr(), optimizer.step_was_skipped)
    model.eval()
    with torch.no_grad():
        losses = torch.stack([accelerator.gather_for_metrics(model(**batch).loss) for batch in loader])
    print("perplexity", math.exp(losses.mean()))
accelerator.save_state("state")
accelerator.unwrap_model(model).save_pretrained("model", save_function=accelerator.save)
