# requires: transformers
"""transformers' Trainer with a tiny random model, evaluation and checkpoints."""
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments

torch.manual_seed(31)
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=40, n_positions=16, bos_token_id=0, eos_token_id=0))
rows = torch.randint(0, 40, (24, 8))
data = [{"input_ids": row, "labels": row} for row in rows]
arguments = TrainingArguments("out", num_train_epochs=2, per_device_train_batch_size=4, logging_steps=2, save_steps=6, eval_strategy="epoch", report_to=[], disable_tqdm=True, seed=31, use_cpu=True, save_only_model=True)
trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:8])
trainer.remove_callback(PrinterCallback)
trainer.train()
for record in trainer.state.log_history:
    print({k: v for k, v in record.items() if "runtime" not in k and "per_second" not in k and k != "total_flos"})
trainer.save_model("final")
for name in ("training_args.bin", "trainer_state.json"):  # they have times
    for path in [*Path("out").rglob(name), *Path("final").rglob(name)]:
        path.unlink()
